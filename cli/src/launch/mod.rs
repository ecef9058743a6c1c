//! `launch`: starts a program as the ranks of a world, and ends them together.

mod flags;
mod output;
mod rank;
mod run;

pub(crate) use flags::Flags;
pub(crate) use rank::{RankFlags, become_rank};
pub(crate) use run::run;
