//! `ckpt cp`, `ckpt reshard` and `ckpt export`: write a checkpoint to another place, in another form.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{anyhow, bail};
use clap::Args;
use serde::Serialize;
use tinderbox_checkpoint::tools::{
    self, CopyOptions, ExportFormat, ExportLayout, ExportOptions, ReshardOptions, TensorSplit,
    ToolError,
};
use tinderbox_checkpoint::{Checkpoint, Regex, Role, Run, SaveError};
use tinderbox_deferred::human_bytes;
use tinderbox_ids::text::count_text;

use super::place::{Chosen, has_name_of_step, refuse_in_step, run_at};
use crate::outcome::Outcome;
use crate::terminal::{Output, visible};

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
    /// Saves to the run. If that fails, removes the directories that it has created.
    pub(crate) fn save<T>(
        &self,
        write: impl FnOnce(&Run) -> anyhow::Result<T>,
    ) -> anyhow::Result<T> {
        let to = &self.to;
        if has_name_of_step(to) {
            bail!("{} is a step, not a run", to.display());
        }
        refuse_in_step(to)?;
        let missing: Vec<&Path> = to.ancestors().take_while(|dir| !dir.exists()).collect();
        // The innermost comes first; a directory with contents stays.
        let remove = |_: &_| missing.iter().for_each(|dir| drop(fs::remove_dir(dir)));
        write(&run_at(to)?).inspect_err(remove)
    }

    /// Prints the directory of the new checkpoint.
    pub(crate) fn print(&self, dir: &Path, out: &mut Output) -> anyhow::Result<Outcome> {
        let dir = dir.display().to_string();
        let answer = BTreeMap::from([("dir", &dir)]);
        out.answer(&answer, |out| writeln!(out, "{dir}"))
    }
}

/// Converts the error of a save to a run; its advice names flags of the command, not items of the library.
pub(crate) fn in_own_words(error: ToolError) -> anyhow::Error {
    match error {
        ToolError::Save(SaveError::StepExists { path }) => anyhow!(
            "{} already exists: use --replace to replace it, or save to another run (--to)",
            path.display()
        ),
        error => error.into(),
    }
}

/// Copies the checkpoint.
pub(crate) fn cp(from: &Chosen, saved: &Saved, out: &mut Output) -> anyhow::Result<Outcome> {
    let (checkpoint, replace) = (from.open()?, saved.replace);
    let dir = saved.save(|to| {
        let copied = tools::copy(&checkpoint, to, &CopyOptions { replace }, &out.bar("cp"));
        copied.map_err(in_own_words)
    })?;
    saved.print(&dir, out)
}

