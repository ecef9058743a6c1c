//! Arguments of the commands that save a checkpoint.

use std::{
    io::Write,
    path::{Path, PathBuf},
};

use clap::Args;
use serde_json::json;
use tinderbox_checkpoint::Run;

use super::place::run_at;
use crate::{outcome::Outcome, terminal::Output};

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

impl Saved {
    /// Opens the run.
    pub(crate) fn run(&self) -> anyhow::Result<Run> {
        run_at(&self.to)
    }

    /// Prints the directory of the new checkpoint.
    pub(crate) fn print(&self, dir: &Path, out: &mut Output) -> anyhow::Result<Outcome> {
        let text = |out: &mut Output| writeln!(out, "{}", dir.display());
        out.answer(&json!({"dir": dir}), text)?;
        Ok(Outcome::Done)
    }
}
