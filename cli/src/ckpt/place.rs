//! What a directory on the command line stands for.

use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use tinderbox_checkpoint::{Checkpoint, Run};

use crate::terminal::say;

/// The file that makes a directory a checkpoint.
const MANIFEST_FILE: &str = "manifest.json";

/// A directory that holds a checkpoint, or the checkpoints of a run.
#[derive(Debug)]
pub(super) enum Place {
    /// The directory of a step.
    Step(PathBuf),
    /// The directory of a run, with its steps in order; there is at least one.
    Run(Run, Vec<u64>),
}

impl Place {
    /// What the directory is.
    pub(super) fn of(dir: &Path) -> anyhow::Result<Self> {
        if dir.join(MANIFEST_FILE).exists() {
            return Ok(Self::Step(dir.to_owned()));
        }
        let run = Run::local(dir);
        let steps = run.steps()?;
        if steps.is_empty() {
            bail!(
                "{} is neither a checkpoint (it has no {MANIFEST_FILE}) nor a run (it has no step-* directory)",
                dir.display()
            );
        }
        Ok(Self::Run(run, steps))
    }

    /// The checkpoint of a step, or the newest that can be used; newer ones that can't are told.
    pub(super) fn open(&self, step: Option<u64>) -> anyhow::Result<Checkpoint> {
        match (self, step) {
            (Self::Step(dir), step) => {
                let checkpoint = Checkpoint::open(dir)?;
                match step {
                    Some(step) if step != checkpoint.step() => bail!(
                        "{} is the directory of step {}: give the run's to choose step {step}",
                        dir.display(),
                        checkpoint.step()
                    ),
                    _ => Ok(checkpoint),
                }
            }
            (Self::Run(run, _), Some(step)) => Ok(run.open(step)?),
            (Self::Run(run, _), None) => {
                let latest = run.latest()?.context("the run has no step any more")?;
                for reason in latest.skipped {
                    say("warning", &format!("skipped: {}", reason.chain()));
                }
                Ok(latest.checkpoint)
            }
        }
    }
}

/// The checkpoint in a directory: of a step, or the newest of a run.
pub(super) fn open(dir: &Path) -> anyhow::Result<Checkpoint> {
    Place::of(dir)?.open(None)
}
