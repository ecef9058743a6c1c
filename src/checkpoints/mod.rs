//! Saving and resuming of a pipeline: connects `pipeline` and `checkpoint`.

mod resume;
mod saved;
mod settings;
mod working;
mod world;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use burn::module::Module;
use burn::tensor::Device;
use parking_lot::Mutex;
use serde_json::Value;
use tinderbox_checkpoint::{
    Checkpoint, CheckpointMeta, ModuleTypes, Retention, Run, SaveSize, Saving,
};
use tinderbox_deferred::{Deferred, NumericFingerprint, Source, random::Seed};
use tinderbox_pipeline::{Batch, Pipeline};
use tinderbox_world::World;

pub use resume::{Resumed, SkippedCheckpoint, replay_step};
use saved::{OfRanks, RankSnapshot, snapshots};
pub use saved::{dry_run, export_pipeline};
use settings::Expected;
pub use working::WorkingDir;

use crate::CheckpointsError;

/// The checkpoints of a run: one directory per step, in a directory or another store. Clones share the background save.
#[derive(Clone, Debug)]
#[must_use]
pub struct Checkpoints {
    run: Run,
    place: PathBuf,
    every: Option<u64>,
    keep: Option<Retention>,
    in_background: bool,
    timeout: Duration,
    /// The processes that save and resume together.
    world: Option<World>,
    /// The running background save of the pipeline's last saved step.
    saving: Arc<Mutex<Option<Saving>>>,
    settings: Expected,
}

impl Checkpoints {
    /// Opens the directory of a run, which is created by the first save, and removes unpublished remains of a
    /// killed run.
    ///
    /// # Errors
    ///
    /// Returns an error if the remains can't be removed.
    pub fn open(dir: impl Into<PathBuf>) -> Result<Self, CheckpointsError> {
        Self::on(Run::local(dir))
    }

    /// As [`Checkpoints::open`], for a run in any store.
    ///
    /// # Errors
    ///
    /// Returns an error if the remains can't be removed.
    pub fn on(run: Run) -> Result<Self, CheckpointsError> {
        run.clean().map_err(CheckpointsError::open(&run))?;
        Ok(Self::of(run, None))
    }

    fn of(run: Run, world: Option<World>) -> Self {
        Self {
            place: run.place(),
            run,
            every: None,
            keep: None,
            in_background: false,
            timeout: Duration::from_secs(600),
            world,
            saving: Arc::default(),
            settings: Expected::default(),
        }
    }

    /// Saves after every `steps` steps; see [`Checkpoints::after_step`]. 0 disables periodic saves.
    pub fn every(mut self, steps: u64) -> Self {
        self.every = (steps > 0).then_some(steps);
        self
    }

    /// Returns after how many steps it saves, if it saves periodically.
    pub fn interval(&self) -> Option<u64> {
        self.every
    }

    /// After each save, removes all checkpoints except the newest `last` (at least 1) and those whose step is
    /// a multiple of `every`. By default, all are kept.
    pub fn keep(mut self, last: usize, every: Option<u64>) -> Self {
        self.keep = Some(Retention { last, every });
        self
    }

    /// Saves in the background while training continues: a save takes a snapshot of the current values
    /// without copying them, and returns. Until it has ended, memory can hold both the saved values and the
    /// updated ones; values on a GPU only until they have been copied to the host, which requires host memory
    /// for them. One save runs at a time: the next waits for it. The error of a background save is returned
    /// by the next call of any method.
    pub fn in_background(mut self) -> Self {
        self.in_background = true;
        self
    }

    /// Sets how long a save may go without writing while it is waited for. The default is ten minutes. A save
    /// that makes progress is waited for without limit; one that does not causes an error, and its thread
    /// continues detached.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Names settings that may differ from the settings of the checkpoint that [`resume`](Self::resume) restores: the settings
    /// of [`Pipeline::run_settings`], and `learning_rates`. Others that differ are an error, because the losses would not be the
    /// losses of a training without an interruption.
    pub fn allow_changes<S: Into<String>>(mut self, names: impl IntoIterator<Item = S>) -> Self {
        self.settings.allowed.extend(names.into_iter().map(S::into));
        self
    }

