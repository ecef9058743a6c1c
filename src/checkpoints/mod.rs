//! Saves and resumes a pipeline: what `pipeline` and `checkpoint` do together.

mod restored;
mod resume;
mod saved;
mod scalars;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use burn::module::Module;
use burn::tensor::Device;
use serde_json::Value;
use tinderbox_checkpoint::{Checkpoint, CheckpointMeta, Retention, Run, Saving};
use tinderbox_deferred::{Deferred, Source, random::Seed};
use tinderbox_pipeline::{Batch, Pipeline};

pub use resume::{Resumed, SteppedOver};
pub(crate) use saved::held_by_ranks;
use saved::{OfRanks, RankSnapshot, writes};
use scalars::saved_scale;

use crate::CheckpointsError;

/// The checkpoints of a run: one directory per step, in one directory or another store.
#[derive(Debug)]
pub struct Checkpoints {
    run: Run,
    place: PathBuf,
    every: Option<u64>,
    keep: Option<Retention>,
    in_background: bool,
    timeout: Duration,
    /// The save that goes on, of the pipeline's last saved step.
    saving: Mutex<Option<Saving>>,
}

impl Checkpoints {
    /// Opens the directory of a run, which is made when something is saved, and removes what a run
    /// that was killed left unpublished there.
    ///
    /// # Errors
    ///
    /// When leftovers can't be removed.
    pub fn open(dir: impl Into<PathBuf>) -> Result<Self, CheckpointsError> {
        Self::on(Run::local(dir))
    }

    /// As [`Checkpoints::open`], for a run in any store.
    ///
    /// # Errors
    ///
    /// When leftovers can't be removed.
    pub fn on(run: Run) -> Result<Self, CheckpointsError> {
        let place = run.place();
        run.clean().map_err(|source| CheckpointsError::Open {
            path: place.clone(),
            source: Box::new(source),
        })?;
        Ok(Self {
            run,
            place,
            every: None,
            keep: None,
            in_background: false,
            timeout: Duration::from_secs(600),
            saving: Mutex::new(None),
        })
    }

    /// Saves after every `steps` steps; see [`Checkpoints::after_step`]. 0 saves never.
    #[must_use]
    pub fn every(mut self, steps: u64) -> Self {
        self.every = (steps > 0).then_some(steps);
        self
    }

    /// After each save, removes all but the newest `last` checkpoints (at least 1), and those whose step
    /// is a multiple of `every`. Without a call, all are kept.
    #[must_use]
    pub fn keep(mut self, last: usize, every: Option<u64>) -> Self {
        self.keep = Some(Retention { last, every });
        self
    }

    /// Saves go on while the training does: a save notes the values of now and returns, which takes no
    /// copy of them. Until it is done, memory may hold the saved values beside those that training has
    /// made since; of what lies on a GPU only until it was copied to the host, which needs room for it
    /// there. One save goes on at a time: the next waits for it. The failure of one is the error of the next call of
    /// any kind.
    #[must_use]
    pub fn in_background(mut self) -> Self {
        self.in_background = true;
        self
    }

    /// How long a save may write nothing while it is waited for. Ten minutes by default. A save that writes may take any
    /// time; one that does not is an error, and its thread is left to itself.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Waits for the save that goes on in the background; gives its directory, `None` when there is none.
    ///
    /// # Errors
    ///
    /// When that save has failed: nothing of it was published. When it has written nothing within the
    /// [timeout](Self::timeout): it may still be published.
    pub fn wait(&self) -> Result<Option<PathBuf>, CheckpointsError> {
        let saving = self.saving().take();
        let Some(saving) = saving else {
            return Ok(None);
        };
        let step = saving.step();
        let dir = saving.wait().map_err(|source| CheckpointsError::Save {
            step,
            source: Box::new(source),
        })?;
        self.prune(step)?;
        Ok(Some(dir))
    }

    /// Reports how a save in the background has ended, without waiting for one that goes on.
    fn reap(&self) -> Result<(), CheckpointsError> {
        let ended = self.saving().as_ref().is_some_and(Saving::is_done);
        match ended {
            true => self.wait().map(drop),
            false => Ok(()),
        }
    }

    fn saving(&self) -> MutexGuard<'_, Option<Saving>> {
        // Nothing is left half done when a thread panics with it.
        self.saving.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Removes what is not to be kept.
    fn prune(&self, step: u64) -> Result<(), CheckpointsError> {
        let Some(keep) = self.keep else {
            return Ok(());
        };
        let pruned = self.run.prune_after_save(step, keep);
        pruned.map(drop).map_err(|source| CheckpointsError::Prune {
            step,
            source: Box::new(source),
        })
    }

    /// The directory.
    pub fn dir(&self) -> &Path {
        &self.place
    }

    /// The checkpoints as such: to list, open and remove them.
    pub fn run(&self) -> &Run {
        &self.run
    }

