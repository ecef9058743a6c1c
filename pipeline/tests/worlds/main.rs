//! Ranks as the processes of a world: the bits of ranks as threads, and what all report of one that fails.
//!
//! Most tests run the processes as threads, each with a pipeline of its own, over an engine that delays and cuts; `processes`
//! starts real ones over gRPC.

mod bits;
mod faults;
mod model;
mod processes;
#[path = "../support/mod.rs"]
#[allow(dead_code, reason = "shared with other tests")]
mod support;
