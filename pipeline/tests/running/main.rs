//! Compares the runtime with plain Burn, under delays, failures and restarts.

mod batches;
mod carried;
mod devices;
mod events;
mod faults;
mod finite;
mod groups;
mod indices;
mod links;
mod mixed;
mod models;
mod objective;
mod optimizers;
mod outputs;
mod parameters;
mod progress;
mod refusals;
mod replay;
mod shapes;
mod sizes;
mod states;
mod threads;
mod updates;