    /// The newest usable checkpoint, `None` when there is none: for its seed and data position, or as
    /// a source of parameters. Damaged ones are stepped over, as by [`Checkpoints::resume`].
    ///
    /// # Errors
    ///
    /// When there are checkpoints and all are damaged, or the newest that is not damaged can't be used. Also when a save
    /// in the background has failed since the last call.
    pub fn latest(&self) -> Result<Option<Checkpoint>, CheckpointsError> {
        self.reap()?;
        let latest = self.run.latest()?;
        Ok(latest.map(|latest| latest.checkpoint))
    }

    /// Saves if a step that is due was done. `data_position` says how far the data was read.
    ///
    /// # Errors
    ///
    /// As [`Checkpoints::save`]. Also after a step that is not due, when a save in the background has failed.
    pub fn after_step<M: Module + Sync + 'static, B: Batch>(
        &self,
        pipeline: &mut Pipeline<M, B>,
        data_position: u64,
    ) -> Result<Option<PathBuf>, CheckpointsError> {
        self.after_step_with(pipeline, data_position, || Value::Null)
    }

    /// As [`Checkpoints::after_step`], with what [`Checkpoints::save_with`] takes; it is asked for only when the step is
    /// due.
    ///
    /// # Errors
    ///
    /// As there.
    pub fn after_step_with<M: Module + Sync + 'static, B: Batch>(
        &self,
        pipeline: &mut Pipeline<M, B>,
        data_position: u64,
        metadata: impl FnOnce() -> Value,
    ) -> Result<Option<PathBuf>, CheckpointsError> {
        match self.every {
            Some(every) if pipeline.steps().is_multiple_of(every) => self
                .save_with(pipeline, data_position, metadata())
                .map(Some),
            _ => self.reap().map(|()| None),
        }
    }

    /// Saves parameters, optimizer state, step, seed, data position, plan and the factor on the loss: each
    /// rank its own, and of what several hold each thing once. Returns the directory of the checkpoint,
    /// which is whole and durable then; in the background, once [`Checkpoints::wait`] has returned. Removes
    /// what is not to be kept; the checkpoint that was just saved is kept.
    ///
    /// # Errors
    ///
    /// When the step was saved before, or the disk fails. Nothing is published then, and earlier
    /// checkpoints are as they were. Also when an earlier save in the background has failed; nothing is
    /// saved then.
    pub fn save<M: Module + Sync + 'static, B: Batch>(
        &self,
        pipeline: &mut Pipeline<M, B>,
        data_position: u64,
    ) -> Result<PathBuf, CheckpointsError> {
        self.save_with(pipeline, data_position, Value::Null)
    }

    /// As [`Checkpoints::save`], with what else the run needs to go on: the state of a data loader, of random generators
    /// on the host, an epoch; at most 1 MiB of JSON. [`Resumed::metadata`] gives it back.
    ///
    /// # Errors
    ///
    /// As there; when the metadata is too large.
    pub fn save_with<M: Module + Sync + 'static, B: Batch>(
        &self,
        pipeline: &mut Pipeline<M, B>,
        data_position: u64,
        metadata: Value,
    ) -> Result<PathBuf, CheckpointsError> {
        self.wait()?;
        let step = pipeline.steps();
        let failed = |source| CheckpointsError::Save {
            step,
            source: Box::new(source),
        };
        let writes = writes(pipeline);
        let mut meta = CheckpointMeta::new(step, writes.len() as u32);
        meta.seed = pipeline.seed().value();
        meta.data_position = data_position;
        meta.metadata = metadata;
        meta.plan = serde_json::to_value(pipeline.plan().file().without_programs())
            .map_err(|source| CheckpointsError::Plan { step, source })?;
        let scale = pipeline.loss_scale().map(saved_scale);
        let ranks = pipeline
            .on_ranks(move |rank, stages| RankSnapshot::of(&writes[rank.index()], stages))?;
        let ranks = OfRanks::new(ranks, scale);
        meta.size = Some(ranks.size());
        let attempt = self.run.begin(meta).map_err(failed)?;
        if self.in_background {
            let of_rank = move |rank| ranks.off_devices(rank);
            let saving = attempt.save_in_background(of_rank, Arc::new(()));
            *self.saving() = Some(saving.map_err(failed)?.timeout(self.timeout));
            return Ok(self.run.step_place(step));
        }
        let of_rank = move |rank| ranks.of_rank(rank);
        let saved = attempt.save_watched(of_rank, Arc::new(()), self.timeout);
        let dir = saved.map_err(failed)?;
        self.prune(step)?;
        Ok(dir)
    }
}

/// An error with all of its causes, on one line.
fn chain(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(error.source(), |error| error.source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}

/// The whole model on a device, with the parameters of a checkpoint, whatever number of ranks saved
/// it.
///
/// # Errors
///
/// When the checkpoint's parameters are not exactly the model's (every missing and extra one, shape
/// and dtype is listed), or a byte is damaged.
pub fn load_module<M: Module>(
    model: &Deferred<M>,
    checkpoint: &Checkpoint,
    device: &Device,
) -> Result<M, CheckpointsError> {
    // What the constructor draws beside parameters is a function of the run's seed.
    let seed = Seed::new(checkpoint.manifest().seed);
    let source = checkpoint.constructed_by(model.replay(seed));
    model
        .materialize(device, &source)
        .map_err(|source| CheckpointsError::Materialize { source })
}
