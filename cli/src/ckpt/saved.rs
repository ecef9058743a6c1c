//! Arguments of the commands that save a checkpoint.

use std::{
    io::Write,
    path::{Path, PathBuf},
};

use clap::Args;
use serde::Serialize;
use tinderbox_checkpoint::Run;

use super::place::run_at;
use crate::{
    outcome::Outcome,
    terminal::{Output, ShownPath},
};

/// The run to save to.
#[derive(Args, Debug)]
pub(crate) struct Saved {
    /// Run directory to save to, or its URL in a bucket
    #[arg(long, value_name = "RUN_DIR")]
    to: PathBuf,
    /// Replace the step if it exists
    #[arg(long)]
    pub(crate) replace: bool,
}

/// The answer: the directory of the new checkpoint.
#[derive(Serialize)]
struct Answer {
    dir: ShownPath,
}

impl Saved {
    /// Opens the run.
    pub(crate) fn run(&self) -> anyhow::Result<Run> {
        run_at(&self.to)
    }

    /// Prints the directory of the new checkpoint.
    pub(crate) fn print(&self, dir: &Path, out: &mut Output) -> anyhow::Result<Outcome> {
        let answer = Answer { dir: dir.into() };
        out.answer(&answer, |out| writeln!(out, "{}", answer.dir))?;
        Ok(Outcome::Done)
    }
}
