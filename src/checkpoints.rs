//! Saves and resumes a pipeline: what `pipeline` and `checkpoint` do together.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use burn::module::Module;
use burn::tensor::{DType, Device};
use burn_pack::Scalar as BurnScalar;
use tinderbox_checkpoint::{
    Checkpoint, CheckpointMeta, Held, Latest, RankSave, Retention, Role, Run, SaveTensor, Saving,
    Scalar, assign_writers,
};
use tinderbox_deferred::{Deferred, Parameter, ParameterPath, ParameterTable};
use tinderbox_fake::Region;
use tinderbox_pipeline::schedule::RankIndex;
use tinderbox_pipeline::{Batch, LossScale, OptimizerSnapshot, Pipeline, Plan, SavedState, Stage};

use crate::{CheckpointsError, LoadRankError};

/// The checkpoints of a run: one directory per step, in one directory or another store.
#[derive(Debug)]
pub struct Checkpoints {
    run: Run,
    place: PathBuf,
    every: Option<u64>,
    keep: Option<Retention>,
    in_background: bool,
    /// The save that goes on, of the pipeline's last saved step.
    saving: Mutex<Option<Saving>>,
}

/// Where a run was resumed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resumed {
    /// Training steps that the checkpoint has behind it.
    pub step: u64,
    /// How far the data was read, in the caller's unit.
    pub data_position: u64,
    /// The checkpoint.
    pub dir: PathBuf,
    /// Why each newer checkpoint could not be used, the newest first.
    pub skipped: Vec<String>,
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
    /// made since. One save goes on at a time: the next waits for it, and reports its failure;
    /// [`Checkpoints::wait`] does as well.
    #[must_use]
    pub fn in_background(mut self) -> Self {
        self.in_background = true;
        self
    }

    /// Waits for the save that goes on in the background; gives its directory, `None` when there is none.
    ///
    /// # Errors
    ///
    /// When that save has failed. Nothing of it was published then.
    pub fn wait(&self) -> Result<Option<PathBuf>, CheckpointsError> {
        // Nothing is left half done when a thread panics with it.
        let saving = self
            .saving
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
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

    /// Removes what is not to be kept.
    fn prune(&self, step: u64) -> Result<(), CheckpointsError> {
        let Some(keep) = self.keep else {
            return Ok(());
        };
        let pruned = self.run.prune(keep);
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
    /// a source of parameters.
    ///
    /// # Errors
    ///
    /// When there are checkpoints, and none can be used.
    pub fn latest(&self) -> Result<Option<Checkpoint>, CheckpointsError> {
        let latest = self.run.latest()?;
        Ok(latest.map(|latest| latest.checkpoint))
    }

    /// Saves if a step that is due was done. `data_position` says how far the data was read.
    ///
    /// # Errors
    ///
    /// As [`Checkpoints::save`].
    pub fn after_step<M, B>(
        &self,
        pipeline: &mut Pipeline<M, B>,
        data_position: u64,
    ) -> Result<Option<PathBuf>, CheckpointsError>
    where
        M: Module + Sync + 'static,
        B: Batch,
    {
        match self.every {
            Some(every) if pipeline.steps().is_multiple_of(every) => {
                self.save(pipeline, data_position).map(Some)
            }
            _ => Ok(None),
        }
    }

    /// Saves parameters, optimizer state, step, seed, data position, plan and the factor on the loss: each rank its own, and of
    /// what several hold each thing once. Returns the directory of the checkpoint, which is whole and
    /// durable then; in the background, once [`Checkpoints::wait`] has returned. Removes what is not to be
    /// kept.
    ///
    /// # Errors
    ///
    /// When the step was saved before, or the disk fails. Nothing is published then, and earlier
    /// checkpoints are as they were. Also when an earlier save in the background has failed; nothing is
    /// saved then.
    pub fn save<M, B>(
        &self,
        pipeline: &mut Pipeline<M, B>,
        data_position: u64,
    ) -> Result<PathBuf, CheckpointsError>
    where
        M: Module + Sync + 'static,
        B: Batch,
    {
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
        meta.plan = serde_json::to_value(pipeline.plan().file().without_programs())
            .map_err(|source| CheckpointsError::Plan { step, source })?;
        let scale = pipeline.loss_scale().map(saved_scale);
        let attempt = self.run.begin(meta).map_err(failed)?;
        let ranks = pipeline
            .on_ranks(move |rank, stages| RankSnapshot::of(&writes[rank.index()], stages))?;
        let of_rank = move |rank: u32| {
            let mut save = ranks[rank as usize].to_save();
            // The first rank saves what belongs to none.
            save.scalars
                .extend(scale.clone().filter(|_| rank == 0).into_iter().flatten());
            Ok(save)
        };
        if self.in_background {
            let saving = attempt.save_in_background(of_rank, Arc::new(()));
            let mut place = self.saving.lock().unwrap_or_else(PoisonError::into_inner);
            *place = Some(saving.map_err(failed)?);
            return Ok(self.run.step_place(step));
        }
        let dir = attempt.save_all(of_rank, &()).map_err(failed)?;
        self.prune(step)?;
        Ok(dir)
    }

    /// Restores the newest checkpoint that can be used, whatever number of ranks saved it: one with
    /// damage is stepped over, and the result says why. `None` when there is none: the pipeline is then
    /// as it was started.
    ///
    /// # Errors
    ///
    /// When no checkpoint can be used, or the newest whole one is of another model or seed. Nothing of
    /// the pipeline has changed then.
    pub fn resume<M, B>(
        &self,
        pipeline: &mut Pipeline<M, B>,
    ) -> Result<Option<Resumed>, CheckpointsError>
    where
        M: Module + Sync + 'static,
        B: Batch,
    {
        self.wait()?;
        let Some(latest) = self.run.latest()? else {
            return Ok(None);
        };
        match restore(pipeline, latest) {
            Err(CheckpointsError::LoadRank { .. }) => {
                // Either the data is damaged, or it is whole and does not fit. This reads all of it.
                let Some(latest) = self.run.latest_verified()? else {
                    return Ok(None);
                };
                restore(pipeline, latest).map(Some)
            }
            done => done.map(Some),
        }
    }
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
    model
        .materialize(device, checkpoint)
        .map_err(|source| CheckpointsError::Materialize { source })
}

fn parameters_of<M: Module>(model: &Deferred<M>) -> Vec<(ParameterPath, Vec<u64>, DType)> {
    let parameters = model.parameters().distinct();
    parameters
        .map(|p| (p.path.clone(), p.shape.clone(), p.dtype))
        .collect()
}

/// The parameters that each rank holds: its own, and copies of shared ones.
pub(crate) fn held_by_ranks<'a>(plan: &Plan, table: &'a ParameterTable) -> Vec<Vec<&'a Parameter>> {
    let mut ranks: Vec<Vec<&Parameter>> = Vec::new();
    for stage in plan.stages() {
        let rank = stage.rank.index();
        ranks.resize_with(ranks.len().max(rank + 1), Vec::new);
        let paths: BTreeSet<&ParameterPath> =
            stage.parameters.iter().chain(&stage.replicas).collect();
        let held = paths.into_iter().map(|path| table.get(path));
        ranks[rank].extend(held.map(|held| held.expect("a plan is checked against its model")));
    }
    ranks
}

