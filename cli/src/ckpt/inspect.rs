//! `ckpt inspect`: shows the contents of a checkpoint.

use std::{
    collections::{BTreeMap, BTreeSet},
    io::{self, Write},
    path::PathBuf,
};

use clap::Args;
use serde::Serialize;
use tinderbox_checkpoint::{Checkpoint, Role, Scalar, StoredDType};
use tinderbox_deferred::{NumericFingerprint, human_bytes};

use super::place::Place;
use crate::{
    outcome::Outcome,
    terminal::{Columns, Output, ShownPath, visible},
};

/// Arguments of `inspect`.
#[derive(Args, Debug)]
pub(crate) struct Flags {
    /// Step directory, or run directory for its newest step, or the URL of one in a bucket
    dir: PathBuf,
    /// Show this step of the run
    #[arg(long, value_name = "STEP")]
    step: Option<u64>,
}

/// Shows a checkpoint.
pub(crate) fn run(flags: &Flags, out: &mut Output) -> anyhow::Result<Outcome> {
    let checkpoint = Place::of(&flags.dir)?.look_into(flags.step)?;
    let contents = Contents::of(&checkpoint);
    out.answer(&contents, |out| contents.show(out))?;
    Ok(Outcome::Done)
}

/// The sizes of a checkpoint.
#[derive(Serialize)]
pub(super) struct Sizes {
    seed: u64,
    pub(super) data_position: u64,
    pub(super) world_size: u32,
    files: usize,
    /// Size of the files with tensors.
    pub(super) total_bytes: u64,
    scalars: usize,
}

impl Sizes {
    pub(super) fn of(checkpoint: &Checkpoint) -> Self {
        let manifest = checkpoint.manifest();
        Self {
            seed: manifest.seed,
            data_position: manifest.data_position,
            world_size: manifest.world_size,
            files: manifest.files.len(),
            total_bytes: manifest.files.iter().map(|file| file.size_bytes).sum(),
            scalars: checkpoint.scalars().len(),
        }
    }
}

/// The output for a checkpoint.
#[derive(Serialize)]
struct Contents<'a> {
    dir: ShownPath,
    attempt: String,
    step: u64,
    #[serde(flatten)]
    sizes: Sizes,
    has_plan: bool,
    metadata: serde_json::Value,
    /// Of the last step.
    learning_rate: Option<f64>,
    /// What decided the losses, by name.
    settings: BTreeMap<String, String>,
    /// What the processor computed, by class of operations.
    numerics: NumericFingerprint,
    tensors: Vec<Tensor<'a>>,
}

/// The output for a tensor.
#[derive(Serialize)]
struct Tensor<'a> {
    name: &'a str,
    tied: &'a [String],
    role: Role,
    dtype: StoredDType,
    shape: &'a [u64],
    chunks: usize,
    ranks: BTreeSet<u32>,
    bytes: u64,
}

impl<'a> Contents<'a> {
    fn of(checkpoint: &'a Checkpoint) -> Self {
        let manifest = checkpoint.manifest();
        let files = manifest.files.iter();
        let ranks: BTreeMap<&str, u32> = files.map(|file| (&*file.name, file.rank)).collect();
        let tensors = manifest.tensors.iter().map(|tensor| {
            let files = tensor.chunks.iter().map(|chunk| &*chunk.file);
            Tensor {
                name: &tensor.name,
                tied: &tensor.tied,
                role: tensor.role,
                dtype: tensor.dtype,
                shape: &tensor.shape,
                chunks: tensor.chunks.len(),
                ranks: files.filter_map(|file| ranks.get(file).copied()).collect(),
                bytes: tensor.bytes(),
            }
        });
        Self {
            dir: checkpoint.dir().into(),
            attempt: manifest.attempt.to_string(),
            step: manifest.step,
            sizes: Sizes::of(checkpoint),
            has_plan: manifest.has_plan(),
            metadata: manifest.metadata(),
            learning_rate: match checkpoint.scalars().get("learning_rate") {
                Some(Scalar::Float(rate)) => Some(*rate),
                _ => None,
            },
            settings: manifest.settings(),
            numerics: manifest.numerics().into(),
            tensors: tensors.collect(),
        }
    }

    /// Compares what the processor computed with what this one computes.
    fn numerics_in_words(&self) -> String {
        if self.numerics.classes().is_empty() {
            return not_saved();
        }
        let differing = NumericFingerprint::of_process().differences(&self.numerics);
        match differing.is_empty() {
            true => "the same as on this machine".to_owned(),
            false => format!(
                "other bits than on this machine in {}",
                differing.join(", ")
            ),
        }
    }

    fn show(&self, out: &mut Output) -> io::Result<()> {
        let sizes = &self.sizes;
        writeln!(out, "{}", self.dir)?;
        for (name, value) in [
            ("step", self.step.to_string()),
            ("seed", sizes.seed.to_string()),
            ("data position", sizes.data_position.to_string()),
            ("world size", sizes.world_size.to_string()),
            ("files", sizes.files.to_string()),
            ("total bytes", in_words(sizes.total_bytes)),
            ("tensors", self.tensors.len().to_string()),
            ("scalars", sizes.scalars.to_string()),
            ("plan", if self.has_plan { "yes" } else { "no" }.to_owned()),
            ("metadata", self.metadata.to_string()),
            (
                "learning rate",
                self.learning_rate
                    .map_or_else(not_saved, |rate| rate.to_string()),
            ),
            ("numerics", self.numerics_in_words()),
        ] {
            writeln!(out, "{name:<14} {}", visible(&value))?;
        }
        for (name, value) in &self.settings {
            writeln!(out, "setting        {}: {}", visible(name), visible(value))?;
        }
        let header = ["name", "role", "dtype", "shape", "chunks", "ranks", "bytes"];
        let mut columns = Columns::new(&header, &[4, 6]);
        for tensor in &self.tensors {
            columns.push(vec![
                tensor.name.to_owned(),
                tensor.role.to_string(),
                tensor.dtype.to_string(),
                format!("{:?}", tensor.shape),
                tensor.chunks.to_string(),
                ranges(&tensor.ranks),
                tensor.bytes.to_string(),
            ]);
        }
        columns.show(out)?;
        for tensor in self.tensors.iter().filter(|tensor| !tensor.tied.is_empty()) {
            let names = format!("{} = {}", tensor.name, tensor.tied.join(" = "));
            writeln!(out, "tied: {}", visible(&names))?;
        }
        Ok(())
    }
}

fn not_saved() -> String {
    "not saved".to_owned()
}

fn in_words(bytes: u64) -> String {
    match bytes {
        0..1024 => bytes.to_string(),
        _ => format!("{bytes} ({})", human_bytes(bytes)),
    }
}

/// Formats ranks as `0-3,5`.
fn ranges(ranks: &BTreeSet<u32>) -> String {
    let mut ranges: Vec<(u32, u32)> = Vec::new();
    for rank in ranks {
        match ranges.last_mut() {
            Some((_, last)) if *last + 1 == *rank => *last = *rank,
            _ => ranges.push((*rank, *rank)),
        }
    }
    let texts = ranges.iter().map(|(first, last)| match first == last {
        true => first.to_string(),
        false => format!("{first}-{last}"),
    });
    texts.collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_shown_as_ranges() {
        for (ranks, expected) in [
            (&[][..], ""),
            (&[3], "3"),
            (&[0, 1, 2], "0-2"),
            (&[0, 2, 3, 5], "0,2-3,5"),
        ] {
            assert_eq!(ranges(&ranks.iter().copied().collect()), expected);
        }
    }
}
