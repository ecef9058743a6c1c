//! `model init` and `model convert`: save parameters as a checkpoint, cast, renamed, for any number of ranks.

use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::anyhow;
use burn::tensor::DType;
use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use serde::Serialize;
use tinderbox_checkpoint::tools::{self, ConvertOptions, SaveOptions, TensorSplit, ToolError};
use tinderbox_checkpoint::{
    CheckpointMeta, LoadError, ModuleTypes, Regex, Run, SaveTensor, TensorEntry,
};
use tinderbox_deferred::{human_bytes, random::Seed};
use tinderbox_ids::text::{count_text, parse_bytes};

use super::given;
use crate::ckpt::{Saved, Weights, in_own_words, parse_step, rename};
use crate::outcome::Outcome;
use crate::terminal::Output;

/// Returns the parser of the dtypes of float parameters.
pub(super) fn float_types() -> impl TypedValueParser<Value = DType> {
    let names = PossibleValuesParser::new(["f64", "f32", "f16", "bf16"]);
    names.map(|name| match &*name.to_ascii_lowercase() {
        "f64" => DType::F64,
        "f32" => DType::F32,
        "f16" => DType::F16,
        _ => DType::BF16,
    })
}

/// Arguments of the commands that save a model.
#[derive(Args, Debug)]
struct SaveFlags {
    /// Cast float parameters to this dtype, rounded to nearest
    #[arg(long, value_parser = float_types(), ignore_case = true)]
    dtype: Option<DType>,
    /// Number of ranks to balance whole tensors over, 1 to 65536
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    ranks: u32,
    /// Cut tensors with at least N rows into N boxes of rows, instead of assigning whole tensors to ranks
    #[arg(long)]
    rows: bool,
    /// Use at most this much memory for the whole process, such as 2GiB: fewer files are written at a time
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    memory: Option<u64>,
    #[command(flatten)]
    saved: Saved,
}

impl SaveFlags {
    fn options(&self) -> SaveOptions {
        SaveOptions {
            split: match self.rows {
                true => TensorSplit::Rows,
                false => TensorSplit::Whole,
            },
            memory_bytes: self.memory,
        }
    }

    fn meta(&self, step: u64) -> CheckpointMeta {
        CheckpointMeta {
            replace: self.saved.replace,
            ..CheckpointMeta::new(step, self.ranks)
        }
    }

    /// Saves to the run as a step, and prints what was saved.
    fn save(
        &self,
        step: u64,
        out: &mut Output,
        write: impl FnOnce(&Run, &Output) -> Result<PathBuf, ToolError>,
    ) -> anyhow::Result<Outcome> {
        let (dir, checkpoint) = self.saved.save(|run| {
            let dir = write(run, out).map_err(explained)?;
            Ok((dir, run.open(step)?))
        })?;
        let manifest = checkpoint.manifest();
        let written = Written {
            dir: dir.display().to_string(),
            tensors: manifest.tensors.len(),
            files: manifest.files.len(),
            bytes: manifest.tensors.iter().map(TensorEntry::bytes).sum(),
        };
        out.answer(&written, |out| {
            let (dir, size) = (&written.dir, human_bytes(written.bytes));
            let tensors = count_text(written.tensors, "tensor");
            let files = count_text(written.files, "file");
            writeln!(out, "{dir}: {tensors} in {files}, {size}")
        })
    }
}

/// The answer: the checkpoint that was saved.
#[derive(Serialize)]
struct Written {
    dir: String,
    tensors: usize,
    files: usize,
    /// The bytes of the tensors.
    bytes: u64,
}

/// Converts the error of a save; its advice names flags of the command.
fn explained(error: ToolError) -> anyhow::Error {
    let is_limit = matches!(error, ToolError::Memory { .. });
    let error = in_own_words(error);
    if is_limit {
        return error.context("--memory is too low");
    }
    let overflow = error.chain().find_map(|cause| match cause.downcast_ref() {
        Some(LoadError::Overflow {
            path,
            tensor,
            value,
            stored,
        }) => Some(anyhow!(
            "tensor `{tensor}` of {} has {value:e}, which is out of the range of --dtype: leave it out to keep {}, or use one \
             with this range",
            path.display(),
            stored.burn().name()
        )),
        _ => None,
    });
    overflow.unwrap_or(error)
}

/// Arguments of `init`.
#[derive(Args, Debug)]
pub(crate) struct InitFlags {
    /// The file of a recorded model, which a program writes with `Deferred::recorded_model`
    #[arg(value_name = "FILE")]
    model: PathBuf,
    /// The seed: the same seed gives the same model, for any number of ranks
    #[arg(long, default_value_t = 0)]
    seed: u64,
    #[command(flatten)]
    save: SaveFlags,
}

/// Computes and saves the parameters.
pub(crate) fn init(flags: &InitFlags, out: &mut Output) -> anyhow::Result<Outcome> {
    let model = given::recorded_model(&flags.model)?;
    let table = model.parameters();
    let source = Arc::new(model.initializer(Seed::new(flags.seed)));
    let dtype = flags.save.dtype;
    let tensors = SaveTensor::of_source(table, source, |parameter| {
        dtype.filter(|_| parameter.dtype.is_float())
    });
    let meta = CheckpointMeta {
        seed: flags.seed,
        modules: ModuleTypes::of(table),
        ..flags.save.meta(0)
    };
    let options = flags.save.options();
    flags.save.save(0, out, |to, out| {
        tools::save_tensors(&tensors, to, meta, &options, &out.bar("init"))
    })
}

/// Arguments of `convert`.
#[derive(Args, Debug)]
pub(crate) struct ConvertFlags {
    /// A safetensors or burnpack file, a directory with model.safetensors or model.safetensors.index.json, a step directory, or
    /// a run directory for its newest step. Layouts are kept: a linear weight of PyTorch stays [out, in], and the program that
    /// loads it sets LoadOptions::pytorch
    #[arg(value_name = "DIR_OR_FILE")]
    from: PathBuf,
    /// Use this step of the run instead of the newest
    #[arg(long, value_name = "STEP", value_parser = parse_step)]
    step: Option<u64>,
    /// Save as this step [default: the step of the checkpoint, or 0]
    #[arg(long, value_name = "STEP", value_parser = parse_step)]
    as_step: Option<u64>,
    /// Rename tensors: in every name, the first match of a regular expression is replaced; `$1` refers to a group. May be
    /// given several times; applies in this order
    #[arg(long, value_name = "PATTERN=REPLACEMENT", value_parser = rename)]
    rename: Vec<(Regex, String)>,
    #[command(flatten)]
    save: SaveFlags,
}

/// Converts the parameters.
pub(crate) fn convert(flags: &ConvertFlags, out: &mut Output) -> anyhow::Result<Outcome> {
    let from = given::weights(&flags.from, flags.step)?;
    let options = ConvertOptions {
        dtype: flags.save.dtype,
        renames: flags.rename.clone(),
        save: flags.save.options(),
    };
    let mut meta = flags.save.meta(flags.as_step.unwrap_or(0));
    if let Weights::Checkpoint(checkpoint) = &from {
        let manifest = checkpoint.manifest();
        meta.step = flags.as_step.unwrap_or(manifest.step);
        (meta.seed, meta.metadata) = (manifest.seed, manifest.metadata());
        // The types of modules are by path, which a rename changes.
        if flags.rename.is_empty() {
            meta.modules = manifest.modules();
        }
    }
    flags.save.save(meta.step, out, |to, out| {
        tools::convert(&from, to, meta, &options, &out.bar("convert"))
    })
}
