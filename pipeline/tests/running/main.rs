//! The runtime against plain Burn, under delays, failures and restarts.

mod batches;
mod links;
mod models;
mod optimizers;
mod outputs;
mod shapes;

#[path = "../support/mod.rs"]
#[allow(dead_code, reason = "the other test binary uses the rest")]
mod support;
