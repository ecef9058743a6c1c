//! Tests without ranks: traces and their errors, plans, cuts, and scaling.

mod cuts;
mod edges;
mod errors;
mod models;
mod plans;
mod profiles;
mod replicas;
mod scale;
mod traces;

#[path = "../support/mod.rs"]
#[allow(dead_code, reason = "the other test binary uses the rest")]
mod support;

#[path = "../../../examples/train_lm/model.rs"]
#[allow(dead_code, reason = "the example uses all of it")]
mod gpt;
