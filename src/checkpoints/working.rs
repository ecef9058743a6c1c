//! A directory in which a model is trained that does not fit in memory.

use std::collections::{BTreeMap, BTreeSet};
use std::error::Error;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use burn::module::Module;
use parking_lot::Mutex;
use tinderbox_checkpoint::{
    Attempt, Checkpoint, CheckpointMeta, ModuleTypes, RankSave, Role, Run, SaveError, SaveTensor,
    Scalar, most_working_bytes,
};
use tinderbox_deferred::{Deferred, NumericFingerprint, ParameterPath, Request, Source};
use tinderbox_pipeline::schedule::StageIndex;
use tinderbox_pipeline::{SavedOptimizer, StageStore, StepRates, StreamedTraining, UpdatedStage};

use super::resume::{State, check_not_averaged, check_seed, check_state};
use super::saved::add_state;
use super::settings::{
    Expected, WORKING_DIR, is_set, of_base_rate, of_micro_batches, of_other_rates, rates_of,
    warn_of_numerics,
};
use crate::CheckpointsError;

type Failed = Box<dyn Error + Send + Sync>;

/// The parts of all stages exist before the wait begins.
const PARTS_TIMEOUT: Duration = Duration::from_secs(60);
/// The checkpoints that stay.
const KEEP: usize = 2;

/// A directory in which a streamed model is trained ([`StreamedBuilder::store`](crate::StreamedBuilder::store)): a run whose
/// newest checkpoint is the last step, with the parameters that are trained and the state of the optimizer. The parameters that it
/// lacks, which are not trained, come from the source.
///
/// Each step is written while it runs, stage by stage, and published at its end: a process that is killed loses the step that it
/// was in. The last two steps stay, so the directory needs three times the bytes of what is trained, and in a step the bytes of
/// the activations that do not fit in memory. Checkpoints of other programs in the same directory stay too; training may continue
/// from the newest of them, if it has no parameters that are not trained.
#[derive(Clone)]
#[must_use]
pub struct WorkingDir {
    run: Run,
    /// Of the parameters that no checkpoint has.
    source: Arc<dyn Source>,
    modules: ModuleTypes,
    /// The progress, which clones share. It stays usable after a panic: the next start removes the attempt that was begun.
    state: Arc<Mutex<Progress>>,
}

/// What is there, and what is being written.
#[derive(Default)]
struct Progress {
    current: Option<Arc<Checkpoint>>,
    /// The steps that streamed models have written.
    own: BTreeSet<u64>,
    /// The damaged steps after the current one, which may be replaced.
    damaged: BTreeSet<u64>,
    /// What the caller says of the settings of the training.
    settings: Expected,
    training: Option<Training>,
    writing: Option<Writing>,
}

/// What is the same for all steps from a start on.
struct Training {
    meta: CheckpointMeta,
    /// The stages that are trained, each of which is a rank of a checkpoint.
    stages: Vec<StageIndex>,
    scalars: BTreeMap<String, Scalar>,
}

/// A step that is being written, by a thread of its own.
struct Writing {
    step: u64,
    /// Receives the stages. `None` when all stages were given.
    writer: Option<(SyncSender<(u32, RankSave)>, Writer)>,
}

/// Returns the ranks that were written, and the attempt, which removes what was written when it is dropped.
type Writer = JoinHandle<Result<(BTreeSet<u32>, Attempt), SaveError>>;

impl Writing {
    /// Begins a step, with a thread that writes one stage at a time.
    fn begin(run: &Run, meta: CheckpointMeta) -> Result<Self, Failed> {
        let step = meta.step;
        let attempt = run.begin(meta)?;
        let (stages, updated) = sync_channel::<(u32, RankSave)>(0);
        let thread = thread::Builder::new().name("writer".into());
        let thread = thread.spawn(move || {
            let (mut written, handle) = (BTreeSet::new(), attempt.handle());
            for (rank, RankSave { tensors, scalars }) in updated {
                handle.write_rank(rank, &tensors, &scalars)?;
                written.insert(rank);
            }
            Ok((written, attempt))
        })?;
        let writer = Some((stages, thread));
        Ok(Self { step, writer })
    }

    /// Waits until everything is written.
    fn finish(&mut self) -> Result<(BTreeSet<u32>, Attempt), Failed> {
        let writer = self.writer.take();
        let (stages, thread) = writer.ok_or("an earlier stage could not be written")?;
        drop(stages);
        let written = thread.join();
        Ok(written.map_err(|_| "the thread that writes has panicked")??)
    }
}

impl Drop for Writing {
    fn drop(&mut self) {
        // Its files can be removed then.
        let _ = self.finish();
    }
}

impl WorkingDir {
    /// Opens a directory, which is created by the first step, and removes unpublished remains of a killed run. Training continues with
    /// its newest checkpoint, if there is one. The source has the parameters that it lacks.
    ///
    /// # Errors
    ///
    /// When the remains can't be removed; when there are checkpoints and none can be used.
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
        let is_own = |step: &u64| {
            run.open(*step)
                .is_ok_and(|saved| is_set(&saved, WORKING_DIR))
        };
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

