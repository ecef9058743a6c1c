//! Saving and resuming in the processes of a world.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, Instant};

use burn::module::Module;
use serde_json::Value;
use tinderbox_checkpoint::{
    Attempt, AttemptHandle, AttemptId, CheckpointMeta, Latest, LoadError, Run, SaveError, SaveSize,
};
use tinderbox_pipeline::{Batch, Pipeline};
use tinderbox_world::{World, WorldError, with_causes};

use super::Checkpoints;
use super::resume::{Resumed, SkippedCheckpoint, prepare, restore};
use crate::CheckpointsError;

/// Returns what this process has made, if all have made theirs. What it could not make because another process failed is
/// reported as the failure of that one.
fn agree<T, E: std::error::Error>(
    world: &World,
    own: Result<T, E>,
    error_of: impl FnOnce(E) -> CheckpointsError,
) -> Result<T, CheckpointsError> {
    let agreed = world.agree(own.as_ref().map(drop));
    match (own, agreed) {
        (own, Err(error @ WorldError::Failed(_))) => {
            if let Err(own) = own {
                let error = with_causes(&own);
                tracing::warn!(error, "this process could not continue either");
            }
            Err(error.into())
        }
        (Err(own), _) => Err(error_of(own)),
        (Ok(own), agreed) => agreed.map(|()| own).map_err(CheckpointsError::from),
    }
}

/// How long what one process creates may be invisible to the others of a shared file system, by its name and in a listing.
const VISIBLE: Duration = Duration::from_secs(10);
const LISTED: Duration = Duration::from_secs(60);

/// Checks that all processes see what the first creates: the first save would be too late. A place that can't be written to
/// is only read, and not checked.
fn check_shared(run: &Run, world: &World) -> Result<(), CheckpointsError> {
    // A step that no run reaches.
    const STEP: u64 = u64::MAX;
    let mut attempt: Option<Attempt> = None;
    let id = world.from_first(|| {
        let begun = run.begin(CheckpointMeta::new(STEP, world.size() as u32));
        let begun = begun.inspect_err(|error| tracing::warn!(%error, "checkpoints are only read"));
        attempt = begun.ok();
        let id = attempt.as_ref().map(|attempt| attempt.handle().attempt());
        Ok::<_, SaveError>(id)
    })?;
    let joined = match (&attempt, id) {
        (None, Some(id)) => join(run, world, STEP, id, VISIBLE).map(drop),
        _ => Ok(()),
    };
    let seen = joined.map_err(|source| match source {
        SaveError::NoAttempt { .. } => CheckpointsError::NotShared { path: run.place() },
        source => CheckpointsError::open(run)(source),
    });
    agree(world, seen, |error| error)
}

/// Waits until this process sees what the first has begun, as long as no process fails.
fn join(
    run: &Run,
    world: &World,
    step: u64,
    id: AttemptId,
    timeout: Duration,
) -> Result<AttemptHandle, SaveError> {
    const LOOK: Duration = Duration::from_millis(100);
    let started = Instant::now();
    loop {
        let path = match run.join_attempt(step, id, LOOK) {
            Err(SaveError::NoAttempt { path, .. }) => path,
            joined => return joined,
        };
        let waited = started.elapsed();
        if waited >= timeout || world.failure().is_some() {
            return Err(SaveError::NoAttempt {
                step,
                path,
                waited_ms: waited.as_millis(),
            });
        }
    }
}

impl Checkpoints {
    /// As [`Checkpoints::on`], for a run of the processes of a world: all of them make every call, each saves what its rank
    /// holds, and the first begins, publishes and removes. The store is one that all processes reach, such as a shared
    /// directory. A world of one process needs nothing of this.
    ///
    /// A save returns when it is published: [`in_background`](Self::in_background) is refused.
    ///
    /// # Errors
    ///
    /// Returns an error on all processes if the remains can't be removed, or if some process does not see within ten seconds
    /// what the first writes.
    pub fn in_world(run: Run, world: &World) -> Result<Self, CheckpointsError> {
        if world.size() == 1 {
            return Self::on(run);
        }
        // The first process removes what a killed run has left.
        let cleaned = world.is_first().then(|| run.clean().map(drop));
        let cleaned = cleaned.unwrap_or(Ok(()));
        agree(world, cleaned, CheckpointsError::open(&run))?;
        check_shared(&run, world)?;
        Ok(Self::of(run, Some(world.clone())))
    }

