//! The protocol under a model checker: every test here runs it in many orders of events.
//!
//! A failure prints the order of events; `shuttle::replay` runs it again.

mod channels;
mod checker;
mod contract;
mod crew;
mod exchange;
mod faults;
mod host;
mod mailbox;
mod progress;