    /// Describes the schedule of the learning rates, such as `cosine from 3e-4 to 0 in 10000 steps`, which the pipeline does not know. It
    /// is saved, and a [`resume`](Self::resume) with another description is an error.
    pub fn describe_learning_rates(mut self, schedule: impl Into<String>) -> Self {
        self.settings.learning_rates = Some(schedule.into());
        self
    }

    /// Waits for the background save; returns its directory, or `None` if there is none.
    ///
    /// # Errors
    ///
    /// Returns an error if the save has failed, in which case nothing was published, or if it has written
    /// nothing within the [timeout](Self::timeout), in which case it may still be published.
    pub fn wait(&self) -> Result<Option<PathBuf>, CheckpointsError> {
        let Some(saving) = self.saving.lock().take() else {
            return Ok(None);
        };
        let step = saving.step();
        let dir = saving.wait().map_err(CheckpointsError::save(step))?;
        self.prune(step)?;
        Ok(Some(dir))
    }

    /// Returns the result of a background save that has ended, without waiting for one that is running.
    fn reap(&self) -> Result<(), CheckpointsError> {
        if self.saving.lock().as_ref().is_some_and(Saving::is_done) {
            self.wait()?;
        }
        Ok(())
    }

    /// Removes the checkpoints that are not to be kept.
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

    /// Returns the directory.
    pub fn dir(&self) -> &Path {
        &self.place
    }

    /// Returns the run, to list, open and remove checkpoints.
    pub fn run(&self) -> &Run {
        &self.run
    }

    /// Returns the newest usable checkpoint, or `None` if there are none: for its seed and data position, or
    /// as a source of parameters. Skips damaged ones, like [`Checkpoints::resume`].
    ///
    /// # Errors
    ///
    /// Returns an error if checkpoints exist and all of them are damaged, if the newest that is not damaged
    /// can't be used, or if a background save has failed since the last call.
    pub fn latest(&self) -> Result<Option<Checkpoint>, CheckpointsError> {
        self.reap()?;
        Ok(self.run.latest()?.map(|latest| latest.checkpoint))
    }

