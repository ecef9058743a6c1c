//! `ckpt reshard`: saves a checkpoint for another number of ranks.

use std::path::PathBuf;

use clap::Args;
use tinderbox_checkpoint::tools::{Cut, ReshardOptions, reshard};

use super::{place::open, saved::Saved};
use crate::{outcome::Outcome, terminal::Output};

/// Arguments of `reshard`.
#[derive(Args, Debug)]
pub(crate) struct Flags {
    /// Step directory, or run directory for its newest step, or the URL of one in a bucket
    dir: PathBuf,
    /// Number of ranks, 1 to 65536
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65_536))]
    ranks: u32,
    /// Cut tensors with at least N rows into N boxes of rows, instead of assigning whole tensors to ranks
    #[arg(long)]
    rows: bool,
    #[command(flatten)]
    saved: Saved,
}

/// Reshards the checkpoint.
pub(crate) fn run(flags: &Flags, out: &mut Output) -> anyhow::Result<Outcome> {
    let checkpoint = open(&flags.dir)?;
    let options = ReshardOptions {
        cut: match flags.rows {
            true => Cut::Rows,
            false => Cut::Whole,
        },
        replace: flags.saved.replace,
    };
    let (to, bar) = (flags.saved.run()?, out.bar("reshard"));
    let dir = reshard(&checkpoint, &to, flags.ranks, &options, &bar)?;
    flags.saved.print(&dir, out)
}
