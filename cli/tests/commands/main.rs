//! The commands of `tinderbox` as processes.

mod ckpt;
mod command;
#[cfg(unix)]
mod every;
#[cfg(unix)]
mod launch;
#[cfg(unix)]
mod launched;
#[cfg(target_os = "linux")]
mod links;
mod model;
#[cfg(target_os = "linux")]
mod orphans;
#[cfg(target_os = "linux")]
mod paths;
mod plan;
mod run;
mod schedule;
#[cfg(unix)]
mod signals;
mod support;
