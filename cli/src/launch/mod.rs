//! `launch`: starts a program as the ranks of a world, and ends them together.
//!
//! The launcher is two processes with the same arguments. The process that the user starts only passes signals on to the
//! other one, the supervisor, which starts the ranks and waits for them. A pipe between them closes when the launcher ends,
//! for any reason: the supervisor then ends all its descendants. If the supervisor ends, the launcher adopts these processes
//! and ends them (Linux).

mod control;
mod descendants;
mod flags;
mod launcher;
mod output;
mod rank;
mod run;
mod watch;

pub(crate) use flags::{EXIT_CODES, Flags};
pub(crate) use launcher::{RankFlags, become_rank, launch};
