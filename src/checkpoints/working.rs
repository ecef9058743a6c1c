//! A directory in which a model is trained that does not fit in memory.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use burn::module::Module;
use parking_lot::Mutex;
use tinderbox_checkpoint::{
    Attempt, AttemptHandle, Checkpoint, CheckpointMeta, ModuleTypes, RankSave, Role, Run,
    SaveError, SaveTensor, Scalar, most_working_bytes,
};
use tinderbox_deferred::{Deferred, ParameterPath, Request, Source};
use tinderbox_pipeline::schedule::StageIndex;
use tinderbox_pipeline::{SavedOptimizer, StageStore, StepRates, StreamedTraining, UpdatedStage};

use super::resume::{Failed, State, check_not_averaged, check_seed, check_state};
use super::saved::add_state;
use super::settings::{
    Expected, LEARNING_RATE, WORKING_DIR, is_set, of_micro_batches, of_rates, rates_of,
    warn_of_numerics,
};
use crate::error::CheckpointsError;

/// Never reached, because the parts of all stages exist before the wait begins.
const PARTS_TIMEOUT: Duration = Duration::from_secs(60);
/// The number of steps that stay.
const KEEP: usize = 2;

/// A directory in which a streamed model is trained ([`StreamedBuilder::store`](crate::pipeline::StreamedBuilder::store)). It
/// is a run whose newest checkpoint is the last step, with the trained parameters and the state of the optimizer. The other
/// parameters come from a source.
///
/// Each step is written stage by stage while it runs, and published at its end: a process that is killed loses its running
/// step. The last two steps stay. So the directory needs three times the bytes of the trained values, and during a step the
/// bytes of the activations that do not fit in memory. Checkpoints of other programs in the same directory stay too. Training
/// may continue from the newest of them, if it has no parameters that are not trained. It saves no position in the data.
#[derive(Clone, derive_more::Debug)]
#[debug("WorkingDir {{ dir: {:?}, step: {}, .. }}", run.place(), self.step())]
#[must_use]
pub struct WorkingDir {
    run: Run,
    /// The source of the parameters that no checkpoint has.
    source: Arc<dyn Source>,
    modules: ModuleTypes,
    /// The progress, which clones share. It stays usable after a panic: the next start removes the unfinished attempt.
    state: Arc<Mutex<Progress>>,
}

/// The checkpoints of the directory, and the running step.
#[derive(Default)]
struct Progress {
    current: Option<Arc<Checkpoint>>,
    /// The steps that streamed models have written.
    own: BTreeSet<u64>,
    /// The damaged steps after the current step, which may be replaced.
    damaged: BTreeSet<u64>,
    settings: Expected,
    training: Option<Training>,
    writing: Option<Writing>,
}

/// The facts that are the same for all steps after a start.
struct Training {
    meta: CheckpointMeta,
    /// The stages that are trained. Each is a rank of a checkpoint.
    stages: Vec<StageIndex>,
    scalars: BTreeMap<String, Scalar>,
}

/// A step that is being written. When it is dropped, the thread ends before the attempt removes its files.
struct Writing {
    stage: StageWriter,
    attempt: Attempt,
}

/// The thread that writes a stage; `None` before the first stage.
#[derive(Default)]
struct StageWriter(Option<JoinHandle<Result<(), SaveError>>>);

impl StageWriter {
    fn start(handle: AttemptHandle, rank: u32, part: RankSave) -> Result<Self, Failed> {
        let thread = thread::Builder::new().name("writer".into());
        let write = move || handle.write_rank(rank, &part.tensors, &part.scalars, &());
        Ok(Self(Some(thread.spawn(write)?)))
    }

    /// Waits until the stage is written.
    fn finish(&mut self) -> Result<(), Failed> {
        let written = self.0.take().map(JoinHandle::join).transpose();
        let written = written.map_err(|_| "the thread that writes has panicked")?;
        Ok(written.transpose().map(drop)?)
    }
}

impl Drop for StageWriter {
    fn drop(&mut self) {
        let _ = self.finish();
    }
}

