//! `ckpt import`: saves plain files as a checkpoint.

use std::{fs, path::PathBuf};

use anyhow::Context;
use clap::Args;
use tinderbox_checkpoint::tools::{ImportOptions, import};

use super::saved::Saved;
use crate::{outcome::Outcome, terminal::Output};

/// Arguments of `import`.
#[derive(Args, Debug)]
pub(crate) struct Flags {
    /// A safetensors file, or a directory with model.safetensors or model.safetensors.index.json
    #[arg(value_name = "DIR_OR_FILE")]
    from: PathBuf,
    /// Step to save as
    #[arg(long, value_name = "STEP", default_value_t = 0)]
    step: u64,
    /// Number of ranks to balance whole tensors over, 1 to 65536
    #[arg(
        long,
        value_name = "N",
        default_value_t = 1,
        value_parser = clap::value_parser!(u32).range(1..=65_536)
    )]
    ranks: u32,
    #[command(flatten)]
    saved: Saved,
}

/// Imports the files.
pub(crate) fn run(flags: &Flags, out: &mut Output) -> anyhow::Result<Outcome> {
    let options = ImportOptions {
        step: flags.step,
        world_size: flags.ranks,
        replace: flags.saved.replace,
    };
    let from = &flags.from;
    fs::metadata(from).with_context(|| format!("{} can't be read", from.display()))?;
    let dir = import(from, &flags.saved.run()?, &options, &out.bar("import"))?;
    flags.saved.print(&dir, out)
}
