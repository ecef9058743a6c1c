//! `ckpt verify`: checks whether checkpoints are intact.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use serde::Serialize;
use tinderbox_checkpoint::{Checkpoint, LoadError};
use tinderbox_deferred::human_bytes;
use tinderbox_ids::text::count_text;

use super::place::{Place, is_lost, outcome_of};
use crate::outcome::Outcome;
use crate::terminal::{Output, one_line, say};

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
                let mut checked = Checked::new(dir, Outcome::of(&error));
                checked.fail(format!("{error:#}"));
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
    fn new(dir: &Path, outcome: Outcome) -> Self {
        Self {
            dir: dir.display().to_string(),
            outcome,
            ..Self::default()
        }
    }

    /// Reads and checks all data of a checkpoint; prints an error that is not damage.
    fn of(dir: &Path, opened: Result<Checkpoint, LoadError>, out: &Output) -> Self {
        let mut checked = Self::new(dir, Outcome::DONE);
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
            let (text, is_damage) = (error.chain(), is_lost(&error));
            checked.outcome = checked.outcome.max(outcome_of(error));
            if is_damage {
                checked.damage.push(text);
            } else if checked.error.is_none() {
                checked.fail(text);
            }
        }
        checked
    }

    /// Prints and keeps an error that does not indicate damage.
    fn fail(&mut self, text: String) {
        say("error", &text);
        self.error = Some(text);
    }

    fn show(&self, out: &mut Output) -> io::Result<()> {
        let (dir, bytes) = (&self.dir, human_bytes(self.bytes));
        if self.intact {
            let files = count_text(self.files, "file");
            writeln!(out, "{dir}: intact, {files}, {bytes}")?;
        } else if !self.damage.is_empty() {
            let errors = count_text(self.damage.len(), "error");
            writeln!(out, "{dir}: damaged, {errors}")?;
        }
        for damage in &self.damage {
            writeln!(out, "damaged: {}", one_line(damage))?;
        }
        Ok(())
    }
}
