//! `ckpt import`: saves plain files as a checkpoint.

use std::{io::Write, path::PathBuf};

use clap::Args;
use tinderbox_checkpoint::tools::{ImportOptions, import};

use super::place::run_at;
use crate::{outcome::Outcome, terminal::Bar};

/// Arguments of `import`.
#[derive(Args, Debug)]
pub(crate) struct Flags {
    /// A safetensors file, or a directory with model.safetensors or model.safetensors.index.json
    #[arg(value_name = "DIR_OR_FILE")]
    from: PathBuf,
    /// Run directory to save to, or its URL in a bucket
    #[arg(long, value_name = "RUN_DIR")]
    to: PathBuf,
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
    /// Replace the step if it exists
    #[arg(long)]
    replace: bool,
}

/// Imports the files.
pub(crate) fn run(flags: &Flags, out: &mut dyn Write) -> anyhow::Result<Outcome> {
    let options = ImportOptions {
        step: flags.step,
        world_size: flags.ranks,
        replace: flags.replace,
    };
    let run = run_at(&flags.to)?;
    let dir = import(&flags.from, &run, &options, &Bar::new("import"))?;
    writeln!(out, "{}", dir.display())?;
    Ok(Outcome::Fine)
}
