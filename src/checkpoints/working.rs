//! A directory in which a model is trained that does not fit in memory.

use std::collections::{BTreeMap, BTreeSet};
use std::error::Error;
use std::fmt;
use std::path::PathBuf;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use burn::module::Module;
use tinderbox_checkpoint::{
    Attempt, Checkpoint, CheckpointMeta, ModuleTypes, RankSave, Retention, Role, Run, SaveError,
    SaveTensor,
};
use tinderbox_deferred::{Deferred, ParameterPath, Source, random::Seed};
use tinderbox_pipeline::{Plan, SavedOptimizer, StageStore, UpdatedStage};

use super::restored::State;
use super::saved::tied_paths;
use super::scalars::to_saved;
use crate::CheckpointsError;

/// The parts of all stages exist before the wait begins.
const PARTS_TIMEOUT: Duration = Duration::from_secs(60);
/// The checkpoints that stay.
const KEEP: usize = 2;

/// A directory in which a streamed model is trained ([`StreamedBuilder::store`](crate::StreamedBuilder::store)): a run whose
/// newest checkpoint is the last step, with the parameters that are trained and the state of the optimizer. The parameters that it
/// lacks, which are not trained, come from the source.
///
/// Each step is written while it runs, stage by stage, and published at its end: a process that is killed loses the step that it was
/// in. The last two steps stay, so the directory needs three times the bytes of what is trained.
#[derive(Clone)]
pub struct WorkingDir {
    inner: Arc<Inner>,
}

struct Inner {
    run: Run,
    /// Of the parameters that no checkpoint has.
    source: Arc<dyn Source>,
    tied: BTreeMap<ParameterPath, Vec<String>>,
    modules: ModuleTypes,
    seed: Seed,
    plan: serde_json::Value,
    stages: u32,
    state: Mutex<Progress>,
}

/// What is there, and what is being written.
#[derive(Default)]
struct Progress {
    current: Option<Arc<Checkpoint>>,
    writing: Option<Writing>,
}

/// A step that is being written, by a thread of its own.
struct Writing {
    step: u64,
    /// `None` when all stages were given.
    stages: Option<SyncSender<UpdatedStage>>,
    /// Returns the stages that were written.
    thread: Option<JoinHandle<Result<BTreeSet<u32>, SaveError>>>,
    /// Removes what was written when it is dropped.
    attempt: Option<Attempt>,
}

impl Writing {
    /// Waits until everything is written.
    fn finish(&mut self) -> Result<BTreeSet<u32>, Box<dyn Error + Send + Sync>> {
        self.stages = None;
        match self.thread.take().map(JoinHandle::join) {
            Some(Ok(written)) => Ok(written?),
            Some(Err(_)) => Err("the thread that writes has panicked".into()),
            None => Err("an earlier stage could not be written".into()),
        }
    }
}

impl Drop for Writing {
    fn drop(&mut self) {
        // Its files can be removed then.
        let _ = self.finish();
    }
}

impl WorkingDir {
    /// Opens a directory, which is created by the first step, and removes unpublished remains of a killed run. Goes on with its newest
    /// checkpoint, if there is one.
    ///
    /// # Errors
    ///
    /// When the remains can't be removed; when there are checkpoints and none can be used, or the newest is of another seed.
    pub fn open<M: Module>(
        dir: impl Into<PathBuf>,
        model: &Deferred<M>,
        plan: &Plan,
        source: impl Source + 'static,
        seed: impl Into<Seed>,
    ) -> Result<Self, CheckpointsError> {
        let (run, seed) = (Run::local(dir.into()), seed.into());
        run.clean().map_err(|source| CheckpointsError::Open {
            path: run.place(),
            source: Box::new(source),
        })?;
        let current = run.latest()?.map(|latest| latest.checkpoint);
        if let Some(checkpoint) = &current {
            let (expected, found) = (checkpoint.manifest().seed, seed.value());
            if expected != found {
                return Err(CheckpointsError::Seed { expected, found });
            }
        }
        let table = model.parameters();
        Ok(Self {
            inner: Arc::new(Inner {
                run,
                source: Arc::new(source),
                tied: tied_paths(table),
                modules: ModuleTypes::of(table),
                seed,
                plan: serde_json::to_value(plan.file().without_programs())
                    .map_err(|source| CheckpointsError::Plan { step: 0, source })?,
                stages: plan.stages().len() as u32,
                state: Mutex::new(Progress {
                    current: current.map(Arc::new),
                    writing: None,
                }),
            }),
        })
    }

    /// Returns the checkpoint of the last step; `None` before the first one.
    pub fn checkpoint(&self) -> Option<Checkpoint> {
        let current = self.inner.lock().current.clone();
        current.map(Arc::unwrap_or_clone)
    }
}

