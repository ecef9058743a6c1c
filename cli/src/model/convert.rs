//! `model convert`: saves parameters as a checkpoint, cast, renamed, for any number of ranks.

use std::path::PathBuf;

use clap::Args;
use tinderbox_checkpoint::{
    CheckpointMeta, ModuleTypes, Regex,
    tools::{ConvertOptions, convert},
};

use super::flags::{FloatType, SaveFlags};
use crate::{
    ckpt::{open_weights, rename},
    outcome::Outcome,
    terminal::Output,
};

/// Arguments of `convert`.
#[derive(Args, Debug)]
pub(crate) struct Flags {
    /// A safetensors or burnpack file, a directory with model.safetensors or model.safetensors.index.json, or a step or run
    /// directory. Layouts are kept: a linear weight of PyTorch stays [out, in], and the program that loads it says so
    /// (LoadOptions::pytorch)
    #[arg(value_name = "DIR_OR_FILE")]
    from: PathBuf,
    /// Step to save as [default: the step of the checkpoint, or 0]
    #[arg(long, value_name = "STEP")]
    step: Option<u64>,
    /// Rename tensors: in every name, the first match of a regular expression is replaced; `$1` refers to a group. May be
    /// given several times; applies in this order
    #[arg(long, value_name = "PATTERN=REPLACEMENT", value_parser = rename)]
    rename: Vec<(Regex, String)>,
    #[command(flatten)]
    save: SaveFlags,
}

/// Converts the parameters.
pub(crate) fn run(flags: &Flags, out: &mut Output) -> anyhow::Result<Outcome> {
    let from = open_weights(&flags.from)?;
    let manifest = from.manifest();
    let options = ConvertOptions {
        dtype: flags.save.dtype.map(FloatType::burn),
        renames: flags.rename.clone(),
        save: flags.save.options(),
    };
    let meta = CheckpointMeta {
        seed: manifest.seed,
        // Types are by path.
        modules: match flags.rename.is_empty() {
            true => manifest.modules(),
            false => ModuleTypes::default(),
        },
        metadata: manifest.metadata(),
        ..flags.save.meta(flags.step.unwrap_or(manifest.step))
    };
    let to = flags.save.saved.run()?;
    let dir = convert(&from, &to, meta, &options, &out.bar("convert"))?;
    flags.save.saved.print(&dir, out)
}
