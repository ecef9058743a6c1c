//! The commands of `tinderbox` as processes.

mod ckpt;
mod command;
mod plan;
mod schedule;
mod support;
