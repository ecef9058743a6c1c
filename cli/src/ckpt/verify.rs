//! `ckpt verify`: checks whether checkpoints are intact.

use std::{
    io::{self, Write},
    path::PathBuf,
};

use clap::Args;
use serde::Serialize;
use tinderbox_checkpoint::{Checkpoint, ErrorClass, LoadError};
use tinderbox_deferred::human_bytes;

use super::place::Place;
use crate::{
    outcome::Outcome,
    terminal::{Output, ShownPath, one_line, say, say_error},
};

/// Arguments of `verify`.
#[derive(Args, Debug)]
pub(crate) struct Flags {
    /// Step directories, or run directories for all their steps, or URLs of either in buckets
    #[arg(required = true, value_name = "DIR")]
    dirs: Vec<PathBuf>,
}

/// The answer.
#[derive(Serialize)]
struct Answer {
    checkpoints: Vec<Checked>,
}

/// The answer for a checkpoint.
#[derive(Serialize)]
struct Checked {
    dir: ShownPath,
    intact: bool,
    files: usize,
    bytes: u64,
    damage: Vec<String>,
    /// An error that does not indicate damage.
    error: Option<String>,
}

/// Checks all of them; one that can't be read does not prevent the check of the others.
pub(crate) fn run(flags: &Flags, out: &mut Output) -> anyhow::Result<Outcome> {
    let (mut worst, mut all) = (Outcome::Done, Vec::new());
    for dir in &flags.dirs {
        let opened = match Place::of(dir) {
            Ok(Place::Step(opened)) => vec![(dir.clone(), *opened)],
            Ok(Place::Run(run, steps)) => {
                let steps = steps.into_iter();
                let opened = steps.map(|step| (run.step_place(step), run.open(step)));
                opened.collect()
            }
            Err(error) => {
                say_error(&error);
                worst = worst.max(Outcome::of(&error));
                all.push(Checked {
                    dir: dir.as_path().into(),
                    intact: false,
                    files: 0,
                    bytes: 0,
                    damage: Vec::new(),
                    error: Some(format!("{error:#}")),
                });
                continue;
            }
        };
        for (dir, opened) in opened {
            let (checked, outcome) = check(dir.as_path().into(), opened, out);
            worst = worst.max(outcome);
            if !out.json {
                checked.show(out)?;
            }
            all.push(checked);
        }
    }
    out.answer(&Answer { checkpoints: all }, |_| Ok(()))?;
    Ok(worst)
}

/// Reads and checks all data of a checkpoint; prints an error that is not damage.
fn check(
    dir: ShownPath,
    opened: Result<Checkpoint, LoadError>,
    out: &Output,
) -> (Checked, Outcome) {
    let (mut files, mut bytes) = (0, 0);
    let found = match opened {
        Ok(checkpoint) => {
            let listed = &checkpoint.manifest().files;
            files = listed.len();
            bytes = listed.iter().map(|file| file.size_bytes).sum();
            checkpoint.damage(&out.bar("verify"))
        }
        Err(error) => vec![error],
    };
    let mut checked = Checked {
        dir,
        intact: found.is_empty(),
        files,
        bytes,
        damage: Vec::new(),
        error: None,
    };
    let mut outcome = Outcome::Done;
    for error in found {
        // Every error names its directory or file.
        let text = error.chain();
        if matches!(error.class(), ErrorClass::Damaged | ErrorClass::Missing) {
            checked.damage.push(text);
            outcome = outcome.max(Outcome::No);
        } else if checked.error.is_none() {
            say("error", &text);
            outcome = outcome.max(Outcome::of(&error.into()));
            checked.error = Some(text);
        }
    }
    (checked, outcome)
}

impl Checked {
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
