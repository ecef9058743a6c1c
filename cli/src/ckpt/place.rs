//! What a directory or a URL on the command line stands for.

use std::{path::Path, sync::Arc};

use anyhow::{Context, bail};
use tinderbox_checkpoint::{Checkpoint, LoadError, Run, store::BucketStore};

use crate::terminal::say;

/// The file that makes a directory a checkpoint.
const MANIFEST_FILE: &str = "manifest.json";

/// A directory that holds a checkpoint, or the checkpoints of a run.
#[derive(Debug)]
pub(super) enum Place {
    /// A step, or why it can't be opened.
    Step(Box<Result<Checkpoint, LoadError>>),
    /// The directory of a run, with its steps in order; there is at least one.
    Run(Run, Vec<u64>),
}

/// The run in a directory, or in a bucket where its URL is given.
pub(super) fn run_at(dir: &Path) -> anyhow::Result<Run> {
    match url_of(dir) {
        Some(url) => Ok(Run::on(Arc::new(BucketStore::from_url(url)?))),
        None => Ok(Run::local(dir)),
    }
}

/// The URL, where it is one.
pub(super) fn url_of(dir: &Path) -> Option<&str> {
    dir.to_str().filter(|text| text.contains("://"))
}

/// The run and the step that the URL of a step's directory stands for.
fn step_at(url: &str) -> Option<(&Path, u64)> {
    let (run, name) = url.trim_end_matches('/').rsplit_once('/')?;
    let step = name.strip_prefix("step-")?.parse().ok()?;
    Some((Path::new(run), step))
}

impl Place {
    /// What it is.
    pub(super) fn of(dir: &Path) -> anyhow::Result<Self> {
        if let Some((run, step)) = url_of(dir).and_then(step_at) {
            return match run_at(run)?.open(step) {
                // Not damage: there is nothing.
                Err(error @ LoadError::NotPublished { .. }) => Err(error.into()),
                opened => Ok(Self::Step(Box::new(opened))),
            };
        }
        if url_of(dir).is_none() && dir.join(MANIFEST_FILE).exists() {
            return Ok(Self::Step(Box::new(Checkpoint::open(dir))));
        }
        let run = run_at(dir)?;
        let steps = run.steps()?;
        if steps.is_empty() {
            bail!(
                "{} is neither a checkpoint (it has no {MANIFEST_FILE}) nor a run (it has no step-* directory)",
                run.place().display()
            );
        }
        Ok(Self::Run(run, steps))
    }

    /// The checkpoint of a step, or the newest that can be used; newer ones that can't are told.
    pub(super) fn open(self, step: Option<u64>) -> anyhow::Result<Checkpoint> {
        match (self, step) {
            (Self::Step(opened), step) => {
                let checkpoint = (*opened)?;
                match step {
                    Some(step) if step != checkpoint.step() => bail!(
                        "{} is the directory of step {}: give the run's to choose step {step}",
                        checkpoint.dir().display(),
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
