//! `tinderbox model`: initializes, converts and estimates models without their code.

mod command;
mod estimate;
mod save;

pub(crate) use command::Command;
