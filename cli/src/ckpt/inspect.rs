//! `ckpt inspect`, `ckpt plan` and `ckpt ls`: show checkpoints.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Write};
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::bail;
use humantime::format_rfc3339_seconds;
use serde::Serialize;
use tinderbox_checkpoint::{Checkpoint, LoadError, Role, Run, StoredDType};
use tinderbox_deferred::{NumericFingerprint, human_bytes};
use tinderbox_planner::Plan;

use super::place::{Place, open};
use crate::outcome::{No, Outcome};
use crate::terminal::{Output, one_line, show_table, visible};

/// Shows a checkpoint.
pub(crate) fn inspect(dir: &Path, step: Option<u64>, out: &mut Output) -> anyhow::Result<Outcome> {
    let checkpoint = Place::of(dir)?.look_into(step)?;
    let contents = Contents::of(&checkpoint);
    out.answer(&contents, |out| contents.show(out))
}

/// Prints the plan of a checkpoint.
pub(crate) fn plan(dir: &Path, out: &mut Output) -> anyhow::Result<Outcome> {
    let checkpoint = open(dir)?;
    let Some(plan) = checkpoint.plan()? else {
        let dir = checkpoint.dir().display();
        bail!(No(format!("{dir} was saved without a plan")));
    };
    let text = serde_json::to_string_pretty(&plan)?;
    // In the form of a plan file. A plan of another version is printed as it was saved.
    let text = Plan::from_json(&text).map_or(text + "\n", |plan| plan.to_json());
    out.write_all(text.as_bytes())?;
    Ok(Outcome::DONE)
}

/// The text for values that older checkpoints lack.
const NOT_SAVED: &str = "not saved";

/// The sizes of a checkpoint.
#[derive(Serialize)]
struct Sizes {
    seed: u64,
    data_position: u64,
    world_size: u32,
    files: usize,
    /// The size of the files with tensors.
    total_bytes: u64,
    scalars: usize,
}

impl Sizes {
    fn of(checkpoint: &Checkpoint) -> Self {
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

    fn show(&self, out: &mut Output) -> io::Result<()> {
        let sizes = &self.sizes;
        let rate = self.learning_rate.map(|rate| rate.to_string());
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
            ("learning rate", rate.unwrap_or(NOT_SAVED.to_owned())),
            ("numerics", self.numerics_in_words()),
        ] {
            writeln!(out, "{name:<14} {}", visible(&value))?;
        }
        for (name, value) in &self.settings {
            writeln!(out, "setting        {}: {}", visible(name), visible(value))?;
        }
        let header = ["name", "role", "dtype", "shape", "chunks", "ranks", "bytes"];
        let rows = self.tensors.iter().map(|tensor| {
            vec![
                tensor.name.to_owned(),
                tensor.role.to_string(),
                tensor.dtype.to_string(),
                format!("{:?}", tensor.shape),
                tensor.chunks.to_string(),
                ranges(&tensor.ranks),
                tensor.bytes.to_string(),
            ]
        });
        show_table(&header, &[4, 6], rows, out)?;
        for tensor in self.tensors.iter().filter(|tensor| !tensor.tied.is_empty()) {
            let names = format!("{} = {}", tensor.name, tensor.tied.join(" = "));
            writeln!(out, "tied: {}", visible(&names))?;
        }
        Ok(())
    }
}

fn in_words(bytes: u64) -> String {
    match bytes {
        0..1024 => bytes.to_string(),
        _ => format!("{bytes} ({})", human_bytes(bytes)),
    }
}

/// Formats ranks as `0-3,5`.
fn ranges(ranks: &BTreeSet<u32>) -> String {
    let ranks: Vec<u32> = ranks.iter().copied().collect();
    let ranges = ranks.chunk_by(|rank, next| rank + 1 == *next);
    let texts = ranges.map(|range| match range {
        [first, .., last] => format!("{first}-{last}"),
        _ => range[0].to_string(),
    });
    texts.collect::<Vec<_>>().join(",")
}

