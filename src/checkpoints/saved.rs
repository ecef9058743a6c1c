//! The contents of a pipeline's checkpoint by rank.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use burn::module::Module;
use tinderbox_checkpoint::{
    RankSave, Role, SaveError, SaveSize, SaveTensor, Scalar, assign_writers,
};
use tinderbox_deferred::{Parameter, ParameterPath, ParameterTable};
use tinderbox_fake::{Region, is_host};
use tinderbox_pipeline::{Batch, OptimizerSnapshot, Pipeline, Plan, Stage};

use super::scalars::to_saved;

/// Returns the parameters that each rank holds: its own, and copies of shared ones.
pub(crate) fn held_by_ranks<'a>(plan: &Plan, table: &'a ParameterTable) -> Vec<Vec<&'a Parameter>> {
    let mut ranks: Vec<Vec<&Parameter>> = Vec::new();
    for stage in plan.stages() {
        let rank = stage.rank.index();
        ranks.resize_with(ranks.len().max(rank + 1), Vec::new);
        let paths: BTreeSet<&ParameterPath> =
            stage.parameters.iter().chain(&stage.copies).collect();
        let held = paths.into_iter().map(|path| table.get(path));
        ranks[rank].extend(held.map(|held| held.expect("a plan is checked against its model")));
    }
    ranks
}

/// The parameters that each rank writes, each with its other paths. Copies of a shared parameter, and the copies of
/// replicas, are equal between two steps, so one of them is written.
type Writes = Vec<BTreeMap<ParameterPath, Vec<String>>>;

pub(super) fn writes<M: Module + Sync + 'static, B: Batch>(pipeline: &Pipeline<M, B>) -> Writes {
    let table = pipeline.model().parameters();
    let plan = pipeline.plan();
    let held = held_by_ranks(plan, table);
    let held = vec![held; plan.replica_count()].concat();
    let ranks = held.iter().map(|held| {
        let items = held
            .iter()
            .map(|parameter| (&parameter.path, parameter.bytes));
        items.collect()
    });
    let ranks: Vec<Vec<(&ParameterPath, u64)>> = ranks.collect();
    let tied = tied_paths(table);
    let writes = assign_writers(&ranks).into_iter().zip(&ranks);
    let writes = writes.map(|(positions, held)| {
        let paths = positions.into_iter().map(|at| held[at].0);
        paths
            .map(|path| {
                let tied = tied.get(path).cloned().unwrap_or_default();
                (path.clone(), tied)
            })
            .collect()
    });
    writes.collect()
}

/// Returns the other paths of each parameter that has some.
pub(super) fn tied_paths(table: &ParameterTable) -> BTreeMap<ParameterPath, Vec<String>> {
    let mut tied: BTreeMap<ParameterPath, Vec<String>> = BTreeMap::new();
    for parameter in table.iter() {
        if let Some(first) = &parameter.clone_of {
            let paths = tied.entry(first.clone()).or_default();
            paths.push(parameter.path.as_str().to_owned());
        }
    }
    tied
}

/// The contents that the ranks save.
pub(super) struct OfRanks {
    ranks: Vec<Mutex<Slot>>,
    /// Scalars of the run.
    of_run: Vec<(String, Scalar)>,
}

/// The contents that one rank saves, from its snapshot to the copy on the host.
enum Slot {
    Snapshot(RankSnapshot),
    /// On the host, until they are written; the error is the first of its tensors.
    Copied(Option<Result<RankSave, SaveError>>),
}

impl OfRanks {
    pub(super) fn new(ranks: Vec<RankSnapshot>, of_run: Vec<(String, Scalar)>) -> Self {
        let slots = ranks.into_iter().map(Slot::Snapshot);
        Self {
            ranks: slots.map(Mutex::new).collect(),
            of_run,
        }
    }

    /// Returns the size of the save, assuming two tensors of optimizer state for each parameter, as in Adam:
    /// the actual state is known only after it is copied to the host.
    pub(super) fn size(&self) -> SaveSize {
        let mut size = SaveSize::default();
        for place in 0..self.ranks.len() {
            if let Slot::Snapshot(snapshot) = &*self.slot(place) {
                size.add_size(snapshot.size());
            }
        }
        size
    }