    /// Names settings of the training that may differ from the settings of the last step, as in
    /// [`Checkpoints::allow_changes`](crate::Checkpoints::allow_changes).
    pub fn allow_changes<S: Into<String>>(self, names: impl IntoIterator<Item = S>) -> Self {
        let allowed = names.into_iter().map(S::into);
        self.state.lock().settings.allowed.extend(allowed);
        self
    }

    /// Describes the schedule of the learning rates, as in
    /// [`Checkpoints::describe_learning_rates`](crate::Checkpoints::describe_learning_rates).
    pub fn describe_learning_rates(self, schedule: impl Into<String>) -> Self {
        self.state.lock().settings.learning_rates = Some(schedule.into());
        self
    }

    /// Returns the checkpoint of the last step; `None` before the first one.
    pub fn checkpoint(&self) -> Option<Checkpoint> {
        let current = self.state.lock().current.clone();
        current.map(Arc::unwrap_or_clone)
    }

    /// Returns the learning rates of the last step; `None` before the first one, or if the checkpoint does not have them.
    pub fn learning_rates(&self) -> Option<StepRates> {
        rates_of(&*self.state.lock().current.clone()?)
    }

    /// Begins to write a step.
    fn begin(&self, state: &Progress, step: u64) -> Result<Writing, Failed> {
        let meta = CheckpointMeta {
            step,
            replace: state.damaged.contains(&step),
            ..state.training()?.meta.clone()
        };
        Writing::begin(&self.run, meta)
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
    /// The rank of a stage, and what it saves.
    fn part(&self, updated: UpdatedStage) -> Result<(u32, RankSave), Failed> {
        let rank = self.stages.iter().position(|of| *of == updated.stage);
        let rank = rank.ok_or("the stage is not one that is trained")?;
        let parameters = updated.parameters.into_iter();
        let parameters =
            parameters.map(|(path, value)| SaveTensor::whole(path.as_str(), Role::Model, value));
        let mut part = RankSave {
            tensors: parameters.collect(),
            scalars: of_other_rates(updated.rates.others).into_iter().collect(),
        };
        add_state(&mut part, updated.optimizer);
        if rank == 0 {
            part.scalars.extend(self.scalars.clone());
            part.scalars.extend([of_base_rate(updated.rates.base)]);
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
        let plan = serde_json::to_value(training.plan.file().without_programs());
        let plan = plan.map_err(|source| CheckpointsError::Plan { step: 0, source })?;
        let is_streamed = (WORKING_DIR.to_owned(), Scalar::Bool(true));
        let scalars = [of_micro_batches(training.micro_batches), is_streamed];
        // What an earlier start has left is removed.
        state.writing = None;
        state.training = Some(Training {
            meta: CheckpointMeta {
                seed: training.seed.value(),
                plan,
                modules: self.modules.clone(),
                settings: state.settings.of(training.settings.clone()),
                numerics: NumericFingerprint::of_process().classes().clone(),
                ..CheckpointMeta::new(0, stages.len().max(1) as u32)
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

    /// Returns when a thread writes it, and has written what was given before.
    fn write(&self, step: u64, updated: UpdatedStage) -> Result<(), Failed> {
        let mut state = self.state.lock();
        let part = state.training()?.part(updated)?;
        if state.writing.as_ref().map(|writing| writing.step) != Some(step) {
            state.writing = Some(self.begin(&state, step)?);
        }
        let writer = state.writing.as_ref().and_then(|of| of.writer.as_ref());
        let stages = writer.map(|(stages, _)| stages.clone());
        // What is read meanwhile needs the lock.
        drop(state);
        if let Some(Ok(())) = stages.map(|stages| stages.send(part)) {
            return Ok(());
        }
        // The thread has ended with an error.
        let mut state = self.state.lock();
        match &mut state.writing {
            Some(writing) => writing.finish().map(drop),
            None => Err("the directory was started again meanwhile".into()),
        }
    }

    fn commit(&self, step: u64) -> Result<(), Failed> {
        let mut state = self.state.lock();
        let begun = state.writing.take();
        let mut writing = match begun.filter(|writing| writing.step == step) {
            Some(writing) => writing,
            // Nothing is trained.
            None => self.begin(&state, step)?,
        };
        let (written, attempt) = writing.finish()?;
        if written.is_empty() {
            let scalars = state.training()?.scalars.clone();
            attempt.handle().write_rank(0, &[], &scalars)?;
        }
        attempt.publish(PARTS_TIMEOUT)?;
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

impl fmt::Debug for WorkingDir {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WorkingDir")
            .field("dir", &self.run.place())
            .field("step", &self.step())
            .finish_non_exhaustive()
    }
}