impl WorkingDir {
    /// Opens a directory, which is created by the first step. Removes the files that interrupted steps have left. Training
    /// continues with the newest checkpoint, if there is one. The source has the parameters that the checkpoint lacks.
    ///
    /// # Errors
    ///
    /// Returns an error if these files can't be removed, or if there are checkpoints and none can be used.
    pub fn open<M: Module>(
        dir: impl Into<PathBuf>,
        model: &Deferred<M>,
        source: impl Source + 'static,
    ) -> Result<Self, CheckpointsError> {
        let run = Run::local(dir.into());
        run.clean().map_err(CheckpointsError::open(&run))?;
        let latest = run.latest()?;
        let skipped = latest.iter().flat_map(|latest| &latest.skipped);
        let damaged = skipped.map(|skipped| skipped.step).collect();
        let is_streamed = |saved: Checkpoint| is_set(&saved, WORKING_DIR);
        let is_own = |step: &u64| run.open(*step).is_ok_and(is_streamed);
        let state = Progress {
            own: run.steps()?.into_iter().filter(is_own).collect(),
            current: latest.map(|latest| Arc::new(latest.checkpoint)),
            damaged,
            ..Progress::default()
        };
        Ok(Self {
            run,
            source: Arc::new(source),
            modules: ModuleTypes::of(model.parameters()),
            state: Arc::new(Mutex::new(state)),
        })
    }

    /// Names settings of the training that may differ from the settings of the last step, as
    /// [`Checkpoints::allow_changes`](crate::Checkpoints::allow_changes) does.
    pub fn allow_changes<S: Into<String>>(self, names: impl IntoIterator<Item = S>) -> Self {
        let allowed = names.into_iter().map(S::into);
        self.state.lock().settings.allowed.extend(allowed);
        self
    }

    /// Describes the schedule of the learning rates, as
    /// [`Checkpoints::describe_learning_rates`](crate::Checkpoints::describe_learning_rates) does.
    pub fn describe_learning_rates(self, schedule: impl Into<String>) -> Self {
        self.state.lock().settings.learning_rates = Some(schedule.into());
        self
    }

    /// Returns the checkpoint of the last step; `None` before the first step.
    pub fn checkpoint(&self) -> Option<Checkpoint> {
        let current = self.state.lock().current.clone();
        current.map(Arc::unwrap_or_clone)
    }

    /// Returns the learning rates of the last step; `None` before the first step, or if the checkpoint does not have them.
    pub fn learning_rates(&self) -> Option<StepRates> {
        rates_of(&*self.state.lock().current.clone()?)
    }

    /// Returns the step that is being written, or begins to write it.
    fn writing(&self, state: &mut Progress, step: u64) -> Result<Writing, Failed> {
        let begun = state.writing.take();
        if let Some(begun) = begun.filter(|begun| begun.attempt.handle().step() == step) {
            return Ok(begun);
        }
        let attempt = self.run.begin(CheckpointMeta {
            step,
            replace: state.damaged.contains(&step),
            ..state.training()?.meta.clone()
        })?;
        let stage = StageWriter::default();
        Ok(Writing { stage, attempt })
    }
}

impl Progress {
    fn training(&self) -> Result<&Training, Failed> {
        let training = self.training.as_ref();
        training.ok_or_else(|| "the directory was not started".into())
    }

    /// Checks that training can continue with the current checkpoint.
    fn check(&self, training: &StreamedTraining<'_>) -> Result<(), CheckpointsError> {
        let Some(checkpoint) = self.current.as_deref() else {
            return Ok(());
        };
        check_seed(checkpoint, training.seed)?;
        check_not_averaged(checkpoint)?;
        check_state(checkpoint, training.keeps_state)?;
        let trained = training.trained.iter().flat_map(|(_, paths)| paths);
        let trained: BTreeSet<&str> = trained.map(ParameterPath::as_str).collect();
        let others = checkpoint.tensors(Role::Model);
        let others = others.filter(|tensor| !trained.contains(&*tensor.name));
        let names: Vec<String> = others.map(|tensor| tensor.name.clone()).collect();
        if !names.is_empty() {
            let path = checkpoint.dir().to_owned();
            return Err(CheckpointsError::NotTrained { path, names });
        }
        self.settings.check(checkpoint, training.settings.clone())?;
        warn_of_numerics(checkpoint);
        Ok(())
    }
}

