//! `ckpt cp`: copies a checkpoint.

use std::path::PathBuf;

use clap::Args;
use tinderbox_checkpoint::tools::{CopyOptions, copy};

use super::{place::open, saved::Saved};
use crate::{outcome::Outcome, terminal::Output};

/// Arguments of `cp`.
#[derive(Args, Debug)]
pub(crate) struct Flags {
    /// Step directory, or run directory for its newest step, or the URL of one in a bucket
    dir: PathBuf,
    #[command(flatten)]
    saved: Saved,
}

/// Copies the checkpoint.
pub(crate) fn run(flags: &Flags, out: &mut Output) -> anyhow::Result<Outcome> {
    let options = CopyOptions {
        replace: flags.saved.replace,
    };
    let (checkpoint, to) = (open(&flags.dir)?, flags.saved.run()?);
    let dir = copy(&checkpoint, &to, &options, &out.bar("cp"))?;
    flags.saved.print(&dir, out)
}
