//! Ranks as processes of this machine, over gRPC and, where this program links MPI, over MPI: what they compute, and what
//! the others report of one that is killed, stopped, panics, exits or is cut off.
//!
//! The processes are this program itself. What one of them does as a rank is in [`program`], and the rest is the tests.

#![cfg(unix)]

mod bits;
mod faults;
mod inject;
mod model;
mod program;
mod ranks;
mod recovery;
mod saves;

use std::io::Write;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Lets one test run at a time: they measure how soon processes end.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Says on the terminal, past the capture of tests, what could not be tested.
fn not_run(what: &str, why: &str) {
    // Without a terminal, nobody reads it.
    let _ = writeln!(std::io::stderr(), "NOT RUN: {what}, because {why}");
}