impl Training {
    /// Returns the rank of a stage, and its values.
    fn part(&self, updated: UpdatedStage) -> Result<(u32, RankSave), Failed> {
        let rank = self.stages.iter().position(|of| *of == updated.stage);
        let rank = rank.ok_or("the stage is not one that is trained")?;
        let parameters = updated.parameters.into_iter();
        let parameters =
            parameters.map(|(path, value)| SaveTensor::whole(path.as_str(), Role::Model, value));
        let mut part = RankSave {
            tensors: parameters.collect(),
            scalars: of_rates(updated.rates).into_iter().collect(),
        };
        add_state(&mut part, updated.optimizer);
        if rank == 0 {
            part.scalars.extend(self.scalars.clone());
        } else {
            // The first stage saves the base rate of all.
            part.scalars.remove(LEARNING_RATE);
        }
        Ok((rank as u32, part))
    }
}

impl StageStore for WorkingDir {
    fn start(&self, training: &StreamedTraining<'_>) -> Result<(), Failed> {
        let mut state = self.state.lock();
        state.check(training)?;
        let trained = training.trained.iter();
        let stages: Vec<StageIndex> = trained.map(|(stage, _)| *stage).collect();
        let (modules, settings) = (self.modules.clone(), training.settings.clone());
        let meta = state.settings.meta(training.plan, modules, settings);
        let is_streamed = (WORKING_DIR.to_owned(), Scalar::Bool(true));
        let scalars = [of_micro_batches(training.micro_batches), is_streamed];
        // Removes the step that an earlier start has not finished.
        state.writing = None;
        state.training = Some(Training {
            meta: CheckpointMeta {
                seed: training.seed.value(),
                world_size: stages.len().max(1) as u32,
                ..meta
            },
            stages,
            scalars: scalars.into(),
        });
        Ok(())
    }

    fn step(&self) -> u64 {
        self.checkpoint().map_or(0, |checkpoint| checkpoint.step())
    }

    fn source(&self) -> Arc<dyn Source> {
        let source = self.source.clone();
        match self.checkpoint() {
            Some(checkpoint) => Arc::new(checkpoint.or_else(source)),
            None => source,
        }
    }

    fn working_bytes(&self, requests: &[Request]) -> u64 {
        let bytes = requests.iter().map(Request::bytes).max();
        let of_checkpoint = most_working_bytes(bytes.unwrap_or(0));
        self.source().working_bytes(requests).max(of_checkpoint)
    }

    fn optimizer(&self) -> Option<Arc<dyn SavedOptimizer>> {
        Some(Arc::new(State(self.checkpoint()?)))
    }

    fn scratch_dir(&self) -> Option<PathBuf> {
        Some(self.run.place())
    }

    /// Returns when the stage before is written and a thread writes this stage.
    fn write(&self, step: u64, updated: UpdatedStage) -> Result<(), Failed> {
        let mut state = self.state.lock();
        let (rank, part) = state.training()?.part(updated)?;
        let mut writing = self.writing(&mut state, step)?;
        // Reads of the next stage need the lock meanwhile.
        drop(state);
        writing.stage.finish()?;
        writing.stage = StageWriter::start(writing.attempt.handle(), rank, part)?;
        self.state.lock().writing = Some(writing);
        Ok(())
    }

    fn commit(&self, step: u64) -> Result<(), Failed> {
        let mut state = self.state.lock();
        let mut writing = self.writing(&mut state, step)?;
        writing.stage.finish()?;
        let training = state.training()?;
        if training.stages.is_empty() {
            let handle = writing.attempt.handle();
            handle.write_rank(0, &[], &training.scalars, &())?;
        }
        writing.attempt.publish(PARTS_TIMEOUT)?;
        state.current = Some(Arc::new(self.run.open(step)?));
        state.own.insert(step);
        while state.own.len() > KEEP
            && let Some(oldest) = state.own.pop_first()
        {
            if let Err(error) = self.run.remove(oldest) {
                tracing::warn!(step = oldest, %error, "an earlier step could not be removed");
            }
        }
        Ok(())
    }
}