/// Arguments of `reshard`.
#[derive(Args, Debug)]
pub(crate) struct ReshardFlags {
    #[command(flatten)]
    from: Chosen,
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
pub(crate) fn reshard(flags: &ReshardFlags, out: &mut Output) -> anyhow::Result<Outcome> {
    let checkpoint = flags.from.open()?;
    let options = ReshardOptions {
        split: match flags.rows {
            true => TensorSplit::Rows,
            false => TensorSplit::Whole,
        },
        replace: flags.saved.replace,
    };
    let dir = flags.saved.save(|to| {
        let saved = tools::reshard(&checkpoint, to, flags.ranks, &options, &out.bar("reshard"));
        saved.map_err(in_own_words)
    })?;
    flags.saved.print(&dir, out)
}

/// Arguments of `export`.
#[derive(Args, Debug)]
pub(crate) struct ExportFlags {
    #[command(flatten)]
    from: Chosen,
    /// Directory to create
    #[arg(long, value_name = "DIR")]
    to: PathBuf,
    /// Files to write: `safetensors` as in the directories of Hugging Face, or one `model.bpk` for Burn
    #[arg(long, value_parser = ["safetensors", "burnpack"], default_value = "safetensors")]
    format: String,
    /// Write PyTorch's names and layouts: a linear weight as [out, in], `weight` and `bias` for a norm's `gamma` and
    /// `beta`. For checkpoints with the types of their modules, which pipelines save since version 1.2 of the format
    #[arg(long)]
    pytorch: bool,
    /// Rename tensors: in every name, the first match of a regular expression is replaced; `$1` refers to a group. May be
    /// given several times; applies in this order, after --pytorch
    #[arg(long, value_name = "PATTERN=REPLACEMENT", value_parser = rename)]
    rename: Vec<(Regex, String)>,
    /// Maximum bytes of tensors per `safetensors` file; a larger tensor has its own file
    #[arg(long, value_name = "N", default_value_t = ExportOptions::default().file_bytes)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..))]
    max_file_bytes: u64,
}

/// Parses a rename. The pattern ends at the first `=`, which it can contain as `\x3d`.
pub(crate) fn rename(text: &str) -> Result<(Regex, String), String> {
    let parts = text.split_once('=');
    let (pattern, replacement) = parts.ok_or("no `=` between pattern and replacement")?;
    // The error of a pattern has several lines.
    let pattern = Regex::new(pattern).map_err(|error| {
        let error = error.to_string();
        let reason = error.lines().last().unwrap_or_default();
        let reason = reason.trim_start_matches("error: ");
        format!("`{pattern}` is not a regular expression: {reason}")
    })?;
    let mut groups = groups_of(replacement).into_iter();
    let unknown = groups.find(|group| match group.parse::<usize>() {
        Ok(index) => index >= pattern.captures_len(),
        Err(_) => !pattern.capture_names().flatten().any(|name| name == *group),
    });
    if let Some(group) = unknown {
        let hint = match group.split_once(|c: char| !c.is_ascii_digit()) {
            Some((digits, _)) if !digits.is_empty() => {
                let rest = &group[digits.len()..];
                format!("; a group before other characters is written `${{{digits}}}{rest}`")
            }
            _ => String::new(),
        };
        return Err(format!("the pattern has no group `{group}`{hint}"));
    }
    Ok((pattern, replacement.to_owned()))
}

/// Returns the groups that a replacement refers to.
fn groups_of(replacement: &str) -> Vec<&str> {
    let reference = Regex::new(r"\$(?:\$|\{([^}]*)\}|([0-9A-Za-z_]+))");
    let reference = reference.expect("the pattern is well-formed");
    let found = reference.captures_iter(replacement);
    let groups = found.filter_map(|found| found.get(1).or(found.get(2)));
    groups.map(|group| group.as_str()).collect()
}

/// The answer: the written files.
#[derive(Serialize)]
struct Answer {
    dir: String,
    tensors: usize,
    files: Vec<String>,
    bytes: u64,
    /// The names that are not written, each with the written name of the same tensor.
    tied: BTreeMap<String, String>,
}

/// Exports the parameters.
pub(crate) fn export(flags: &ExportFlags, out: &mut Output) -> anyhow::Result<Outcome> {
    let checkpoint = flags.from.open()?;
    refuse_in_step(&flags.to)?;
    let options = ExportOptions {
        format: match &*flags.format {
            "burnpack" => ExportFormat::Burnpack,
            _ => ExportFormat::Safetensors,
        },
        layout: match flags.pytorch {
            true => ExportLayout::PyTorch,
            false => ExportLayout::Burn,
        },
        renames: flags.rename.clone(),
        file_bytes: flags.max_file_bytes,
        ..ExportOptions::default()
    };
    let exported = tools::export(&checkpoint, &flags.to, &options, &out.bar("export"));
    let exported = exported.map_err(|error| match error {
        ToolError::NoModules { .. } => without_modules(&checkpoint),
        error => error.into(),
    })?;
    let answer = Answer {
        dir: flags.to.display().to_string(),
        tensors: exported.tensors,
        files: exported.files,
        bytes: exported.bytes,
        tied: exported.tied.into_iter().collect(),
    };
    out.answer(&answer, |out| {
        let (dir, size) = (&answer.dir, human_bytes(answer.bytes));
        let tensors = count_text(answer.tensors, "tensor");
        let files = count_text(answer.files.len(), "file");
        writeln!(out, "{dir}: {tensors} in {files}, {size}")?;
        answer.tied.iter().try_for_each(|(tied, name)| {
            let (tied, name) = (visible(tied), visible(name));
            let how = format!("is tied to {name} and is written only under that name");
            writeln!(out, "{tied} {how}")
        })
    })
}

/// Returns the error of an export for PyTorch from a checkpoint without the types of its modules.
fn without_modules(checkpoint: &Checkpoint) -> anyhow::Error {
    let manifest = checkpoint.manifest();
    let has_state = checkpoint.tensors(Role::State).next().is_some();
    let reason = match has_state || !checkpoint.scalars().is_empty() || manifest.data_position > 0 {
        true => {
            "an earlier version saved it, or a program without a model; resume the run with this version, and export a step \
             that it saves"
        }
        false => {
            "it was converted, or saved without a model; if it was converted from files of PyTorch, it still has their names \
             and layouts: leave out --pytorch; otherwise export the checkpoint that it was converted from"
        }
    };
    let dir = checkpoint.dir().display();
    anyhow!("{dir} does not have the types of its modules, which --pytorch needs: {reason}")
}
