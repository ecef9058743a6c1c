//! The parameters and operations of each stage. Parameters are positions in the table.

use std::collections::{BTreeMap, HashMap, HashSet};

use tinderbox_deferred::{ParameterPath, ParameterTable};
use tinderbox_planner::{PlanStage, StageBytes};

use crate::PlanError;
use crate::schedule::{RankIndex, StageIndex, Tie};
use crate::trace::{ForwardOperations, JointGraph};

/// The stages of a plan. Every parameter of the table has exactly one owner. A rank has whole stages; plans, schedules and
/// lists rely on it.
#[derive(Clone, Debug)]
pub struct Layout {
    /// The owner of each parameter; a clone has the owner of its original.
    pub owners: Vec<StageIndex>,
    /// The parameters that each stage owns, in the order of the plan.
    owned: Vec<Vec<usize>>,
    /// The parameters of other stages that each stage holds copies of.
    pub copies: Vec<Vec<usize>>,
    /// The order in which squared norms of gradients are added: for every parameter in the order of the
    /// table, its owner, and its index among the parameters of the owner in the same order.
    pub norm_order: Vec<(StageIndex, usize)>,
    /// The rank of each stage.
    pub ranks: Vec<RankIndex>,
    /// The number of ranks of one replica.
    rank_count: usize,
    /// The number of replicas of every stage.
    pub replicas: usize,
    /// Whether each stage recomputes its activations in the backward.
    pub recompute: Vec<bool>,
    /// The structure of the planned forward, and the stage of each of its operations.
    pub(crate) operations: Option<(String, Vec<usize>)>,
    /// The stage of carried tensors in the planned forward, by their names. Forwards of other structures have them on
    /// the same stages, so that all can use one value.
    pub carried: BTreeMap<String, StageIndex>,
}

impl Layout {
    /// The layout of stages that own these parameters, with one replica. Fails if a parameter does not have one owner.
    pub fn new(
        table: &ParameterTable,
        owned: Vec<Vec<usize>>,
        ranks: Vec<RankIndex>,
        recompute: Vec<bool>,
    ) -> Result<Self, PlanError> {
        let parameters = table.iter().as_slice();
        let mut owner_of: HashMap<&ParameterPath, StageIndex> = HashMap::new();
        for (stage, owned) in owned.iter().enumerate() {
            let second = StageIndex::new(stage);
            for path in owned.iter().map(|position| &parameters[*position].path) {
                if let Some(first) = owner_of.insert(path, second) {
                    return Err(PlanError::OwnedTwice {
                        path: path.clone(),
                        first,
                        second,
                    });
                }
            }
        }
        let (mut owners, mut norm_order) = (Vec::new(), Vec::new());
        let mut counts = vec![0; owned.len()];
        for parameter in parameters {
            let path = parameter.clone_of.as_ref().unwrap_or(&parameter.path);
            let owner = owner_of.get(path).copied();
            let owner = owner.ok_or_else(|| PlanError::NotOwned { path: path.clone() })?;
            owners.push(owner);
            if parameter.clone_of.is_none() {
                norm_order.push((owner, counts[owner.index()]));
                counts[owner.index()] += 1;
            }
        }
        Ok(Self {
            owners,
            copies: vec![Vec::new(); owned.len()],
            owned,
            norm_order,
            rank_count: ranks.iter().map(|rank| rank.index() + 1).max().unwrap_or(0),
            replicas: 1,
            ranks,
            recompute,
            operations: None,
            carried: BTreeMap::new(),
        })
    }

