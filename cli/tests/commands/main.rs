//! The commands of `tinderbox` as processes.

mod ckpt;
mod command;
#[cfg(unix)]
mod launch;
mod model;
mod plan;
mod run;
mod schedule;
mod support;
