//! The commands of `tinderbox` as processes.

mod ckpt;
mod command;
#[cfg(unix)]
mod launch;
#[cfg(target_os = "linux")]
mod links;
mod model;
#[cfg(target_os = "linux")]
mod paths;
mod plan;
mod run;
mod schedule;
mod support;