    /// The layout of a plan's stages, with one replica, checked against the table.
    pub fn of_plan(table: &ParameterTable, stages: &[PlanStage]) -> Result<Self, PlanError> {
        let parameters = table.iter().as_slice();
        let positions = |paths: &[ParameterPath]| -> Result<Vec<usize>, PlanError> {
            let positions = paths.iter().map(|path| {
                let position = table.position(path);
                let distinct = position.filter(|at| parameters[*at].clone_of.is_none());
                distinct.ok_or_else(|| PlanError::UnknownParameter {
                    path: path.clone(),
                    near: table.near(path.as_str()),
                })
            });
            positions.collect()
        };
        let (mut owned, mut copies) = (Vec::new(), Vec::new());
        for stage in stages {
            owned.push(positions(&stage.parameters)?);
            copies.push(positions(&stage.copies)?);
        }
        let ranks = stages.iter().map(|stage| stage.rank).collect();
        let recompute = stages.iter().map(|stage| stage.recompute).collect();
        let layout = Self::new(table, owned, ranks, recompute)?;
        for (stage, copies) in layout.stages().zip(&copies) {
            let mut held = HashSet::new();
            for position in copies {
                let owner = layout.owners[*position];
                let path = || parameters[*position].path.clone();
                if owner == stage || !held.insert(position) {
                    let path = path();
                    return Err(PlanError::HeldTwice { path, stage });
                }
                // The stages are in order, so the first stage before the owner is the lowest.
                if owner > stage {
                    return Err(PlanError::OwnerNotLowest {
                        path: path(),
                        owner,
                        lowest: stage,
                    });
                }
            }
        }
        Ok(Self { copies, ..layout })
    }

    /// The stage of each operation of a forward; `None` for a forward of another structure than the planned one.
    pub(super) fn planned(&self, forward: &ForwardOperations) -> Option<&[usize]> {
        let operations = self.operations.as_ref();
        let known = operations.filter(|(structure, _)| structure == forward.structure());
        known.map(|(_, stages)| stages.as_slice())
    }

    /// The replica of a rank of any replica, and the index of the rank in it.
    pub fn place_of(&self, rank: RankIndex) -> (usize, RankIndex) {
        let ranks = self.rank_count.max(1);
        (rank.index() / ranks, RankIndex::new(rank.index() % ranks))
    }

    /// The rank at a place of a replica: the ranks of a replica follow the ranks of the previous replica.
    pub fn rank_at(&self, replica: usize, place: RankIndex) -> RankIndex {
        RankIndex::new(replica * self.rank_count + place.index())
    }

    /// The rank that runs a stage in a replica.
    pub fn rank_in(&self, replica: usize, stage: StageIndex) -> RankIndex {
        self.rank_at(replica, self.ranks[stage.index()])
    }

    /// All stages.
    pub fn stages(&self) -> impl DoubleEndedIterator<Item = StageIndex> + use<> {
        (0..self.owned.len()).map(StageIndex::new)
    }

    /// Whether a stage may read a parameter that is not a clone.
    pub fn holds(&self, stage: StageIndex, parameter: usize) -> bool {
        self.owners[parameter] == stage || self.copies(stage).contains(&parameter)
    }

    /// The parameters that a stage owns.
    pub fn owned(&self, stage: StageIndex) -> &[usize] {
        &self.owned[stage.index()]
    }

    /// The parameters of other stages that a stage holds copies of.
    pub fn copies(&self, stage: StageIndex) -> &[usize] {
        &self.copies[stage.index()]
    }

    /// The parameters of `owner` that `copy` holds copies of, in the order of a message.
    pub fn shared(&self, owner: StageIndex, copy: StageIndex) -> impl Iterator<Item = usize> {
        let copies = self.copies(copy).iter().copied();
        copies.filter(move |parameter| self.owners[*parameter] == owner)
    }

    /// The pairs of an owner of parameters and a stage that holds copies of them.
    pub fn ties(&self) -> impl Iterator<Item = Tie> {
        self.stages().flat_map(move |copy| {
            let copies = self.copies(copy).iter();
            copies.map(move |parameter| Tie {
                owner: self.owners[*parameter],
                copy,
            })
        })
    }

    /// The bytes that a stage holds all the time for its parameters, with this many bytes of optimizer
    /// state per byte of a parameter.
    pub fn held_bytes(&self, joint: &JointGraph, stage: StageIndex, states: u64) -> StageBytes {
        let mut held = StageBytes::default();
        for position in self.owned(stage).iter().chain(self.copies(stage)) {
            let parameter = joint.parameter(*position);
            held.parameters += parameter.bytes + joint.cast_bytes(*position);
            // The parts of a shared gradient are summed on the owner, micro-batch by micro-batch.
            if parameter.trainable && self.owners[*position] == stage {
                held.gradients += parameter.bytes;
                held.optimizer += parameter.bytes.saturating_mul(states);
            }
        }
        held
    }
}
