//! The plan as one deterministic file.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use serde::{Deserialize, Serialize};
use tinderbox_path::ParameterPath;
use tinderbox_schedule::{
    Costs, Dependencies, Edge, RankIndex, Schedule, StageCosts, StageIndex, Tie, verify,
};

use crate::predict::schedule_of;
use crate::{Machine, PlanFileError, PlannerError, Prediction, Step};

/// Version of the plan file that this build writes and reads.
pub const PLAN_VERSION: u32 = 2;

/// A parameter of the model that a plan is for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlanParameter {
    /// Its path.
    pub path: ParameterPath,
    /// Its shape.
    pub shape: Vec<usize>,
    /// Its dtype, as Burn names it.
    pub dtype: String,
}

/// A value of a stage: one that comes from an earlier stage, goes to a later one, or passes by.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlanValue {
    /// Its name in the programs' text, such as `v12`.
    pub name: String,
    /// The operation that makes it and the module that it stands in, such as `matmul in blocks.0`.
    pub made_by: String,
    /// The stage that makes it.
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
    /// What it reads from elsewhere, one line each.
    pub reads: Vec<String>,
    /// Its operations in order, one line each: what is made of what, the module path, and what is kept,
    /// sent or freed behind it.
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
    /// The parameters that it owns: it makes, updates and saves them.
    pub parameters: Vec<ParameterPath>,
    /// Parameters of other stages that it reads too. It holds a copy, which its owner keeps equal.
    pub replicas: Vec<ParameterPath>,
    /// Bytes of the parameters that it owns.
    pub parameter_bytes: u64,
    /// Bytes of its replicas.
    pub replica_bytes: u64,
    /// Forward FLOPs of one micro-batch.
    pub forward_flops: u64,
    /// Backward FLOPs of one micro-batch.
    pub backward_flops: u64,
    /// Bytes that it hands to other stages per micro-batch, forward and backward; to those on its own
    /// rank without a message.
    pub boundary_bytes: u64,
    /// Whether its backward makes the activations again, so that the forward keeps only what it got
    /// from other stages: less memory for one more forward.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub recompute: bool,
    /// The operations of the traced forward that it runs, as ranges of positions `[from, to)`.
    pub operations: Vec<(usize, usize)>,
    /// Times in nanoseconds, and bytes.
    pub costs: StageCosts,
    /// Values that come from other stages' forwards.
    pub live_in: Vec<PlanValue>,
    /// Values that go to other stages.
    pub live_out: Vec<PlanValue>,
    /// Values that go from a lower stage to a higher one past this.
    pub bypassing: Vec<PlanValue>,
    /// Its programs as text; empty where the plan was made without.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub programs: Vec<PlanProgram>,
}

impl PlanStage {
    /// Whether the stage holds a parameter, as its owner or as a copy.
    #[must_use]
    pub fn holds(&self, path: &ParameterPath) -> bool {
        self.parameters.contains(path) || self.replicas.contains(path)
    }
}

/// Values that one stage's program sends to another's, per micro-batch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Boundary {
    /// From which program to which.
    pub edge: Edge,
    /// How many values.
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

/// Which partitioner made a plan, and why it was taken.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Choice {
    /// Its name: `chain`, `mixed`, `metis`, or `manual` for cuts by hand.
    pub partitioner: String,
    /// Why, one sentence a line.
    pub reasons: Vec<String>,
}

/// A plan: which stage owns what, runs what and sends what, and what a step will take.
///
/// Ownership is by path, so a plan serves every mode and batch shape of its model; operations,
/// boundaries and predictions are those of the traced batch. The same inputs give the same bytes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlanFile {
    /// [`PLAN_VERSION`].
    pub version: u32,
    /// A digest of the model's parameters: paths, shapes and dtypes.
    pub model: String,
    /// A digest of the traced program: its operations, their shapes and what they read.
    pub graph: String,
    /// A digest of the traced forward without shapes: programs that share it, those of other batch
    /// sizes say, are cut at the same operations.
    pub structure: String,
    /// Mode and batch shapes of the traced program.
    pub program: String,
    /// How the stages were chosen.
    pub choice: Choice,
    /// The machine.
    pub machine: Machine,
    /// The step.
    pub step: Step,
    /// The compute lists of the schedule, where the step's named one does not fit the ranks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lists: Option<String>,
    /// What a step will take.
    pub prediction: Prediction,
    /// The parameters of the model, in the order of its table.
    pub parameters: Vec<PlanParameter>,
    /// The operations of the traced forward that depend on parameters, in order: what the ranges of
    /// [`PlanStage::operations`] count.
    pub forward: Vec<String>,
    /// Parameters that several stages read.
    pub ties: Vec<TieGroup>,
    /// What crosses between stages.
    pub boundaries: Vec<Boundary>,
    /// The stages in order.
    pub stages: Vec<PlanStage>,
}

/// What every version of the file has.
#[derive(Deserialize)]
struct Versioned {
    version: u32,
}

