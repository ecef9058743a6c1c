//! Saves and resumes pipelines: connects `pipeline` and `checkpoint`.

mod progress;
mod resume;
mod saved;
mod settings;
mod working;
mod world;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use burn::module::Module;
use burn::tensor::Device;
use parking_lot::Mutex;
use tinderbox_checkpoint::{
    Checkpoint, CheckpointMeta, ModuleTypes, Retention, Run, SaveSize, Saving,
};
use tinderbox_deferred::{Deferred, MaterializeError, Source, random::Seed};
use tinderbox_pipeline::{Batch, Pipeline};
use tinderbox_world::World;

pub use progress::RunProgress;
pub use resume::{Resumed, SkippedCheckpoint, replay_step};
use saved::{OfRanks, RankSnapshot, snapshots};
pub use saved::{dry_run, export_pipeline};
use settings::Expected;
pub use working::WorkingDir;

use crate::error::CheckpointsError;

/// The checkpoints of a run: one directory for each step, in a directory or another store. Clones share the background save.
#[derive(Clone, Debug)]
#[must_use]
pub struct Checkpoints {
    run: Run,
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
    /// Opens the directory of a run, which is created by the first save. Removes the files that interrupted saves have left.
    ///
    /// # Errors
    ///
    /// Returns an error if these files can't be removed.
    pub fn open(dir: impl Into<PathBuf>) -> Result<Self, CheckpointsError> {
        Self::on(Run::local(dir))
    }

    /// Opens a run in any store, as [`Checkpoints::open`] does.
    ///
    /// # Errors
    ///
    /// Returns an error if the files of interrupted saves can't be removed.
    pub fn on(run: Run) -> Result<Self, CheckpointsError> {
        run.clean().map_err(CheckpointsError::open(&run))?;
        Ok(Self::of(run, None))
    }

