//! Tests without ranks: traces and their errors, plans, cuts, the order of settings, and scaling.

mod cuts;
mod edges;
mod errors;
mod models;
mod order;
mod plans;
mod profiles;
mod replicas;
mod scale;
mod traces;
