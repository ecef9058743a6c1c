//! The plan: its fields, and reading and writing its file.

use std::collections::BTreeSet;
use std::path::Path;

use serde::{Deserialize, Serialize};
use tinderbox_ids::ParameterPath;
use tinderbox_schedule::{
    Costs, Dependencies, Edge, RankIndex, Schedule, StageCosts, StageIndex, Tie, simulate, verify,
};

use crate::predict::{RankMemory, StageBytes, memory_of_ranks, schedule_of};
use crate::{Choice, Machine, PlanFileError, PlannerError, Prediction, Step, files};

/// Version of the plan file that this build writes. It reads this version and version 2, which had no shards and no strategy.
pub const PLAN_VERSION: u32 = 3;

/// The oldest version that this build reads.
const OLDEST_VERSION: u32 = 2;

/// A parameter of the model that a plan is for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlanParameter {
    /// The path of the parameter.
    pub path: ParameterPath,
    /// The shape.
    pub shape: Vec<usize>,
    /// The dtype, as Burn names it.
    pub dtype: String,
}

/// A value that crosses a stage's boundary: it comes from an earlier stage, goes to a later one, or
/// bypasses the stage.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlanValue {
    /// Its name in the programs' text, such as `v12`.
    pub name: String,
    /// The operation that computes it and the module of the operation, such as `matmul in blocks.0`.
    pub made_by: String,
    /// The stage that computes it.
    pub from: StageIndex,
    /// The last stage that reads it.
    pub to: StageIndex,
    /// Its shape.
    pub shape: Vec<usize>,
    /// Its dtype, as Burn names it.
    pub dtype: String,
    /// Its bytes, per micro-batch.
    pub bytes: u64,
}

/// One program of a stage as text.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlanProgram {
    /// `forward`, `backward`, `input gradient`, `weight gradient`.
    pub name: String,
    /// Its inputs from other programs, one line each.
    pub reads: Vec<String>,
    /// Its operations in order, one line each: result and operands, the module path, and the values that are kept,
    /// sent or freed after it.
    pub operations: Vec<String>,
}

/// One stage of a plan.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlanStage {
    /// Its position; stage 0 reads the batch.
    pub stage: StageIndex,
    /// The rank that runs it.
    pub rank: RankIndex,
    /// Its modules in the order of the forward.
    pub modules: Vec<String>,
    /// The parameters that it owns: it materializes, updates and saves them.
    pub parameters: Vec<ParameterPath>,
    /// Parameters of other stages that it reads too. It holds a copy, which its owner keeps equal.
    #[serde(rename = "replicas")]
    pub copies: Vec<ParameterPath>,
    /// Bytes of the parameters that it owns.
    pub parameter_bytes: u64,
    /// Bytes of its copies.
    #[serde(rename = "replica_bytes")]
    pub copy_bytes: u64,
    /// Forward FLOPs of one micro-batch.
    pub forward_flops: u64,
    /// Backward FLOPs of one micro-batch.
    pub backward_flops: u64,
    /// Bytes that it passes to other stages per micro-batch, forward and backward; stages on the same
    /// rank receive them without a message.
    pub boundary_bytes: u64,
    /// Whether its backward recomputes the activations, so that the forward keeps only the values of
    /// other stages: less memory for one more forward.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub recompute: bool,
    /// The operations of the traced forward that it runs, as ranges of positions `[from, to)`.
    pub operations: Vec<(usize, usize)>,
    /// Times in nanoseconds, and bytes.
    pub costs: StageCosts,
    /// Values that other stages' forwards send to it.
    pub live_in: Vec<PlanValue>,
    /// Values that it sends to other stages.
    pub live_out: Vec<PlanValue>,
    /// Values that a lower stage sends to a higher one without passing through this stage.
    pub bypassing: Vec<PlanValue>,
    /// Its programs as text; empty in a plan without them, as when they have more than 4 MiB.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub programs: Vec<PlanProgram>,
}

