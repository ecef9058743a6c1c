//! `ckpt verify` and `ckpt diff`: check whether checkpoints are intact, and compare them.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use serde::Serialize;
use tinderbox_checkpoint::tools::{self, Diff, Difference, ValueDifference};
use tinderbox_checkpoint::{Checkpoint, LoadError, Scalar};
use tinderbox_deferred::human_bytes;

use super::place::{Place, is_lost, open};
use crate::outcome::Outcome;
use crate::terminal::{Output, one_line, say, visible};

/// The answer for a checkpoint.
#[derive(Default, Serialize)]
struct Checked {
    dir: String,
    intact: bool,
    files: usize,
    bytes: u64,
    damage: Vec<String>,
    /// An error that does not indicate damage.
    error: Option<String>,
    #[serde(skip)]
    outcome: Outcome,
}

/// Checks all checkpoints, also if some of them can't be read.
pub(crate) fn verify(dirs: &[PathBuf], out: &mut Output) -> anyhow::Result<Outcome> {
    let mut all = Vec::new();
    for dir in dirs {
        match Place::of(dir) {
            Ok(Place::Step(opened)) => all.push(Checked::of(dir, *opened, out)),
            Ok(Place::Run(run, steps)) => {
                let check = |step| Checked::of(&run.step_place(step), run.open(step), out);
                all.extend(steps.into_iter().map(check));
            }
            Err(error) => {
                let mut checked = Checked::new(dir);
                checked.fail(format!("{error:#}"), &error);
                all.push(checked);
            }
        }
    }
    out.answer(&BTreeMap::from([("checkpoints", &all)]), |out| {
        all.iter().try_for_each(|checked| checked.show(out))
    })?;
    let outcomes = all.iter().map(|checked| checked.outcome);
    Ok(outcomes.max().unwrap_or_default())
}

impl Checked {
    fn new(dir: &Path) -> Self {
        Self {
            dir: dir.display().to_string(),
            ..Self::default()
        }
    }

    /// Reads and checks all data of a checkpoint; prints an error that is not damage.
    fn of(dir: &Path, opened: Result<Checkpoint, LoadError>, out: &Output) -> Self {
        let mut checked = Self::new(dir);
        let found = match opened {
            Ok(checkpoint) => {
                let files = &checkpoint.manifest().files;
                checked.files = files.len();
                checked.bytes = files.iter().map(|file| file.size_bytes).sum();
                checkpoint.damage(&out.bar("verify"))
            }
            Err(error) => vec![error],
        };
        checked.intact = found.is_empty();
        for error in found {
            // Every error names its directory or file.
            let text = error.chain();
            if is_lost(&error) {
                checked.damage.push(text);
                checked.outcome = checked.outcome.max(Outcome::NO);
            } else if checked.error.is_none() {
                checked.fail(text, &error.into());
            }
        }
        checked
    }

    /// Prints and keeps an error that does not indicate damage.
    fn fail(&mut self, text: String, error: &anyhow::Error) {
        say("error", &text);
        self.outcome = self.outcome.max(Outcome::of(error));
        self.error = Some(text);
    }

    fn show(&self, out: &mut Output) -> io::Result<()> {
        let (dir, files, bytes) = (&self.dir, self.files, human_bytes(self.bytes));
        if self.intact {
            writeln!(out, "{dir}: intact, {files} file(s), {bytes}")?;
        } else if !self.damage.is_empty() {
            writeln!(out, "{dir}: damaged, {} error(s)", self.damage.len())?;
        }
        for damage in &self.damage {
            writeln!(out, "damaged: {}", one_line(damage))?;
        }
        Ok(())
    }
}

/// Compares two checkpoints.
pub(crate) fn diff(first: &Path, second: &Path, out: &mut Output) -> anyhow::Result<Outcome> {
    let (first, second) = (open(first)?, open(second)?);
    let found = tools::diff(&first, &second, &out.bar("diff"))?;
    out.answer(&found, |out| show(&found, out))?;
    Ok(Outcome::of_answer(found.is_empty()))
}

fn show(found: &Diff, out: &mut Output) -> io::Result<()> {
    for tensor in &found.tensors {
        let name = &tensor.name;
        let how = match &tensor.difference {
            Difference::OnlyFirst => "only in the first".to_owned(),
            Difference::OnlySecond => "only in the second".to_owned(),
            Difference::Form {
                first_dtype,
                first_shape,
                second_dtype,
                second_shape,
            } => format!(
                "{first_dtype} of shape {first_shape:?}, in the second {second_dtype} of shape {second_shape:?}"
            ),
            Difference::Names { first, second } => {
                let (first, second) = (others(name, first), others(name, second));
                format!("also called {first}, in the second {second}")
            }
            Difference::Values(values) => in_words(values),
        };
        writeln!(out, "{} {}: {}", tensor.role, visible(name), visible(&how))?;
    }
    for scalar in &found.scalars {
        let (first, second) = (value(scalar.first), value(scalar.second));
        let name = visible(&scalar.name);
        writeln!(out, "scalar {name}: {first}, in the second {second}")?;
    }
    let (tensors, scalars) = (found.tensors.len(), found.scalars.len());
    write!(out, "{tensors} difference(s) of tensors, ")?;
    write!(out, "{scalars} of scalars; ")?;
    let (tensors, scalars) = (found.equal_tensors, found.equal_scalars);
    writeln!(out, "{tensors} tensor(s) and {scalars} scalar(s) are equal")
}

/// Returns the names other than the reported one.
fn others(name: &str, names: &[String]) -> String {
    let others: Vec<&str> = names.iter().map(|n| &**n).filter(|n| *n != name).collect();
    match others.is_empty() {
        true => "nothing else".to_owned(),
        false => others.join(", "),
    }
}

fn in_words(values: &ValueDifference) -> String {
    let (elements, differing) = (values.elements, values.differing);
    let mut text = format!("{differing} of {elements} element(s) differ");
    if let (Some(absolute), Some(relative)) = (values.max_absolute, values.max_relative) {
        text += &format!(", by up to {absolute:e}, relative {relative:e}");
    }
    if values.not_finite > 0 {
        text += &format!(", {} of them infinite or NaN", values.not_finite);
    }
    text
}

fn value(scalar: Option<Scalar>) -> String {
    scalar.map_or_else(|| "missing".to_owned(), |value| value.to_string())
}
