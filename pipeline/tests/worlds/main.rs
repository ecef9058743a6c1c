//! Ranks as the processes of a world: the bits of ranks as threads, and what all report of one that fails.
//!
//! The processes are threads, each with a pipeline of its own, over an engine that delays and cuts. `tests/processes` of the
//! workspace starts real ones.

mod bits;
mod faults;
mod model;
mod recovery;
mod replicas;