impl PlanStage {
    /// Returns whether the stage holds a parameter, as its owner or as a copy.
    pub fn holds(&self, path: &ParameterPath) -> bool {
        self.parameters.contains(path) || self.copies.contains(path)
    }

    /// Returns the bytes of the parameters that the stage holds, copies included.
    pub(crate) const fn held_bytes(&self) -> u64 {
        self.parameter_bytes.saturating_add(self.copy_bytes)
    }
}

/// Values that a program of one stage sends to a program of another, per micro-batch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Boundary {
    /// The programs that the edge connects.
    pub edge: Edge,
    /// The number of values.
    pub values: usize,
    /// Their bytes.
    pub bytes: u64,
}

/// A parameter that several stages read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TieGroup {
    /// The parameter.
    pub path: ParameterPath,
    /// Other paths of the same parameter.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub clones: Vec<ParameterPath>,
    /// The stage that owns it.
    pub owner: StageIndex,
    /// Stages that hold copies.
    pub copies: Vec<StageIndex>,
}

/// A plan: which stage owns, runs and sends what, and the predicted time and memory of a step.
///
/// Ownership is by path, so a plan is valid for every mode and batch shape of its model; operations,
/// boundaries and predictions belong to the planned micro-batch. The same inputs produce the same bytes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// [`PLAN_VERSION`], also of a plan that was read from a file of an older version.
    pub version: u32,
    /// A digest of the model's parameters: paths, shapes and dtypes.
    pub model: String,
    /// A digest of the traced program: its operations, their shapes and their inputs.
    pub graph: String,
    /// A digest of the traced forward without shapes: programs that share it, such as programs of other
    /// batch sizes, are cut at the same operations.
    pub structure: String,
    /// The number of samples of the planned micro-batch; `None` if its batch has no samples.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub samples: Option<usize>,
    /// Mode and batch shapes of the traced program.
    pub program: String,
    /// The partitioner and the reasons.
    pub choice: Choice,
    /// The strategy of the program that created the plan, in its own words. This build only keeps and shows the text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub strategy: Option<String>,
    /// The machine.
    pub machine: Machine,
    /// The step.
    pub step: Step,
    /// The compute lists of the schedule, where the step's named schedule does not fit the ranks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lists: Option<String>,
    /// The predicted time and memory of a step.
    pub prediction: Prediction,
    /// The parameters of the model, in the order of its table.
    pub parameters: Vec<PlanParameter>,
    /// The operations of the traced forward that depend on parameters, in order: the positions of
    /// [`PlanStage::operations`].
    pub forward: Vec<String>,
    /// Parameters that several stages read.
    pub ties: Vec<TieGroup>,
    /// Values that cross between stages.
    pub boundaries: Vec<Boundary>,
    /// The stages in order.
    pub stages: Vec<PlanStage>,
}

