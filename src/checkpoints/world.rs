//! Saves and resumes in the processes of a world.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

use burn::module::Module;
use tinderbox_checkpoint::{Attempt, CheckpointMeta, Latest, LoadError, Run, SaveError, SaveSize};
use tinderbox_pipeline::{Batch, Pipeline};
use tinderbox_world::{World, WorldError, with_causes};

use super::resume::{Resumed, prepare, restore};
use super::{Checkpoints, RunProgress};
use crate::error::CheckpointsError;

/// Returns the value of this process if all processes have one. Returns the failure of another process rather than the failure
/// of this one, which may be its consequence.
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

/// The longest time until the other processes of a shared file system see a new entry, by its name and in a listing.
const VISIBLE: Duration = Duration::from_secs(10);
const LISTED: Duration = Duration::from_secs(60);

/// Checks that all processes see an entry that the first process creates, because the first save would be too late. A place
/// that can't be written to is only read, and not checked. In a bucket, a process that is killed meanwhile leaves an attempt
/// until `clean_when_idle`.
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
    let no_failure = || world.failure().is_none();
    let joined = match (&attempt, id) {
        (None, Some(id)) => run.join(STEP, id, VISIBLE, no_failure).map(drop),
        _ => Ok(()),
    };
    let seen = joined.map_err(|source| match source {
        SaveError::NoAttempt { .. } => CheckpointsError::NotShared { path: run.place() },
        source => CheckpointsError::open(run)(source),
    });
    agree(world, seen, |error| error)
}

impl Checkpoints {
    /// Opens the run of the processes of a world. All processes make every call. Each process saves the values of its rank,
    /// and the first process begins, publishes and removes checkpoints. All processes must reach the store, such as a shared
    /// directory. In a world of one process, this is the same as [`Checkpoints::on`].
    ///
    /// A save returns when it is published: [`in_background`](Self::in_background) is refused.
    ///
    /// # Errors
    ///
    /// Returns an error on all processes if the files of interrupted saves can't be removed, or if a process does not see an
    /// entry of the first process within ten seconds.
    pub fn in_world(run: Run, world: &World) -> Result<Self, CheckpointsError> {
        if world.size() == 1 {
            return Self::on(run);
        }
        // The first process removes the files of interrupted saves.
        let cleaned = world.is_first().then(|| run.clean()).transpose();
        agree(world, cleaned, CheckpointsError::open(&run))?;
        check_shared(&run, world)?;
        Ok(Self::of(run, Some(world.clone())))
    }

    /// Saves the values of the rank of this process, together with the other processes. If a process is lost and the pipeline
    /// continues without it, the other processes save again.
    pub(super) fn save_in_world<M: Module + Sync + 'static, B: Batch>(
        &self,
        world: &World,
        pipeline: &mut Pipeline<M, B>,
        progress: RunProgress,
    ) -> Result<PathBuf, CheckpointsError> {
        if self.in_background {
            return Err(CheckpointsError::BackgroundInWorld);
        }
        let (saves, world) = (self.clone(), world.clone());
        let was_begun = AtomicBool::new(false);
        pipeline.repeatable(move |pipeline| {
            let step = pipeline.steps();
            // Before a process was lost, this call may have published the step.
            let is_repeated = was_begun.swap(true, SeqCst);
            let is_published = || Ok::<_, WorldError>(is_repeated && saves.run.open(step).is_ok());
            if world.generation() > 0 && world.from_first(is_published)? {
                return Ok(saves.run.step_place(step));
            }
            saves.save_once(&world, pipeline, progress.clone())
        })
    }

    fn save_once<M: Module + Sync + 'static, B: Batch>(
        &self,
        world: &World,
        pipeline: &mut Pipeline<M, B>,
        progress: RunProgress,
    ) -> Result<PathBuf, CheckpointsError> {
        let step = pipeline.steps();
        let (mut meta, own) = self.contents(pipeline, progress)?;
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
        let no_failure = || world.failure().is_none();
        let write = || {
            let handle = match &attempt {
                Some(attempt) => attempt.handle(),
                None => self.run.join(step, id, self.timeout, no_failure)?,
            };
            let rank = world.rank().index();
            if rank >= writers {
                return Ok(());
            }
            // A process that waits has no rank.
            let own = own.into_iter().next().unwrap_or_default();
            let save = own.into_save()?;
            handle.write_rank(rank as u32, &save.tensors, &save.scalars, &())
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
    /// other processes restore again.
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
        let prepared = || {
            let (checkpoint, skipped) = match chosen {
                Some(latest) => (latest.checkpoint, latest.skipped),
                None => (self.run.open(step)?, Vec::new()),
            };
            let source = prepare(pipeline, &checkpoint, &self.settings)?;
            Ok::<_, CheckpointsError>((checkpoint, source, skipped))
        };
        // Before anything is changed.
        let (checkpoint, source, skipped) = agree(world, prepared(), |error| error)?;
        let mut resumed = restore(pipeline, &checkpoint, source)?;
        let skipped = world.from_first(|| Ok::<_, WorldError>(self.set_aside(&skipped)))?;
        resumed.skipped = self.placed(skipped);
        Ok(Some(resumed))
    }
}
