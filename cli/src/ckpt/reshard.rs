//! `ckpt reshard`: saves a checkpoint for another number of ranks.

use std::{io::Write, path::PathBuf};

use clap::Args;
use tinderbox_checkpoint::tools::{Cut, ReshardOptions, reshard};

use super::place::{open, run_at};
use crate::{outcome::Outcome, terminal::Bar};

/// Arguments of `reshard`.
#[derive(Args, Debug)]
pub(crate) struct Flags {
    /// Step directory, or run directory for its newest step, or the URL of one in a bucket
    dir: PathBuf,
    /// Number of ranks, 1 to 65536
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65_536))]
    ranks: u32,
    /// Run directory to save to, or its URL in a bucket
    #[arg(long, value_name = "RUN_DIR")]
    to: PathBuf,
    /// Cut tensors with at least N rows into N boxes of rows, instead of assigning whole tensors to ranks
    #[arg(long)]
    rows: bool,
    /// Replace the step if it exists
    #[arg(long)]
    replace: bool,
}

/// Reshards the checkpoint.
pub(crate) fn run(flags: &Flags, out: &mut dyn Write) -> anyhow::Result<Outcome> {
    let checkpoint = open(&flags.dir)?;
    let options = ReshardOptions {
        cut: match flags.rows {
            true => Cut::Rows,
            false => Cut::Whole,
        },
        replace: flags.replace,
    };
    let run = run_at(&flags.to)?;
    let dir = reshard(
        &checkpoint,
        &run,
        flags.ranks,
        &options,
        &Bar::new("reshard"),
    )?;
    writeln!(out, "{}", dir.display())?;
    Ok(Outcome::Fine)
}
