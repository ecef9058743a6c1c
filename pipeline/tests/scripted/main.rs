//! Scripted ranks: whole runs with losses, late messages and failures in one thread, each decided by one seed and compared bit for
//! bit with the undisturbed run.
//!
//! `SEEDS=0..100000` tries other seeds. A seed that fails is printed; it becomes a test in `seeds`.

mod faults;
mod model;
mod program;
mod runs;
mod seeds;
mod table;
