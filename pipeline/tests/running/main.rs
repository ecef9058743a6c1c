//! The runtime against plain Burn, under delays, failures and restarts.

mod batches;
mod devices;
mod faults;
mod links;
mod mixed;
mod models;
mod optimizers;
mod outputs;
mod shapes;
mod updates;

#[path = "../support/mod.rs"]
#[allow(dead_code, reason = "the other test binary uses the rest")]
mod support;