impl PlanFile {
    /// Writes the plan as JSON.
    ///
    /// # Errors
    ///
    /// When the file can't be written.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<(), PlanFileError> {
        let path = path.as_ref();
        fs::write(path, self.to_json()).map_err(|source| PlanFileError::Io {
            path: path.to_owned(),
            action: "written",
            source,
        })
    }

    /// Reads a plan from a file.
    ///
    /// # Errors
    ///
    /// When the file can't be read or is no plan of this version.
    pub fn load(path: impl AsRef<Path>) -> Result<Self, PlanFileError> {
        let path = path.as_ref();
        let text = fs::read_to_string(path).map_err(|source| PlanFileError::Io {
            path: path.to_owned(),
            action: "read",
            source,
        })?;
        Self::from_json(&text)
    }

    /// The plan as JSON.
    #[must_use]
    pub fn to_json(&self) -> String {
        let text = serde_json::to_string_pretty(self);
        let mut text = text.expect("a plan has string keys and no floats");
        text.push('\n');
        text
    }

    /// A plan from JSON.
    ///
    /// # Errors
    ///
    /// When the text is no plan of this version, or its stages and ranks are not numbered in order.
    pub fn from_json(text: &str) -> Result<Self, PlanFileError> {
        let json = |source| PlanFileError::Json { source };
        // The version first: another one may have other fields.
        let Versioned { version } = serde_json::from_str(text).map_err(json)?;
        if version != PLAN_VERSION {
            return Err(PlanFileError::Version {
                expected: PLAN_VERSION,
                found: version,
            });
        }
        let plan: Self = serde_json::from_str(text).map_err(json)?;
        let mut stages = plan.stages.iter().enumerate();
        if plan.stages.is_empty() || !stages.all(|(k, stage)| stage.stage.index() == k) {
            return Err(PlanFileError::Stages);
        }
        plan.check_ranks()?;
        Ok(plan)
    }

    /// Refuses ranks without a stage.
    ///
    /// # Errors
    ///
    /// Names the first such rank.
    pub fn check_ranks(&self) -> Result<(), PlanFileError> {
        let used: BTreeSet<RankIndex> = self.stages.iter().map(|stage| stage.rank).collect();
        let mut used = used.iter().enumerate();
        match used.find(|(at, rank)| rank.index() != *at) {
            Some((rank, _)) => Err(PlanFileError::IdleRank {
                rank: RankIndex::new(rank),
            }),
            None => Ok(()),
        }
    }

    /// The same plan without the text of its programs.
    #[must_use]
    pub fn without_programs(&self) -> Self {
        let mut plan = self.clone();
        for stage in &mut plan.stages {
            stage.programs.clear();
        }
        plan
    }

    /// The rank of every stage.
    #[must_use]
    pub fn stage_to_rank(&self) -> Vec<RankIndex> {
        self.stages.iter().map(|stage| stage.rank).collect()
    }

    /// Number of ranks.
    #[must_use]
    pub fn ranks(&self) -> usize {
        let ranks = self
            .stages
            .iter()
            .map(|stage| stage.rank.index().saturating_add(1));
        ranks.max().unwrap_or(0)
    }

    /// What a step costs, for the simulator: a tick is a nanosecond.
    #[must_use]
    pub fn costs(&self) -> Costs {
        let mut costs = Costs::of_stages(self.stages.iter().map(|stage| stage.costs).collect());
        costs.link = self.machine.link;
        costs.overhead = self.machine.action_ns;
        let edges = self.boundaries.iter();
        costs.message_bytes = edges
            .map(|boundary| (boundary.edge, boundary.bytes))
            .collect();
        costs
    }

    /// What depends on what.
    #[must_use]
    pub fn dependencies(&self) -> Dependencies {
        let ties = self.ties.iter().flat_map(|tie| {
            let owner = tie.owner;
            let copies = tie.copies.iter();
            copies.map(move |replica| Tie {
                owner,
                replica: *replica,
            })
        });
        let edges = self.boundaries.iter().map(|boundary| boundary.edge);
        Dependencies::new(self.stages.len(), edges, ties)
    }

    /// The schedule that the prediction is of; `None` where the lists in the file are none, or the
    /// named schedule does not take these stages.
    #[must_use]
    pub fn schedule(&self) -> Option<Schedule> {
        let ranks = self.ranks();
        let mut schedule = match &self.lists {
            Some(text) => Schedule::parse(self.step.schedule.name(), text).ok()?,
            None => {
                let chunks = self.stages.len() / ranks.max(1);
                let kind = self.step.schedule;
                kind.generate(ranks, chunks, self.step.micro_batches).ok()?
            }
        };
        if self.lists.is_some() {
            schedule.name = "auto".to_owned();
        }
        (schedule.stage_to_rank == self.stage_to_rank()).then_some(schedule)
    }

    /// Compute actions for these stages, as many micro-batches and what they wait for: those in the file
    /// where they fit, else ones that are found by the stages' costs.
    ///
    /// # Errors
    ///
    /// When no lists run the stages within the memory of the ranks.
    pub fn lists_for(
        &self,
        micro_batches: usize,
        dependencies: &Dependencies,
    ) -> Result<Schedule, PlannerError> {
        if let Some(known) = self.schedule()
            && known.micro_batches == micro_batches
            && verify(&known, dependencies).is_ok()
        {
            return Ok(known);
        }
        let step = Step {
            micro_batches,
            ..self.step.clone()
        };
        let map = self.stage_to_rank();
        let mut found = schedule_of(&self.machine, &step, &map, dependencies, &self.costs())?;
        found.name = "auto".to_owned();
        Ok(found)
    }
}