/// The steps of a run, in ascending order.
#[derive(Serialize)]
struct Listing {
    dir: String,
    steps: Vec<Step>,
    /// Directories of damaged checkpoints.
    set_aside: Vec<String>,
    /// Entries that no command uses or removes.
    foreign: Vec<Foreign>,
}

#[derive(Serialize)]
struct Foreign {
    name: String,
    reason: &'static str,
}

#[derive(Serialize)]
struct Step {
    step: u64,
    valid: bool,
    /// The time of its manifest, in UTC.
    saved_at: Option<String>,
    #[serde(flatten)]
    sizes: Option<Sizes>,
    error: Option<String>,
    /// The target of its directory, if that is a symbolic link.
    link: Option<String>,
}

impl Step {
    fn of(run: &Run, step: u64) -> Self {
        let (opened, link) = (run.open(step), run.link_target(step));
        let checkpoint = opened.as_ref().ok();
        Self {
            step,
            valid: opened.is_ok(),
            saved_at: checkpoint.and_then(Checkpoint::saved_at).and_then(date),
            sizes: checkpoint.map(Sizes::of),
            error: opened.as_ref().err().map(LoadError::chain),
            link: link.map(|target| target.display().to_string()),
        }
    }
}

/// Formats a date of the years 1970 to 9999. A copied file may have any other date.
fn date(time: SystemTime) -> Option<String> {
    const YEAR_10000_S: u64 = 253_402_300_800;
    let since = time.duration_since(UNIX_EPOCH).ok()?;
    (since.as_secs() < YEAR_10000_S).then(|| format_rfc3339_seconds(time).to_string())
}

/// Lists the run.
pub(crate) fn ls(dir: &Path, out: &mut Output) -> anyhow::Result<Outcome> {
    let Place::Run(run, steps) = Place::of(dir)? else {
        bail!("{} is a step, not a run", dir.display());
    };
    let foreign = run.foreign()?.into_iter();
    let foreign = foreign.map(|(name, reason)| Foreign { name, reason });
    let listing = Listing {
        dir: run.place().display().to_string(),
        steps: steps.into_iter().map(|step| Step::of(&run, step)).collect(),
        set_aside: run.set_aside_dirs()?,
        foreign: foreign.collect(),
    };
    out.answer(&listing, |out| show(&listing, out))
}

fn show(listing: &Listing, out: &mut Output) -> io::Result<()> {
    let header = ["step", "saved", "ranks", "bytes", "data position", "valid"];
    let rows = listing.steps.iter().map(|step| {
        let size = |cell: fn(&Sizes) -> String| step.sizes.as_ref().map_or_else(String::new, cell);
        vec![
            step.step.to_string(),
            step.saved_at.clone().unwrap_or_default(),
            size(|sizes| sizes.world_size.to_string()),
            size(|sizes| human_bytes(sizes.total_bytes)),
            size(|sizes| sizes.data_position.to_string()),
            if step.valid { "yes" } else { "no" }.to_owned(),
        ]
    });
    show_table(&header, &[2, 3, 4], rows, out)?;
    for saved in &listing.steps {
        let step = saved.step;
        if let Some(target) = &saved.link {
            writeln!(out, "step {step}: a symbolic link to {}", visible(target))?;
        }
        if let Some(error) = &saved.error {
            writeln!(out, "step {step}: {}", one_line(error))?;
        }
    }
    for dir in &listing.set_aside {
        writeln!(out, "{}: set aside, because it was damaged", visible(dir))?;
    }
    for Foreign { name, reason } in &listing.foreign {
        writeln!(out, "{}: {reason}", visible(name))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

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

    #[test]
    fn times_without_a_date_are_left_out() {
        let second = Duration::from_secs(1);
        let last = UNIX_EPOCH + Duration::from_secs(253_402_300_799);
        for (time, expected) in [
            (UNIX_EPOCH, Some("1970-01-01T00:00:00Z")),
            (last, Some("9999-12-31T23:59:59Z")),
            (last + second, None),
            (UNIX_EPOCH - second, None),
        ] {
            assert_eq!(date(time).as_deref(), expected);
        }
    }
}