    /// Returns the contents of a rank, each tensor in its current location.
    pub(super) fn of_rank(&self, rank: u32) -> Result<RankSave, SaveError> {
        let mut save = match &mut *self.slot(rank as usize) {
            Slot::Snapshot(snapshot) => snapshot.to_save()?,
            Slot::Copied(copied) => copied.take().expect("a rank is written once")?,
        };
        // The first rank saves contents that belong to no rank.
        let of_run = self.of_run.iter().filter(|_| rank == 0);
        save.scalars.extend(of_run.cloned());
        Ok(save)
    }

    /// As [`of_rank`](Self::of_rank), after copying the contents of all ranks on GPUs to the host: training
    /// needs that memory again, and a disk is slow.
    pub(super) fn off_devices(&self, rank: u32) -> Result<RankSave, SaveError> {
        for place in 0..self.ranks.len() {
            let mut slot = self.slot(place);
            if let Slot::Snapshot(snapshot) = &*slot
                && !snapshot.is_on_host
            {
                // The snapshot is dropped after the copy, because it prevents in-place operations on its
                // values.
                let copied = snapshot.to_save().and_then(RankSave::on_host);
                *slot = Slot::Copied(Some(copied));
            }
        }
        self.of_rank(rank)
    }

    fn slot(&self, place: usize) -> MutexGuard<'_, Slot> {
        let slot = self.ranks[place].lock();
        slot.unwrap_or_else(PoisonError::into_inner)
    }
}

/// A snapshot of what a rank saves.
pub(super) struct RankSnapshot {
    tensors: Vec<SaveTensor>,
    optimizers: Vec<OptimizerSnapshot>,
    /// Whether all of it is in host memory.
    is_on_host: bool,
}

impl RankSnapshot {
    pub(super) fn of(writes: &BTreeMap<ParameterPath, Vec<String>>, stages: &[Stage]) -> Self {
        let held = stages.iter().flat_map(|stage| {
            let owned = stage.parameters().values();
            owned.chain(stage.copies().values())
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
            is_on_host: stages.iter().all(|stage| is_host(stage.device())),
        }
    }

    /// Returns the size of what is saved, assuming two tensors of optimizer state for each parameter.
    pub(super) fn size(&self) -> SaveSize {
        let mut size = SaveSize::default();
        let tensors = self.tensors.iter();
        let state = tensors.clone().flat_map(|parameter| {
            let of = |field| SaveTensor {
                name: format!("optimizer.{}.{field}", parameter.name),
                role: Role::State,
                ..parameter.clone()
            };
            [of("moment_1"), of("moment_2")]
        });
        size.add_rank(&RankSave {
            tensors: state.chain(tensors.cloned()).collect(),
            ..RankSave::default()
        });
        size
    }

    /// Returns the parameters.
    pub(super) fn into_parameters(self) -> Vec<SaveTensor> {
        self.tensors
    }

    /// Returns the contents, with the optimizer's state on the host.
    pub(super) fn to_save(&self) -> Result<RankSave, SaveError> {
        let mut save = RankSave {
            tensors: self.tensors.clone(),
            ..RankSave::default()
        };
        for optimizer in &self.optimizers {
            let state = optimizer.to_host().map_err(|source| SaveError::Optimizer {
                source: Box::new(source),
            })?;
            for (name, data) in state.tensors {
                let part = state.parts.get(&name).cloned();
                let mut tensor = SaveTensor::whole(name, Role::State, data);
                if let Some(part) = part {
                    let mut offset = vec![0; part.shape.len()];
                    offset[0] = part.first_row;
                    let region = Region::new(offset, tensor.shape);
                    tensor.region = region.expect("a part of a tensor is smaller than it");
                    tensor.shape = part.shape;
                }
                save.tensors.push(tensor);
            }
            let scalars = state.scalars.into_iter();
            save.scalars
                .extend(scalars.map(|(name, value)| (name, to_saved(value))));
        }
        Ok(save)
    }
}