/// What each rank writes of its parameters, with the other paths of each. Of copies of a shared
/// parameter, which are equal between two steps, one is written.
type Writes = Vec<BTreeMap<ParameterPath, Vec<String>>>;

fn writes<M: Module + Sync + 'static, B: Batch>(pipeline: &Pipeline<M, B>) -> Writes {
    let table = pipeline.model().parameters();
    let ranks = held_by_ranks(pipeline.plan(), table)
        .into_iter()
        .map(|held| {
            let held = held.into_iter().map(|parameter| Held {
                name: parameter.path.as_str().to_owned(),
                region: Region::whole(&parameter.shape).expect("its elements can be counted"),
                bytes: parameter.bytes,
            });
            held.collect()
        });
    let ranks: Vec<Vec<Held>> = ranks.collect();
    let tied = tied_paths(table);
    let ranks = assign_writers(&ranks).into_iter().zip(ranks);
    let writes = ranks.map(|(positions, held)| {
        let paths = positions
            .into_iter()
            .map(|at| ParameterPath::new(held[at].name.as_str()));
        paths
            .map(|path| {
                let tied = tied.get(&path).cloned().unwrap_or_default();
                (path, tied)
            })
            .collect()
    });
    writes.collect()
}

/// The other paths of each parameter that has some.
fn tied_paths(table: &ParameterTable) -> BTreeMap<ParameterPath, Vec<String>> {
    let mut tied: BTreeMap<ParameterPath, Vec<String>> = BTreeMap::new();
    for parameter in table.iter() {
        if let Some(first) = &parameter.clone_of {
            let paths = tied.entry(first.clone()).or_default();
            paths.push(parameter.path.as_str().to_owned());
        }
    }
    tied
}