    fn of(run: Run, world: Option<World>) -> Self {
        Self {
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

    /// Saves after every `steps` steps, at least 1: see [`Checkpoints::after_step`]. Default: no periodic saves.
    pub fn every(mut self, steps: u64) -> Self {
        self.every = Some(steps);
        self
    }

    /// Returns the number of steps between two periodic saves; `None` without periodic saves.
    pub fn interval(&self) -> Option<u64> {
        self.every
    }

    /// Sets the [`Retention`], such as `Retention::newest(3).and_every(100)`: each save removes the checkpoints that it does
    /// not keep. Default: all checkpoints are kept.
    pub fn keep(mut self, retention: Retention) -> Self {
        self.keep = Some(retention);
        self
    }

    /// Saves in the background while training continues. A save takes a snapshot of the current values
    /// without a copy, and returns. Until it has ended, memory can hold both the saved values and the
    /// updated values. Values on a GPU are copied to the host first, which requires host memory for them.
    /// One save runs at a time: the next save waits for it. The next call of any method returns the error of a
    /// background save.
    pub fn in_background(mut self) -> Self {
        self.in_background = true;
        self
    }

    /// Sets how long a wait for a save accepts that nothing is written. The default is ten minutes. The wait for a save
    /// that makes progress has no limit. A save without progress causes an error, and its thread continues detached.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Names settings that may differ from the settings of the checkpoint that [`resume`](Self::resume) restores: the settings
    /// of [`Pipeline::run_settings`], and `learning_rates`. Another setting that differs is an error, because the losses would
    /// not be the losses of a training without an interruption.
    pub fn allow_changes<S: Into<String>>(mut self, names: impl IntoIterator<Item = S>) -> Self {
        self.settings.allowed.extend(names.into_iter().map(S::into));
        self
    }

    /// Describes the schedule of the learning rates, which the pipeline does not know, such as
    /// `cosine from 3e-4 to 0 in 10000 steps`. The description is saved, and a [`resume`](Self::resume) with another
    /// description is an error.
    pub fn describe_learning_rates(mut self, schedule: impl Into<String>) -> Self {
        self.settings.learning_rates = Some(schedule.into());
        self
    }

    /// Waits for the background save, and returns its directory; `None` if no save is running.
    ///
    /// # Errors
    ///
    /// Returns an error if the save has failed: nothing was published. Returns an error if it has written nothing within the
    /// [timeout](Self::timeout): it may still be published.
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

    /// Removes the checkpoints that the retention does not keep.
    fn prune(&self, step: u64) -> Result<(), CheckpointsError> {
        let pruned = self.keep.map(|keep| self.run.prune_after_save(step, keep));
        pruned.transpose().map(drop).map_err(|source| {
            let source = Box::new(source);
            CheckpointsError::Prune { step, source }
        })
    }

    /// Returns the run, to list, open and remove checkpoints.
    pub fn run(&self) -> &Run {
        &self.run
    }

    /// Returns the newest usable checkpoint, for its seed and data position or as a source of parameters; `None` if there is no
    /// checkpoint. Skips damaged checkpoints, like [`Checkpoints::resume`].
    ///
    /// # Errors
    ///
    /// Returns an error if checkpoints exist and all of them are damaged, if the newest undamaged checkpoint
    /// can't be used, or if a background save has failed since the last call.
    pub fn latest(&self) -> Result<Option<Checkpoint>, CheckpointsError> {
        self.reap()?;
        Ok(self.run.latest()?.map(|latest| latest.checkpoint))
    }

    /// Saves the pipeline if its last step is due, with the position in the training data. [`RunProgress`] adds other state of
    /// the run.
    ///
    /// # Errors
    ///
    /// See [`Checkpoints::save`]. If the step is not due, returns the error of a failed background save.
    pub fn after_step<M: Module + Sync + 'static, B: Batch>(
        &self,
        pipeline: &mut Pipeline<M, B>,
        progress: impl Into<RunProgress>,
    ) -> Result<Option<PathBuf>, CheckpointsError> {
        self.check_interval()?;
        let is_due = |every| pipeline.steps().is_multiple_of(every);
        if !self.every.is_some_and(is_due) {
            return self.reap().map(|()| None);
        }
        self.save(pipeline, progress).map(Some)
    }

    /// Saves parameters, optimizer state, step, seed, the [progress](RunProgress) of the run, plan, types of modules, loss
    /// scale, the learning rates of the last step, and the [settings](Pipeline::run_settings) that decide the losses. Each
    /// rank saves its own values; a value that several ranks hold is saved once. Returns the directory of the checkpoint. The
    /// checkpoint is then complete and durable; in the background, it is when [`Checkpoints::wait`] has returned. Removes the
    /// checkpoints that the retention does not keep; it always keeps the new checkpoint.
    ///
    /// # Errors
    ///
    /// Returns an error if the step was saved before, or an I/O operation fails: nothing is published, and earlier checkpoints
    /// are unchanged. Returns an error if the [interval](Self::every) is 0, the metadata is too large, or an earlier
    /// background save has failed: nothing is saved.
    pub fn save<M: Module + Sync + 'static, B: Batch>(
        &self,
        pipeline: &mut Pipeline<M, B>,
        progress: impl Into<RunProgress>,
    ) -> Result<PathBuf, CheckpointsError> {
        self.check_interval()?;
        self.wait()?;
        let progress = progress.into();
        if let Some(world) = &self.world {
            return self.save_in_world(world, pipeline, progress);
        }
        let step = pipeline.steps();
        let failed = CheckpointsError::save(step);
        let (meta, ranks) = self.contents(pipeline, progress)?;
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

    /// Refuses an interval of 0 steps.
    pub(crate) fn check_interval(&self) -> Result<(), CheckpointsError> {
        match self.every {
            Some(0) => Err(CheckpointsError::Interval),
            _ => Ok(()),
        }
    }

    /// Returns the description of a checkpoint, with its size, and the snapshots of the ranks of this process.
    fn contents<M: Module + Sync + 'static, B: Batch>(
        &self,
        pipeline: &mut Pipeline<M, B>,
        progress: RunProgress,
    ) -> Result<(CheckpointMeta, Vec<RankSnapshot>), CheckpointsError> {
        let modules = ModuleTypes::of(pipeline.model().parameters());
        let settings = pipeline.run_settings();
        let meta = self.settings.meta(pipeline.plan(), modules, settings);
        let ranks = snapshots(pipeline)?;
        let mut size = SaveSize::default();
        for rank in &ranks {
            size.add_size(rank.size());
        }
        let meta = CheckpointMeta {
            step: pipeline.steps(),
            seed: pipeline.seed().value(),
            data_position: progress.data_position,
            metadata: progress.metadata,
            size: Some(size),
            ..meta
        };
        Ok((meta, ranks))
    }
}

/// Creates the whole model on a device, with the parameters of a checkpoint that any number of ranks has saved.
///
/// # Errors
///
/// Returns an error if the checkpoint does not have exactly the parameters of the model: it lists every missing and extra
/// parameter, and every other shape and dtype. Returns an error if a byte is damaged.
pub fn load_module<M: Module>(
    model: &Deferred<M>,
    checkpoint: &Checkpoint,
    device: &Device,
) -> Result<M, MaterializeError> {
    // Random values of the constructor that are not parameters depend on the run's seed.
    let seed = Seed::new(checkpoint.manifest().seed);
    let source = checkpoint.constructed_by(model.initializer(seed));
    model.materialize(device, &source)
}