    /// Saves if the completed step is due. `data_position` is the position in the training data.
    ///
    /// # Errors
    ///
    /// See [`Checkpoints::save`]. Also returns the error of a failed background save after a step that is not
    /// due.
    pub fn after_step<M: Module + Sync + 'static, B: Batch>(
        &self,
        pipeline: &mut Pipeline<M, B>,
        data_position: u64,
    ) -> Result<Option<PathBuf>, CheckpointsError> {
        self.after_step_with(pipeline, data_position, || Value::Null)
    }

    /// As [`Checkpoints::after_step`], with metadata as in [`Checkpoints::save_with`]; the closure is called
    /// only if the step is due.
    ///
    /// # Errors
    ///
    /// See [`Checkpoints::after_step`].
    pub fn after_step_with<M: Module + Sync + 'static, B: Batch>(
        &self,
        pipeline: &mut Pipeline<M, B>,
        data_position: u64,
        metadata: impl FnOnce() -> Value,
    ) -> Result<Option<PathBuf>, CheckpointsError> {
        let is_due = |every| pipeline.steps().is_multiple_of(every);
        if !self.every.is_some_and(is_due) {
            return self.reap().map(|()| None);
        }
        let dir = self.save_with(pipeline, data_position, metadata())?;
        Ok(Some(dir))
    }

    /// Saves parameters, optimizer state, step, seed, data position, plan, types of modules, loss scale, the learning rates of the
    /// last step, and the [settings](Pipeline::run_settings) that decide the losses. Each rank saves its own values; a value that several ranks hold is saved once. Returns the directory of the checkpoint,
    /// which is then complete and durable, or, in the background, after [`Checkpoints::wait`] has returned.
    /// Removes the checkpoints that are not to be kept; the new one is always kept.
    ///
    /// # Errors
    ///
    /// Returns an error if the step was saved before, or an I/O operation fails: nothing is published then,
    /// and earlier checkpoints are unchanged. Also returns the error of an earlier background save; nothing
    /// is saved then.
    pub fn save<M: Module + Sync + 'static, B: Batch>(
        &self,
        pipeline: &mut Pipeline<M, B>,
        data_position: u64,
    ) -> Result<PathBuf, CheckpointsError> {
        self.save_with(pipeline, data_position, Value::Null)
    }

    /// As [`Checkpoints::save`], with other state that the run needs to resume: of a data loader, of random
    /// generators on the host, an epoch; at most 1 MiB of JSON. [`Resumed::metadata`] returns it.
    ///
    /// # Errors
    ///
    /// See [`Checkpoints::save`]; also returns an error if the metadata is too large.
    pub fn save_with<M: Module + Sync + 'static, B: Batch>(
        &self,
        pipeline: &mut Pipeline<M, B>,
        data_position: u64,
        metadata: Value,
    ) -> Result<PathBuf, CheckpointsError> {
        self.wait()?;
        if let Some(world) = &self.world {
            return self.save_in_world(world, pipeline, data_position, metadata);
        }
        let step = pipeline.steps();
        let failed = CheckpointsError::save(step);
        let (meta, ranks) = self.contents(pipeline, data_position, metadata)?;
        let ranks = OfRanks::new(ranks);
        let attempt = self.run.begin(meta).map_err(failed)?;
        if self.in_background {
            let of_rank = move |rank| ranks.off_devices(rank);
            let saving = attempt.save_in_background(of_rank, Arc::new(()));
            *self.saving.lock() = Some(saving.map_err(failed)?.timeout(self.timeout));
            return Ok(self.run.step_place(step));
        }
        let of_rank = move |rank| ranks.of_rank(rank);
        let saved = attempt.save_watched(of_rank, Arc::new(()), self.timeout);
        let dir = saved.map_err(failed)?;
        self.prune(step)?;
        Ok(dir)
    }

    /// Returns the description of a checkpoint, with its size, and what the ranks of this process save.
    fn contents<M: Module + Sync + 'static, B: Batch>(
        &self,
        pipeline: &mut Pipeline<M, B>,
        data_position: u64,
        metadata: Value,
    ) -> Result<(CheckpointMeta, Vec<RankSnapshot>), CheckpointsError> {
        let step = pipeline.steps();
        let plan = serde_json::to_value(pipeline.plan().file().without_programs());
        let writers = pipeline.plan().world_size();
        let ranks = snapshots(pipeline)?;
        let mut size = SaveSize::default();
        for rank in &ranks {
            size.add_size(rank.size());
        }
        let meta = CheckpointMeta {
            seed: pipeline.seed().value(),
            data_position,
            metadata,
            plan: plan.map_err(|source| CheckpointsError::Plan { step, source })?,
            modules: ModuleTypes::of(pipeline.model().parameters()),
            settings: self.settings.of(pipeline.run_settings()),
            numerics: NumericFingerprint::of_process().classes().clone(),
            size: Some(size),
            ..CheckpointMeta::new(step, writers as u32)
        };
        Ok((meta, ranks))
    }
}

/// Creates the whole model on a device, with the parameters of a checkpoint saved by any number of ranks.
///
/// # Errors
///
/// Returns an error if the checkpoint's parameters are not exactly the model's (every missing and extra one,
/// shape and dtype is listed), or a byte is damaged.
pub fn load_module<M: Module>(
    model: &Deferred<M>,
    checkpoint: &Checkpoint,
    device: &Device,
) -> Result<M, CheckpointsError> {
    // Random values of the constructor that are not parameters depend on the run's seed.
    let seed = Seed::new(checkpoint.manifest().seed);
    let source = checkpoint.constructed_by(model.replay(seed));
    let module = model.materialize(device, &source);
    module.map_err(|source| CheckpointsError::Materialize { source })
}
