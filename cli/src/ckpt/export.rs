//! `ckpt export`: writes plain files of the parameters.

use std::{collections::BTreeMap, io::Write, path::PathBuf};

use clap::{Args, ValueEnum};
use serde_json::json;
use tinderbox_checkpoint::tools::{ExportFormat, ExportOptions, Exported, export};
use tinderbox_deferred::human_bytes;

use super::place::open;
use crate::{
    outcome::Outcome,
    terminal::{Output, visible},
};

/// Arguments of `export`.
#[derive(Args, Debug)]
pub(crate) struct Flags {
    /// Step directory, or run directory for its newest step, or the URL of one in a bucket
    dir: PathBuf,
    /// Directory to create
    #[arg(long, value_name = "DIR")]
    to: PathBuf,
    /// Files to write: `safetensors` as in Hugging Face's directories, or one `model.bpk` for Burn
    #[arg(long, value_enum, default_value_t = Format::Safetensors)]
    format: Format,
    /// Maximum bytes of tensors per `safetensors` file; a larger tensor has its own file
    #[arg(
        long,
        value_name = "N",
        default_value_t = ExportOptions::default().file_bytes,
        value_parser = clap::value_parser!(u64).range(1..)
    )]
    max_file_bytes: u64,
}

/// The files.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Format {
    Safetensors,
    Burnpack,
}

/// Exports the parameters.
pub(crate) fn run(flags: &Flags, out: &mut Output) -> anyhow::Result<Outcome> {
    let checkpoint = open(&flags.dir)?;
    let options = ExportOptions {
        format: match flags.format {
            Format::Safetensors => ExportFormat::Safetensors,
            Format::Burnpack => ExportFormat::Burnpack,
        },
        file_bytes: flags.max_file_bytes,
    };
    let exported = export(&checkpoint, &flags.to, &options, &out.bar("export"))?;
    let Exported {
        tensors,
        files,
        bytes,
        tied,
    } = exported;
    let names: BTreeMap<_, _> = tied.iter().cloned().collect();
    let answer = json!({
        "dir": flags.to, "tensors": tensors, "files": files, "bytes": bytes, "tied": names,
    });
    out.answer(&answer, |out| {
        let (dir, files, size) = (flags.to.display(), files.len(), human_bytes(bytes));
        writeln!(out, "{dir}: {tensors} tensor(s) in {files} file(s), {size}")?;
        for (tied, name) in &tied {
            let (tied, name) = (visible(tied), visible(name));
            writeln!(
                out,
                "{tied} is tied to {name} and is written only under that name"
            )?;
        }
        Ok(())
    })?;
    Ok(Outcome::Done)
}
