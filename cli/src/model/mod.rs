//! `tinderbox model`: makes, converts and estimates models without their code.

mod command;
mod convert;
mod estimate;
mod flags;
mod init;

pub(crate) use command::Command;
