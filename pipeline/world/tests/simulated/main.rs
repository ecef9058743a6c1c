//! Worlds in a simulation: the protocol that runs on machines, with faults at every moment.

mod ends;
mod engine;
mod faults;
mod program;
mod survivors;