impl Inner {
    fn lock(&self) -> MutexGuard<'_, Progress> {
        // A thread that panics leaves an attempt that the next step replaces.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn begin(&self, step: u64) -> Result<Attempt, SaveError> {
        self.run.begin(CheckpointMeta {
            seed: self.seed.value(),
            plan: self.plan.clone(),
            modules: self.modules.clone(),
            // A newer one that is damaged.
            replace: true,
            ..CheckpointMeta::new(step, self.stages)
        })
    }

    /// Begins a step, with a thread that writes one stage at a time.
    fn begin_writing(self: Arc<Self>, step: u64) -> Result<Writing, Box<dyn Error + Send + Sync>> {
        let attempt = self.begin(step)?;
        let handle = attempt.handle();
        let (stages, updated) = sync_channel::<UpdatedStage>(0);
        let thread = thread::Builder::new().name("writer".into());
        let thread = thread.spawn(move || {
            let mut written = BTreeSet::new();
            for stage in updated {
                let rank = stage.stage.index() as u32;
                let RankSave { tensors, scalars } = self.saved(stage);
                handle.write_rank(rank, &tensors, &scalars)?;
                written.insert(rank);
            }
            Ok(written)
        })?;
        Ok(Writing {
            step,
            stages: Some(stages),
            thread: Some(thread),
            attempt: Some(attempt),
        })
    }

    /// What a stage saves.
    fn saved(&self, updated: UpdatedStage) -> RankSave {
        let parameters = updated
            .parameters
            .into_iter()
            .map(|(path, value)| SaveTensor {
                tied: self.tied.get(&path).cloned().unwrap_or_default(),
                ..SaveTensor::whole(path.as_str(), Role::Model, value)
            });
        let states = updated.optimizer.tensors.into_iter();
        let states = states.map(|(name, data)| SaveTensor::whole(name, Role::State, data));
        let scalars = updated.optimizer.scalars.into_iter();
        RankSave {
            tensors: parameters.chain(states).collect(),
            scalars: scalars
                .map(|(name, value)| (name, to_saved(value)))
                .collect(),
        }
    }
}

impl StageStore for WorkingDir {
    fn step(&self) -> u64 {
        self.checkpoint().map_or(0, |checkpoint| checkpoint.step())
    }

    fn source(&self) -> Arc<dyn Source> {
        let source = self.inner.source.clone();
        match self.checkpoint() {
            Some(checkpoint) => Arc::new(checkpoint.or_else(source)),
            None => source,
        }
    }

    fn optimizer(&self) -> Option<Arc<dyn SavedOptimizer>> {
        Some(Arc::new(State::of(self.checkpoint()?)))
    }

    /// Returns when a thread writes it, and has written what was given before.
    fn write(&self, step: u64, updated: UpdatedStage) -> Result<(), Box<dyn Error + Send + Sync>> {
        let mut state = self.inner.lock();
        if state
            .writing
            .as_ref()
            .is_none_or(|writing| writing.step != step)
        {
            // What an earlier call has left is removed first.
            state.writing = None;
            state.writing = Some(self.inner.clone().begin_writing(step)?);
        }
        let writing = state.writing.as_mut().expect("it has begun");
        let taken = writing.stages.as_ref().map(|stages| stages.send(updated));
        match taken {
            Some(Ok(())) => Ok(()),
            // The thread has ended with an error.
            _ => writing.finish().map(drop),
        }
    }

    fn commit(&self, step: u64) -> Result<(), Box<dyn Error + Send + Sync>> {
        let begun = self.inner.lock().writing.take();
        let begun = begun.filter(|writing| writing.step == step);
        let mut writing = match begun {
            Some(writing) => writing,
            // Nothing is trained.
            None => self.inner.clone().begin_writing(step)?,
        };
        let written = writing.finish()?;
        let attempt = writing.attempt.take().expect("it is published once");
        let handle = attempt.handle();
        for rank in (0..self.inner.stages).filter(|rank| !written.contains(rank)) {
            handle.write_rank(rank, &[], &BTreeMap::new())?;
        }
        attempt.publish(PARTS_TIMEOUT)?;
        let checkpoint = Arc::new(self.inner.run.open(step)?);
        self.inner.lock().current = Some(checkpoint);
        let keep = Retention {
            last: KEEP,
            every: None,
        };
        self.inner.run.prune_after_save(step, keep)?;
        Ok(())
    }
}

impl fmt::Debug for WorkingDir {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WorkingDir")
            .field("dir", &self.inner.run.place())
            .field("step", &self.step())
            .finish_non_exhaustive()
    }
}
