//! The plan: which stage owns what, as one file.

mod build;
mod ownership;
mod table;

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use serde::{Deserialize, Serialize};
use tinderbox_deferred::{ParameterPath, ParameterTable};

use crate::PlanError;
use crate::batch::Batch;
use crate::cut::{Holding, Layout, Sharing};
use crate::partition::{Cut, balance, manual};
use crate::schedule::{Edge, Placement, RankIndex, StageIndex};
use crate::trace::Trace;

/// Version of the plan file that this build writes and reads.
const VERSION: u32 = 1;

/// The machine that a plan is for, and how stages lie on its ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Machine {
    ranks: usize,
    chunks: usize,
    placement: Placement,
}

impl Machine {
    /// Ranks as threads of this process, one stage each.
    ///
    /// # Errors
    ///
    /// When there are none.
    pub fn local(ranks: usize) -> Result<Self, PlanError> {
        match ranks {
            0 => Err(PlanError::NoStages),
            ranks => Ok(Self {
                ranks,
                chunks: 1,
                placement: Placement::Loop,
            }),
        }
    }

    /// The same machine with `chunks` stages on every rank, for schedules that ask for several:
    /// [`ScheduleKind::placement`](crate::schedule::ScheduleKind::placement) says how they lie.
    ///
    /// # Errors
    ///
    /// When a rank would have none.
    pub fn with_chunks(self, chunks: usize, placement: Placement) -> Result<Self, PlanError> {
        match chunks {
            0 => Err(PlanError::NoStages),
            chunks => Ok(Self {
                chunks,
                placement,
                ..self
            }),
        }
    }

    /// Number of ranks.
    pub fn ranks(&self) -> usize {
        self.ranks
    }

    /// The rank of every stage.
    pub fn stage_to_rank(&self) -> Vec<RankIndex> {
        self.placement.stage_to_rank(self.ranks, self.chunks)
    }
}

/// One stage of a plan.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
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
    /// Bytes that it hands to other stages per micro-batch, forward and backward; to those on its own
    /// rank without a message.
    pub boundary_bytes: u64,
    /// Whether its backward makes the activations again, so that the forward keeps only what it got
    /// from other stages: less memory for one more forward.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub recompute: bool,
}

/// Values that one stage's program sends to another's, per micro-batch.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Boundary {
    /// From which program to which.
    pub edge: Edge,
    /// How many values.
    pub values: usize,
    /// Their bytes.
    pub bytes: u64,
}

/// Which stage owns which parameters, and what crosses between stages.
///
/// Ownership is by path, so a plan serves every mode and batch shape of its model; boundaries are
/// those of the traced batch. The file is the same whenever it is made from the same model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    version: u32,
    model: String,
    program: String,
    stages: Vec<PlanStage>,
    boundaries: Vec<Boundary>,
}

/// What every version of the file has.
#[derive(Deserialize)]
struct Versioned {
    version: u32,
}

impl Plan {
    /// The most even contiguous cut into the stages of a machine: a stage's load is the larger of its shares of
    /// bytes and forward FLOPs; among the cuts within 10 % of the most even one, the one that sends
    /// the fewest bytes.
    ///
    /// # Errors
    ///
    /// When the model has fewer modules than the machine has stages, or its graph can't be cut.
    pub fn auto<B: Batch>(trace: &Trace<B>, machine: &Machine) -> Result<Self, PlanError> {
        let stage_to_rank = machine.stage_to_rank();
        let stages = stage_to_rank.len();
        let plan = Self::build(trace, |units, _| {
            balance(units, stages).ok_or(PlanError::TooManyStages {
                stages,
                modules: units.len(),
            })
        })?;
        plan.on_ranks(&stage_to_rank)
    }

    /// A plan with one stage more than there are cuts, given in the order of the forward, each on a
    /// rank of its own.
    ///
    /// # Errors
    ///
    /// When a module is unknown, a stage would be empty, or the graph can't be cut.
    pub fn manual<B: Batch>(trace: &Trace<B>, cuts: &[Cut]) -> Result<Self, PlanError> {
        Self::build(trace, |units, table| manual(units, cuts, table))
    }

