//! `launch`: starts a program as the ranks of a world, and ends them together.
//!
//! The launcher is two processes. The one that the user starts does nothing but pass signals on to the other, the
//! supervisor, which starts the ranks and waits for them. A pipe between them closes when the launcher ends, however it ends:
//! the supervisor then ends all processes that descend from it. If the supervisor ends, the launcher adopts these processes
//! and ends them (Linux).

mod control;
mod descendants;
mod flags;
mod launcher;
mod output;
mod run;

pub(crate) use flags::Flags;
pub(crate) use launcher::{RankFlags, become_rank, launch};
pub(crate) use run::supervise;
