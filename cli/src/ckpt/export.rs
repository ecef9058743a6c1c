//! `ckpt export`: writes plain files of the parameters.

use std::{collections::BTreeMap, io::Write, path::PathBuf};

use clap::{Args, ValueEnum};
use serde::Serialize;
use tinderbox_checkpoint::{
    Regex,
    tools::{ExportFormat, ExportLayout, ExportOptions, Exported, export},
};
use tinderbox_deferred::human_bytes;

use super::place::open;
use crate::{
    outcome::Outcome,
    terminal::{Output, ShownPath, visible},
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
    /// Write PyTorch's names and layouts: a linear weight as [out, in], `weight` and `bias` for a norm's `gamma` and
    /// `beta`. For checkpoints with the types of their modules, which pipelines save since version 1.2 of the format
    #[arg(long)]
    pytorch: bool,
    /// Rename tensors: in every name, the first match of a regular expression is replaced; `$1` refers to a group. May be
    /// given several times; applies in this order, after --pytorch
    #[arg(long, value_name = "PATTERN=REPLACEMENT", value_parser = rename)]
    rename: Vec<(Regex, String)>,
    /// Maximum bytes of tensors per `safetensors` file; a larger tensor has its own file
    #[arg(
        long,
        value_name = "N",
        default_value_t = ExportOptions::default().file_bytes,
        value_parser = clap::value_parser!(u64).range(1..)
    )]
    max_file_bytes: u64,
}

/// Parses a rename. The pattern ends at the first `=`, which it can contain as `\x3d`.
pub(crate) fn rename(text: &str) -> Result<(Regex, String), String> {
    let (pattern, replacement) = text
        .split_once('=')
        .ok_or("no `=` between pattern and replacement")?;
    // The error of a pattern has several lines.
    let pattern = Regex::new(pattern).map_err(|error| {
        let error = error.to_string();
        let reason = error.lines().last().unwrap_or_default();
        let reason = reason.trim_start_matches("error: ");
        format!("`{pattern}` is not a regular expression: {reason}")
    })?;
    let unknown = groups_of(replacement).find(|group| match group.parse::<usize>() {
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

/// The groups that a replacement refers to, as the regular expressions read it.
fn groups_of(replacement: &str) -> impl Iterator<Item = &str> {
    let mut rest = replacement;
    std::iter::from_fn(move || {
        loop {
            rest = rest.split_once('$')?.1;
            if let Some(after) = rest.strip_prefix('$') {
                rest = after;
            } else if let Some(after) = rest.strip_prefix('{') {
                let (group, after) = after.split_once('}')?;
                rest = after;
                return Some(group);
            } else {
                let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
                let end = rest.find(|c| !is_name(c)).unwrap_or(rest.len());
                if end > 0 {
                    let (group, after) = rest.split_at(end);
                    rest = after;
                    return Some(group);
                }
            }
        }
    })
}

/// The files.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Format {
    Safetensors,
    Burnpack,
}

/// The answer: what was written.
#[derive(Serialize)]
struct Answer {
    dir: ShownPath,
    tensors: usize,
    files: Vec<String>,
    bytes: u64,
    /// The names that are left out, with the name that is written instead.
    tied: BTreeMap<String, String>,
}

/// Exports the parameters.
pub(crate) fn run(flags: &Flags, out: &mut Output) -> anyhow::Result<Outcome> {
    let checkpoint = open(&flags.dir)?;
    let options = ExportOptions {
        format: match flags.format {
            Format::Safetensors => ExportFormat::Safetensors,
            Format::Burnpack => ExportFormat::Burnpack,
        },
        layout: match flags.pytorch {
            true => ExportLayout::PyTorch,
            false => ExportLayout::Burn,
        },
        renames: flags.rename.clone(),
        file_bytes: flags.max_file_bytes,
        ..ExportOptions::default()
    };
    let exported = export(&checkpoint, &flags.to, &options, &out.bar("export"))?;
    let Exported {
        tensors,
        files,
        bytes,
        tied,
    } = exported;
    let answer = Answer {
        dir: flags.to.as_path().into(),
        tensors,
        files,
        bytes,
        tied: tied.into_iter().collect(),
    };
    out.answer(&answer, |out| {
        let (dir, files, size) = (&answer.dir, answer.files.len(), human_bytes(bytes));
        writeln!(out, "{dir}: {tensors} tensor(s) in {files} file(s), {size}")?;
        for (tied, name) in &answer.tied {
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