/// Restores one checkpoint, in two phases: every rank loads beside what it has; only when all could,
/// all change over.
fn restore<M, B>(pipeline: &mut Pipeline<M, B>, latest: Latest) -> Result<Resumed, CheckpointsError>
where
    M: Module + Sync + 'static,
    B: Batch,
{
    let Latest {
        checkpoint,
        skipped,
    } = latest;
    let (expected, found) = (checkpoint.manifest().seed, pipeline.seed().value());
    if expected != found {
        return Err(CheckpointsError::Seed { expected, found });
    }
    checkpoint.check_model(&parameters_of(pipeline.model()))?;
    let resumed = Resumed {
        step: checkpoint.step(),
        data_position: checkpoint.manifest().data_position,
        dir: checkpoint.dir().to_owned(),
        skipped: skipped.iter().map(|error| error.chain()).collect(),
    };
    let scale = scale_of(&checkpoint);
    let checkpoint = Arc::new(checkpoint);
    let prepared = pipeline.on_ranks(move |_, stages| {
        stages
            .iter_mut()
            .try_for_each(|stage| prepare(&checkpoint, stage))
    })?;
    for (rank, result) in prepared.into_iter().enumerate() {
        let (rank, path) = (RankIndex::new(rank), resumed.dir.clone());
        result.map_err(|source| CheckpointsError::LoadRank {
            rank,
            path,
            source: Box::new(source),
        })?;
    }
    pipeline.on_ranks(|_, stages| stages.iter_mut().for_each(Stage::commit_restore))?;
    pipeline.resume_at(resumed.step);
    if let Some((factor, steps)) = scale {
        pipeline.resume_loss_scale(factor, steps);
    }
    Ok(resumed)
}

/// What a rank saves, as it was at one instant.
struct RankSnapshot {
    tensors: Vec<SaveTensor>,
    optimizers: Vec<OptimizerSnapshot>,
}

impl RankSnapshot {
    fn of(writes: &BTreeMap<ParameterPath, Vec<String>>, stages: &[Stage]) -> Self {
        let held = stages.iter().flat_map(|stage| {
            let owned = stage.parameters().values();
            owned.chain(stage.replicas().values())
        });
        // A rank with several stages may hold a parameter and its copy.
        let tensors: BTreeMap<&ParameterPath, SaveTensor> = held
            .filter_map(|(path, value)| {
                let mut tensor = SaveTensor::whole(path.as_str(), Role::Model, value);
                tensor.tied.clone_from(writes.get(path)?);
                Some((path, tensor))
            })
            .collect();
        Self {
            tensors: tensors.into_values().collect(),
            optimizers: stages.iter().map(Stage::optimizer_snapshot).collect(),
        }
    }

    /// With the optimizer's state on the host.
    fn to_save(&self) -> RankSave {
        let mut save = RankSave {
            tensors: self.tensors.clone(),
            ..RankSave::default()
        };
        for optimizer in &self.optimizers {
            let state = optimizer.to_host();
            let tensors = state.tensors.into_iter();
            let tensors = tensors.map(|(name, data)| SaveTensor::whole(name, Role::State, data));
            save.tensors.extend(tensors);
            let scalars = state.scalars.into_iter();
            save.scalars
                .extend(scalars.map(|(name, value)| (name, to_saved(value))));
        }
        save
    }
}

fn prepare(checkpoint: &Checkpoint, stage: &mut Stage) -> Result<(), LoadRankError> {
    let prefixes: Vec<String> = stage
        .parameters()
        .paths()
        .map(|path| format!("optimizer.{path}."))
        .collect();
    let ours = |name: &str| prefixes.iter().any(|prefix| name.starts_with(prefix));
    let names: Vec<String> = checkpoint
        .tensors(Role::State)
        .map(|tensor| tensor.name.clone())
        .filter(|name| ours(name))
        .collect();
    let data = checkpoint.state(&names)?;
    let scalars = checkpoint.scalars().iter().filter(|(name, _)| ours(name));
    let saved = SavedState {
        tensors: names.into_iter().zip(data).collect(),
        scalars: scalars
            .map(|(name, value)| (name.clone(), from_saved(*value)))
            .collect(),
    };
    stage.prepare_restore(checkpoint, &saved)?;
    Ok(())
}

/// Names of what is saved of a factor on the loss.
const SCALE_FACTOR: &str = "loss_scale.factor";
const SCALE_STEPS: &str = "loss_scale.steps";

fn saved_scale(scale: LossScale) -> [(String, Scalar); 2] {
    [
        (SCALE_FACTOR.into(), Scalar::Float(scale.factor())),
        (SCALE_STEPS.into(), Scalar::Uint(scale.steps())),
    ]
}

/// Factor and count, where a checkpoint has them.
fn scale_of(checkpoint: &Checkpoint) -> Option<(f64, u64)> {
    let scalars = checkpoint.scalars();
    match (scalars.get(SCALE_FACTOR)?, scalars.get(SCALE_STEPS)?) {
        (Scalar::Float(factor), Scalar::Uint(steps)) => Some((*factor, *steps)),
        _ => None,
    }
}

fn to_saved(value: BurnScalar) -> Scalar {
    match value {
        BurnScalar::Int(value) => Scalar::Int(value),
        BurnScalar::UInt(value) => Scalar::Uint(value),
        BurnScalar::Float(value) => Scalar::Float(value),
        BurnScalar::Bool(value) => Scalar::Bool(value),
    }
}

fn from_saved(value: Scalar) -> BurnScalar {
    match value {
        Scalar::Int(value) => BurnScalar::Int(value),
        Scalar::Uint(value) => BurnScalar::UInt(value),
        Scalar::Float(value) => BurnScalar::Float(value),
        Scalar::Bool(value) => BurnScalar::Bool(value),
    }
}
