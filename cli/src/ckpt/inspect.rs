//! `ckpt inspect` and `ckpt plan`: show a checkpoint.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::Path;

use anyhow::bail;
use clap::Args;
use serde::Serialize;
use tinderbox_checkpoint::{Checkpoint, Role};
use tinderbox_deferred::{NumericFingerprint, human_bytes};
use tinderbox_ids::text::{count_text, group_digits};
use tinderbox_planner::Plan;

use super::place::{Chosen, open};
use super::tensors::{self, Tensor, ranges};
use crate::outcome::{No, Outcome};
use crate::terminal::{Output, show_table, visible};

/// Arguments of `inspect`.
#[derive(Args, Debug)]
pub(crate) struct InspectFlags {
    #[command(flatten)]
    from: Chosen,
    /// List every tensor, instead of one row for equal layers
    #[arg(long)]
    all: bool,
}

/// Shows a checkpoint.
pub(crate) fn inspect(flags: &InspectFlags, out: &mut Output) -> anyhow::Result<Outcome> {
    let checkpoint = flags.from.look_into()?;
    let contents = Contents::of(&checkpoint);
    out.answer(&contents, |out| {
        contents.show(out)?;
        match flags.all {
            true => contents.show_tensors(out),
            false => contents.show_modules(&checkpoint, out),
        }
    })
}

/// Prints the plan of a checkpoint.
pub(crate) fn plan(from: &Chosen, out: &mut Output) -> anyhow::Result<Outcome> {
    out.write_all(plan_of(&from.open()?)?.as_bytes())?;
    Ok(Outcome::DONE)
}

/// Returns the plan of a checkpoint, of this step of a run or of its newest one, in the form of a plan file. A plan of another
/// version has the form in which it was saved.
pub(crate) fn saved_plan(dir: &Path, step: Option<u64>) -> anyhow::Result<String> {
    plan_of(&open(dir, step)?)
}

fn plan_of(checkpoint: &Checkpoint) -> anyhow::Result<String> {
    let Some(plan) = checkpoint.plan()? else {
        let dir = checkpoint.dir().display();
        bail!(No(format!("{dir} was saved without a plan")));
    };
    let text = serde_json::to_string_pretty(&plan)?;
    Ok(Plan::from_json(&text).map_or(text + "\n", |plan| plan.to_json()))
}

/// The text for values that older checkpoints lack.
const NOT_SAVED: &str = "not saved";

/// The sizes of a checkpoint.
#[derive(Serialize)]
pub(super) struct Sizes {
    seed: u64,
    pub(super) data_position: u64,
    pub(super) world_size: u32,
    files: usize,
    /// The size of the files with tensors.
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
    dir: String,
    attempt: String,
    step: u64,
    #[serde(flatten)]
    sizes: Sizes,
    has_plan: bool,
    metadata: serde_json::Value,
    /// The rate of the last step.
    learning_rate: Option<f64>,
    /// The settings that affect the losses, by name.
    settings: BTreeMap<String, String>,
    /// The digests of the processor, by class of operations.
    numerics: NumericFingerprint,
    tensors: Vec<Tensor<'a>>,
}

