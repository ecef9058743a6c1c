//! Whether checkpoints are whole.

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
    /// Directories, or URLs in buckets, of steps, or of runs: then all their steps
    #[arg(required = true, value_name = "DIR")]
    dirs: Vec<PathBuf>,
}

/// Reads all of them; one that can't be read does not keep the others from it.
pub(crate) fn run(flags: &Flags, out: &mut dyn Write) -> anyhow::Result<Outcome> {
    let mut outcome = Outcome::Fine;
    for dir in &flags.dirs {
        outcome = outcome.max(go_on(check_all(dir, out))?);
    }
    Ok(outcome)
}

/// Says an error and goes on, unless nobody reads any more.
fn go_on(checked: anyhow::Result<Outcome>) -> anyhow::Result<Outcome> {
    match checked {
        Err(error) if !is_broken_pipe(&error) => {
            say_error(&error);
            Ok(Outcome::Failed)
        }
        checked => checked,
    }
}

/// Reads a checkpoint, or all of a run.
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

/// Reads everything of a checkpoint and names what is damaged.
fn check(opened: Result<Checkpoint, LoadError>, out: &mut dyn Write) -> anyhow::Result<Outcome> {
    let damage = match opened {
        Ok(checkpoint) => {
            let damage = checkpoint.damage(&Bar::new("verify"));
            if damage.is_empty() {
                let files = &checkpoint.manifest().files;
                let bytes = human_bytes(files.iter().map(|file| file.size_bytes).sum());
                let (dir, files) = (checkpoint.dir().display(), files.len());
                writeln!(out, "{dir}: whole, {files} file(s), {bytes}")?;
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

/// Whether an error says nothing about the checkpoint: a disk that fails, a file that may not be read, or
/// another version of the format.
fn is_failure(error: &LoadError) -> bool {
    !matches!(error.class(), ErrorClass::Damaged | ErrorClass::Missing)
}