    /// Saves what the rank of this process holds, as one of all. If a process is lost and the pipeline continues without it, the
    /// others save again.
    pub(super) fn save_in_world<M: Module + Sync + 'static, B: Batch>(
        &self,
        world: &World,
        pipeline: &mut Pipeline<M, B>,
        data_position: u64,
        metadata: Value,
    ) -> Result<PathBuf, CheckpointsError> {
        if self.in_background {
            return Err(CheckpointsError::BackgroundInWorld);
        }
        let (saves, world) = (self.clone(), world.clone());
        let was_begun = AtomicBool::new(false);
        pipeline.repeatable(move |pipeline| {
            let step = pipeline.steps();
            // Before a process was lost, this call may have published it.
            let is_repeated = was_begun.swap(true, SeqCst);
            let is_published = || Ok::<_, WorldError>(is_repeated && saves.run.open(step).is_ok());
            if world.generation() > 0 && world.from_first(is_published)? {
                return Ok(saves.run.step_place(step));
            }
            saves.save_once(&world, pipeline, data_position, metadata.clone())
        })
    }

    fn save_once<M: Module + Sync + 'static, B: Batch>(
        &self,
        world: &World,
        pipeline: &mut Pipeline<M, B>,
        data_position: u64,
        metadata: Value,
    ) -> Result<PathBuf, CheckpointsError> {
        let step = pipeline.steps();
        let (mut meta, own) = self.contents(pipeline, data_position, metadata)?;
        // The ranks after these have no stage.
        let writers = meta.world_size as usize;
        let mut size = SaveSize::default();
        for of_process in world.all_gather(meta.size)? {
            size.add_size(of_process.unwrap_or_default());
        }
        meta.size = Some(size);

        let mut attempt: Option<Attempt> = None;
        let id = world.from_first(|| {
            let begun = attempt.insert(self.run.begin(meta)?);
            Ok::<_, SaveError>(begun.handle().attempt())
        })?;
        let write = || {
            let handle = match &attempt {
                Some(attempt) => attempt.handle(),
                None => join(&self.run, world, step, id, self.timeout)?,
            };
            if world.rank().index() >= writers {
                return Ok(());
            }
            // A process that waits has no rank.
            let own = own.into_iter().next().unwrap_or_default();
            let save = own.into_save()?;
            handle.write_rank(world.rank().index() as u32, &save.tensors, &save.scalars)
        };
        // Without the agreement of all, the attempt of the first is dropped, which removes its files.
        agree(world, write(), CheckpointsError::save(step))?;
        // Without the directory: a path that is not UTF-8 can't be sent.
        world.from_first(|| match attempt {
            Some(attempt) => attempt.publish(self.timeout.min(LISTED)).map(drop),
            None => Ok(()),
        })?;
        let pruned = world.is_first().then(|| self.prune(step));
        agree(world, pruned.unwrap_or(Ok(())), |error| error)?;
        Ok(self.run.step_place(step))
    }

    /// Restores the checkpoint that the first process chooses. If a process is lost and the pipeline continues without it, the
    /// others restore again.
    pub(super) fn resume_in_world<M: Module + Sync + 'static, B: Batch>(
        &self,
        world: &World,
        pipeline: &mut Pipeline<M, B>,
    ) -> Result<Option<Resumed>, CheckpointsError> {
        let (saves, world) = (self.clone(), world.clone());
        pipeline.repeatable_change(move |pipeline| saves.resume_once(&world, pipeline))
    }

    fn resume_once<M: Module + Sync + 'static, B: Batch>(
        &self,
        world: &World,
        pipeline: &mut Pipeline<M, B>,
    ) -> Result<Option<Resumed>, CheckpointsError> {
        let mut chosen: Option<Latest> = None;
        let step = world.from_first(|| {
            chosen = self.run.latest()?;
            let step = chosen.as_ref().map(|latest| latest.checkpoint.step());
            Ok::<_, LoadError>(step)
        })?;
        let Some(step) = step else {
            return Ok(None);
        };
        let opened = match chosen {
            Some(latest) => Ok((latest.checkpoint, latest.skipped)),
            None => self.run.open(step).map(|opened| (opened, Vec::new())),
        };
        let prepared = opened.map_err(CheckpointsError::from);
        let prepared = prepared.and_then(|(checkpoint, skipped)| {
            Ok((prepare(pipeline, checkpoint, &self.settings)?, skipped))
        });
        // Before anything is changed.
        let (source, skipped) = agree(world, prepared, |error| error)?;
        let mut resumed = restore(pipeline, source)?;
        let skipped = world.from_first(|| {
            let skipped = skipped.iter().map(|skipped| self.set_aside(skipped));
            let named = skipped.map(|one| SkippedCheckpoint {
                // The name, since a path that is not UTF-8 can't be sent.
                set_aside: one
                    .set_aside
                    .as_deref()
                    .and_then(Path::file_name)
                    .map(PathBuf::from),
                ..one
            });
            Ok::<Vec<_>, WorldError>(named.collect())
        })?;
        let placed = skipped.into_iter().map(|one| SkippedCheckpoint {
            set_aside: one.set_aside.map(|name| self.place.join(name)),
            ..one
        });
        resumed.skipped = placed.collect();
        Ok(Some(resumed))
    }
}