    /// The same stages on other ranks: rank `stage_to_rank[s]` runs stage `s`.
    ///
    /// # Errors
    ///
    /// When there is not one rank per stage, or a rank between 0 and the highest has no stage.
    pub fn on_ranks(mut self, stage_to_rank: &[RankIndex]) -> Result<Self, PlanError> {
        if stage_to_rank.len() != self.stages.len() {
            return Err(PlanError::StageMap {
                expected: self.stages.len(),
                found: stage_to_rank.len(),
            });
        }
        for (stage, rank) in self.stages.iter_mut().zip(stage_to_rank) {
            stage.rank = *rank;
        }
        self.check_ranks()?;
        Ok(self)
    }

    /// Says which stages make their activations again in the backward, instead of keeping them. The
    /// gradients are the same, bit for bit, dropout included.
    #[must_use]
    pub fn recompute(mut self, stages: impl Fn(&PlanStage) -> bool) -> Self {
        for stage in &mut self.stages {
            stage.recompute = stages(stage);
        }
        self
    }

    /// The rank of every stage.
    pub fn stage_to_rank(&self) -> Vec<RankIndex> {
        self.stages.iter().map(|stage| stage.rank).collect()
    }

    /// The stages in order.
    pub fn stages(&self) -> &[PlanStage] {
        &self.stages
    }

    /// What crosses between stages.
    pub fn boundaries(&self) -> &[Boundary] {
        &self.boundaries
    }

    /// A digest of the model's parameters: paths, shapes and dtypes.
    pub fn model(&self) -> &str {
        &self.model
    }

    /// Writes the plan as JSON.
    ///
    /// # Errors
    ///
    /// When the file can't be written.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<(), PlanError> {
        let path = path.as_ref();
        fs::write(path, self.to_json()).map_err(|source| PlanError::Io {
            action: "writing",
            path: path.into(),
            source,
        })
    }

    /// Reads a plan.
    ///
    /// # Errors
    ///
    /// When the file can't be read, or is no plan of this version.
    pub fn load(path: impl AsRef<Path>) -> Result<Self, PlanError> {
        let path = path.as_ref();
        let text = fs::read_to_string(path).map_err(|source| PlanError::Io {
            action: "reading",
            path: path.into(),
            source,
        })?;
        Self::from_json(&text)
    }

    /// The plan as JSON.
    pub fn to_json(&self) -> String {
        let mut text =
            serde_json::to_string_pretty(self).expect("a plan has string keys and no floats");
        text.push('\n');
        text
    }

    /// A plan from JSON.
    ///
    /// # Errors
    ///
    /// When the text is no plan of this version.
    pub fn from_json(text: &str) -> Result<Self, PlanError> {
        // The version first: another one may have other fields.
        let Versioned { version } =
            serde_json::from_str(text).map_err(|source| PlanError::Json { source })?;
        if version != VERSION {
            return Err(PlanError::Version {
                expected: VERSION,
                found: version,
            });
        }
        let plan: Self = serde_json::from_str(text).map_err(|source| PlanError::Json { source })?;
        let in_order = plan
            .stages
            .iter()
            .enumerate()
            .all(|(k, s)| s.stage.index() == k);
        if plan.stages.is_empty() || !in_order {
            return Err(PlanError::Stages);
        }
        plan.check_ranks()?;
        Ok(plan)
    }

    /// Refuses ranks without a stage.
    fn check_ranks(&self) -> Result<(), PlanError> {
        let used: BTreeSet<RankIndex> = self.stages.iter().map(|stage| stage.rank).collect();
        let gap = used
            .iter()
            .enumerate()
            .find(|(at, rank)| rank.index() != *at);
        match gap {
            Some((rank, _)) => Err(PlanError::IdleRank {
                rank: RankIndex::new(rank),
            }),
            None => Ok(()),
        }
    }

    /// Refuses a plan of another model.
    ///
    /// # Errors
    ///
    /// When the plan does not own each parameter of the table exactly once.
    pub fn check_model(&self, table: &ParameterTable) -> Result<(), PlanError> {
        self.layout(table).map(drop)
    }

    pub(crate) fn layout(&self, table: &ParameterTable) -> Result<Layout, PlanError> {
        let found = build::model_digest(table);
        if found != self.model {
            let expected = self.model.clone();
            return Err(PlanError::OtherModel { expected, found });
        }
        let holdings = self.stages.iter().map(|stage| Holding {
            owned: stage.parameters.clone(),
            replicas: stage.replicas.clone(),
        });
        Layout::new(table, holdings.collect(), Sharing::Decided)
    }
}