impl<'a> Contents<'a> {
    fn of(checkpoint: &'a Checkpoint) -> Self {
        let manifest = checkpoint.manifest();
        let rate = checkpoint.scalars().get("learning_rate");
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
            dir: checkpoint.dir().display().to_string(),
            attempt: manifest.attempt.to_string(),
            step: manifest.step,
            sizes: Sizes::of(checkpoint),
            has_plan: manifest.has_plan(),
            metadata: manifest.metadata(),
            learning_rate: rate.and_then(|rate| f64::try_from(*rate).ok()),
            settings: manifest.settings(),
            numerics: manifest.numerics().into(),
            tensors: tensors.collect(),
        }
    }

    /// Compares the digests of the processor with the digests of this machine.
    fn numerics_in_words(&self) -> String {
        if self.numerics.classes().is_empty() {
            return NOT_SAVED.to_owned();
        }
        let differing = NumericFingerprint::of_process().differences(&self.numerics);
        match &*differing.join(", ") {
            "" => "the same as on this machine".to_owned(),
            classes => format!("other bits than on this machine in {classes}"),
        }
    }

    /// Prints the summary.
    fn show(&self, out: &mut Output) -> io::Result<()> {
        let sizes = &self.sizes;
        let rate = self.learning_rate.map(|rate| rate.to_string());
        let files = format!("{}, {}", sizes.files, human_bytes(sizes.total_bytes));
        writeln!(out, "{}", self.dir)?;
        for (name, value) in [
            ("step", self.step.to_string()),
            ("seed", sizes.seed.to_string()),
            ("data position", sizes.data_position.to_string()),
            ("world size", sizes.world_size.to_string()),
            ("files", files),
            ("parameters", self.parameters_in_words()),
            ("optimizer", self.state_in_words()),
            ("plan", if self.has_plan { "yes" } else { "no" }.to_owned()),
            ("metadata", self.metadata.to_string()),
            ("learning rate", rate.unwrap_or(NOT_SAVED.to_owned())),
            ("numerics", self.numerics_in_words()),
        ] {
            writeln!(out, "{name:<14} {}", visible(&value))?;
        }
        for (name, value) in &self.settings {
            writeln!(out, "setting        {}: {}", visible(name), visible(value))?;
        }
        Ok(())
    }

    /// Returns the tensors of a role, and their bytes.
    fn of_role(&self, role: Role) -> (Vec<&Tensor<'a>>, String) {
        let tensors = self.tensors.iter().filter(|tensor| tensor.role == role);
        let tensors: Vec<&Tensor<'a>> = tensors.collect();
        let bytes: u64 = tensors.iter().map(|tensor| tensor.bytes).sum();
        (tensors, human_bytes(bytes))
    }

    fn parameters_in_words(&self) -> String {
        let (tensors, bytes) = self.of_role(Role::Model);
        let elements = tensors.iter().map(|tensor| tensor.elements());
        let elements = group_digits(elements.sum());
        let tensors = count_text(tensors.len(), "tensor");
        format!("{elements} in {tensors}, {bytes}")
    }

    fn state_in_words(&self) -> String {
        let (tensors, bytes) = self.of_role(Role::State);
        if tensors.is_empty() && self.sizes.scalars == 0 {
            return "no state".to_owned();
        }
        let tensors = count_text(tensors.len(), "tensor");
        let scalars = count_text(self.sizes.scalars, "scalar");
        format!("{tensors}, {bytes}, and {scalars}")
    }

    /// Prints the modules; equal layers are one row.
    fn show_modules(&self, checkpoint: &Checkpoint, out: &mut Output) -> io::Result<()> {
        let rows = tensors::rows(&self.tensors, checkpoint);
        show_table(&tensors::COLUMNS, &[5], rows, out)?;
        self.show_tied(out)?;
        writeln!(out, "--all lists every tensor")
    }

    /// Prints every tensor.
    fn show_tensors(&self, out: &mut Output) -> io::Result<()> {
        let header = ["name", "role", "dtype", "shape", "chunks", "ranks", "bytes"];
        let rows = self.tensors.iter().map(|tensor| {
            let (name, role) = (tensor.name.to_owned(), tensor.role.to_string());
            let (dtype, shape) = (tensor.dtype_name(), format!("{:?}", tensor.shape));
            let (chunks, ranks) = (tensor.chunks.to_string(), ranges(&tensor.ranks));
            let bytes = human_bytes(tensor.bytes);
            vec![name, role, dtype, shape, chunks, ranks, bytes]
        });
        show_table(&header, &[4, 6], rows, out)?;
        self.show_tied(out)
    }

    fn show_tied(&self, out: &mut Output) -> io::Result<()> {
        let mut tied = self.tensors.iter().filter(|tensor| !tensor.tied.is_empty());
        tied.try_for_each(|tensor| {
            let names = format!("{} = {}", tensor.name, tensor.tied.join(" = "));
            writeln!(out, "tied: {}", visible(&names))
        })
    }
}