impl Plan {
    /// Writes the plan as JSON.
    ///
    /// # Errors
    ///
    /// When the file can't be written.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<(), PlanFileError> {
        Ok(files::write("plan", path.as_ref(), &self.to_json())?)
    }

    /// Reads a plan from a file.
    ///
    /// # Errors
    ///
    /// The errors of [`Self::from_json`], and when the file can't be read.
    pub fn load(path: impl AsRef<Path>) -> Result<Self, PlanFileError> {
        Self::from_json(&files::read("plan", path.as_ref())?)
    }

    /// Returns the plan as JSON.
    pub fn to_json(&self) -> String {
        files::json(self)
    }

    /// Reads a plan from JSON.
    ///
    /// # Errors
    ///
    /// When the text is not a plan of version 2 or 3, its stages and ranks are not numbered in order, the number of replicas is
    /// no power of two, or a stage has several shards.
    pub fn from_json(text: &str) -> Result<Self, PlanFileError> {
        let text = files::without_mark(text);
        let json = |source| PlanFileError::Json { source };
        let found = files::version(text).map_err(json)?;
        let (oldest, newest) = (OLDEST_VERSION, PLAN_VERSION);
        if !(oldest..=newest).contains(&found) {
            return Err(PlanFileError::Version {
                oldest,
                newest,
                found,
            });
        }
        let mut plan: Self = serde_json::from_str(text).map_err(json)?;
        // The fields that version 2 lacks have defaults.
        plan.version = newest;
        let replicas = plan.replicas();
        if !replicas.is_power_of_two() {
            return Err(PlanFileError::Replicas { replicas });
        }
        plan.check_shards()?;
        let mut stages = plan.stages.iter().enumerate();
        if plan.stages.is_empty() || !stages.all(|(k, stage)| stage.stage.index() == k) {
            return Err(PlanFileError::Stages);
        }
        plan.check_ranks()?;
        Ok(plan)
    }

    /// Checks that the ranks are numbered from 0 without gaps.
    ///
    /// # Errors
    ///
    /// [`PlanFileError::IdleRank`] for the first rank without a stage.
    pub fn check_ranks(&self) -> Result<(), PlanFileError> {
        let used: BTreeSet<RankIndex> = self.stages.iter().map(|stage| stage.rank).collect();
        let mut all = (0..used.len()).map(RankIndex::new);
        match all.find(|rank| !used.contains(rank)) {
            Some(rank) => Err(PlanFileError::IdleRank { rank }),
            None => Ok(()),
        }
    }

    /// Checks that the plan has one shard of every stage, because this version runs no shards.
    ///
    /// # Errors
    ///
    /// [`PlanFileError::Shards`] with the number of shards.
    pub const fn check_shards(&self) -> Result<(), PlanFileError> {
        match self.step.shards {
            1 => Ok(()),
            shards => Err(PlanFileError::Shards { shards }),
        }
    }

    /// Returns the plan without the text of its programs.
    #[must_use]
    pub fn without_programs(&self) -> Self {
        let mut plan = self.clone();
        for stage in &mut plan.stages {
            stage.programs.clear();
        }
        plan
    }

    /// Returns the rank of every stage.
    pub fn stage_to_rank(&self) -> Vec<RankIndex> {
        self.stages.iter().map(|stage| stage.rank).collect()
    }

    /// Returns the number of ranks of a replica.
    pub fn ranks(&self) -> usize {
        let last = self.stages.iter().map(|stage| stage.rank.index()).max();
        last.map_or(0, |last| last.saturating_add(1))
    }

    /// Returns the number of replicas. Every stage runs on this number of ranks, which divide the micro-batches among
    /// themselves and sum their gradients before the update. The ranks of a replica follow the ranks of the replica before.
    pub const fn replicas(&self) -> usize {
        self.step.replicas
    }

    /// Returns the number of ranks of all replicas.
    pub fn world_size(&self) -> usize {
        self.ranks().saturating_mul(self.replicas())
    }

    /// Returns the stages of a rank of a replica, in the order of the forward.
    ///
    /// # Errors
    ///
    /// [`PlanFileError::RankOutOfRange`] when the plan has no such rank.
    pub fn rank(&self, rank: usize) -> Result<Vec<&PlanStage>, PlanFileError> {
        let stages = self.stages.iter();
        let stages: Vec<&PlanStage> = stages.filter(|one| one.rank.index() == rank).collect();
        if stages.is_empty() {
            let ranks = self.ranks();
            return Err(PlanFileError::RankOutOfRange { rank, ranks });
        }
        Ok(stages)
    }

    /// Returns the stage that materializes, updates and saves a parameter; `None` if the plan does not contain it.
    pub fn owner(&self, path: &ParameterPath) -> Option<&PlanStage> {
        let mut stages = self.stages.iter();
        stages.find(|stage| stage.parameters.contains(path))
    }

    /// Returns the costs of a step for the simulator, where a tick is a nanosecond.
    pub fn costs(&self) -> Costs {
        let stages = self.stages.iter().map(|stage| stage.costs).collect();
        let messages = self.boundaries.iter();
        let messages = messages.map(|one| (one.edge, one.bytes)).collect();
        self.machine.costs(stages, messages, self.step.replicas)
    }

    /// Returns the dependencies between stages: boundaries and ties.
    pub fn dependencies(&self) -> Dependencies {
        let ties = self.ties.iter().flat_map(|tie| {
            let owner = tie.owner;
            let copies = tie.copies.iter();
            copies.map(move |copy| Tie { owner, copy: *copy })
        });
        let edges = self.boundaries.iter().map(|boundary| boundary.edge);
        let dependencies = Dependencies::new(self.stages.len(), edges, ties);
        self.step.with_replicas(dependencies)
    }

    /// Returns the lists of the predicted step: the plan's own lists, or else the lists of the named schedule. `None` if the
    /// lists in the file are invalid, or the schedule is not for these stages.
    pub fn lists_of_step(&self) -> Option<Schedule> {
        let map = self.stage_to_rank();
        let Some(text) = &self.lists else {
            return self.step.lists(&map);
        };
        let lists = Schedule::parse("auto", text).ok();
        lists.filter(|lists| lists.stage_to_rank == map)
    }

    /// Returns a schedule of the stages for a number of micro-batches and their dependencies: the
    /// plan's own if it is valid for them, or else the result of a search by the stages' costs.
    ///
    /// # Errors
    ///
    /// When no schedule runs the stages within the memory of the ranks.
    pub fn lists_for(
        &self,
        micro_batches: usize,
        dependencies: &Dependencies,
    ) -> Result<Schedule, PlannerError> {
        if let Some(known) = self.lists_of_step()
            && known.micro_batches == micro_batches
            && verify(&known, dependencies).is_ok()
        {
            return Ok(known);
        }
        let step = Step {
            micro_batches,
            replicas: 1,
            ..self.step.clone()
        };
        let map = self.stage_to_rank();
        let mut found = schedule_of(&self.machine, &step, &map, dependencies, &self.costs())?;
        found.name = "auto".to_owned();
        Ok(found)
    }

    /// Predicts the memory of each rank in another step of these stages: with another schedule, number of micro-batches, or
    /// optimizer. The micro-batches have the size of the planned one. The stages keep their ranks, replicas and recomputations.
    ///
    /// Cost: a simulation of the step.
    ///
    /// # Errors
    ///
    /// When another schedule does not run the stages on their ranks, and when no lists of a plan without a named schedule are
    /// found within the memory of the ranks. Otherwise it is no error to exceed the limit of a rank.
    pub fn memory_with(&self, step: &Step) -> Result<Vec<RankMemory>, PlannerError> {
        let step = Step {
            replicas: self.step.replicas,
            ..step.clone()
        };
        let map = self.stage_to_rank();
        if step.schedule != self.step.schedule && step.lists(&map).is_none() {
            return Err(PlannerError::OtherPlaces {
                schedule: step.schedule,
                stages: self.stages.len(),
                ranks: self.ranks(),
                micro_batches: step.micro_batches,
            });
        }
        let (mut costs, dependencies) = (self.costs(), self.dependencies());
        let mut bytes = vec![StageBytes::default(); map.len()];
        for (rank, planned) in self.prediction.ranks.iter().enumerate() {
            // The first stage of a rank has the bytes of all its stages.
            let first = map.iter().position(|of| of.index() == rank);
            let trained = planned.memory.gradients / self.step.gradients_held();
            let states = trained.saturating_mul(step.optimizer_states);
            if let Some(first) = first {
                bytes[first] = StageBytes {
                    parameters: planned.memory.parameters,
                    gradients: planned.memory.gradients,
                    optimizer: states / step.share() as u64,
                };
            }
        }
        for (stage, held) in costs.stages.iter_mut().zip(&bytes) {
            stage.resident_bytes = held.resident();
        }
        let lists = schedule_of(&self.machine, &step, &map, &dependencies, &costs)?;
        let timeline = simulate(&lists, &dependencies, &costs)?;
        Ok(memory_of_ranks(&lists, &timeline, &costs, &bytes))
    }
}
