//! `ckpt verify`: checks whether checkpoints are intact.

use std::{
    io::Write,
    path::{Path, PathBuf},
};

use clap::Args;
use tinderbox_checkpoint::{Checkpoint, ErrorClass, LoadError};
use tinderbox_deferred::human_bytes;

use super::place::Place;
use crate::{
    outcome::{Outcome, is_broken_pipe},
    terminal::{Bar, one_line, say_error},
};

/// Arguments of `verify`.
#[derive(Args, Debug)]
pub(crate) struct Flags {
    /// Step directories, or run directories for all their steps, or URLs of either in buckets
    #[arg(required = true, value_name = "DIR")]
    dirs: Vec<PathBuf>,
}

/// Checks all of them; one that can't be read does not prevent the check of the others.
pub(crate) fn run(flags: &Flags, out: &mut dyn Write) -> anyhow::Result<Outcome> {
    let mut outcome = Outcome::Fine;
    for dir in &flags.dirs {
        outcome = outcome.max(go_on(check_all(dir, out))?);
    }
    Ok(outcome)
}

/// Prints an error and continues, unless the output is closed.
fn go_on(checked: anyhow::Result<Outcome>) -> anyhow::Result<Outcome> {
    match checked {
        Err(error) if !is_broken_pipe(&error) => {
            say_error(&error);
            Ok(Outcome::Failed)
        }
        checked => checked,
    }
}

/// Checks a checkpoint, or all of a run.
fn check_all(dir: &Path, out: &mut dyn Write) -> anyhow::Result<Outcome> {
    match Place::of(dir)? {
        Place::Step(opened) => check(*opened, out),
        Place::Run(run, steps) => {
            let mut outcome = Outcome::Fine;
            for step in steps {
                outcome = outcome.max(go_on(check(run.open(step), out))?);
            }
            Ok(outcome)
        }
    }
}

/// Reads and checks all data of a checkpoint and reports damage.
fn check(opened: Result<Checkpoint, LoadError>, out: &mut dyn Write) -> anyhow::Result<Outcome> {
    let damage = match opened {
        Ok(checkpoint) => {
            let damage = checkpoint.damage(&Bar::new("verify"));
            if damage.is_empty() {
                let files = &checkpoint.manifest().files;
                let bytes = human_bytes(files.iter().map(|file| file.size_bytes).sum());
                let (dir, files) = (checkpoint.dir().display(), files.len());
                writeln!(out, "{dir}: intact, {files} file(s), {bytes}")?;
                return Ok(Outcome::Fine);
            }
            damage
        }
        Err(error) => vec![error],
    };
    // Every error names its directory or file.
    let (failures, damage): (Vec<_>, Vec<_>) = damage.into_iter().partition(is_failure);
    for error in &damage {
        writeln!(out, "damaged: {}", one_line(&error.chain()))?;
    }
    match failures.into_iter().next() {
        Some(failure) => Err(failure.into()),
        None => Ok(Outcome::Found),
    }
}

/// Returns whether an error does not indicate damage: an I/O error, a denied access, or another version of
/// the format.
fn is_failure(error: &LoadError) -> bool {
    !matches!(error.class(), ErrorClass::Damaged | ErrorClass::Missing)
}
