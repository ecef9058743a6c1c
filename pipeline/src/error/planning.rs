//! What can be wrong before anything runs: with a batch, a trace, a plan.

use std::path::PathBuf;

use tinderbox_deferred::ParameterPath;
use tinderbox_fake::RecordError;

use crate::schedule::{RankIndex, StageIndex};

/// Why a batch can't be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BatchError {
    /// No tensor of the batch has a dimension of samples.
    #[error("no tensor of the batch is divided by samples: at least one must not be `Whole`")]
    NoSamples,
    /// Two tensors have different numbers of samples.
    #[error(
        "tensor `{first}` of the batch has {expected} samples and `{name}` has {found}: wrap a \
         tensor that belongs to all samples in `Whole`"
    )]
    SampleCount {
        /// Name of the first tensor.
        first: String,
        /// Its samples.
        expected: usize,
        /// Name of the other.
        name: String,
        /// Its samples.
        found: usize,
    },
    /// There are fewer samples than micro-batches.
    #[error(
        "a batch of {samples} samples can't be split into {micro_batches} micro-batches: lower the \
         number of micro-batches"
    )]
    TooFewSamples {
        /// Samples of the batch.
        samples: usize,
        /// Micro-batches asked for.
        micro_batches: usize,
    },
}

/// Why a model could not be traced.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TraceError {
    /// The forward failed under recording.
    #[error("the forward could not be recorded")]
    Record {
        /// What went wrong.
        #[source]
        source: RecordError,
    },
    /// The forward reads the data of a tensor.
    #[error(
        "the forward could not be recorded; if it uses Burn's `PoissonNllLoss` or, in a build with \
         debug assertions, `CTCLoss`, these read their arguments to check them: write the first with \
         tensor operations, and call `burn::tensor::module::ctc_loss` in place of the second"
    )]
    DataRead {
        /// What went wrong.
        #[source]
        source: RecordError,
    },
    /// The forward uses batch norm.
    #[error(
        "the forward could not be recorded, and {} is a BatchNorm: it moves its running \
         statistics between devices, which can't be recorded; use GroupNorm, LayerNorm, RmsNorm or \
         InstanceNorm in its place",
        module_name(path)
    )]
    BatchNorm {
        /// Path of the first batch norm; empty where the model itself is one.
        path: String,
        /// What went wrong.
        #[source]
        source: RecordError,
    },
    /// The closure makes another model than it did before.
    #[error(
        "parameter `{path}` is not the same as when the model was made: the closure must make the \
         same model at every call"
    )]
    Unstable {
        /// The first parameter that differs.
        path: ParameterPath,
    },
    /// The forward of a training trace gave no loss.
    #[error(
        "the forward gave no loss: return `Outputs::loss(loss)`, or trace it with `trace_forward` for \
         evaluation alone"
    )]
    NoLoss,
    /// The loss has more than one element.
    #[error("the loss has {elements} elements: reduce it to one, with `mean` or `sum`")]
    LossShape {
        /// Elements of the loss.
        elements: usize,
    },
    /// No parameter gets a gradient.
    #[error(
        "no parameter gets a gradient from the loss: is the model frozen, or the loss detached?"
    )]
    NoGradients,
    /// An output was not made by the forward.
    #[error(
        "output `{name}` is a tensor of the host, which was not made under recording: make it on the \
         device of the batch or of a parameter"
    )]
    ForeignOutput {
        /// Name of the output.
        name: String,
    },
}

fn module_name(path: &str) -> String {
    match path.is_empty() {
        true => "the model".into(),
        false => format!("`{path}`"),
    }
}

/// A parameter that a rank does not hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotHeld {
    /// The parameter.
    pub path: ParameterPath,
    /// The rank that owns it; `None` when the plan does not name it.
    pub owner: Option<RankIndex>,
}

impl std::fmt::Display for NotHeld {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.owner {
            Some(owner) => write!(f, "`{}` belongs to rank {owner}", self.path),
            None => write!(f, "`{}` was not selected, and no rank owns it", self.path),
        }
    }
}

fn lines(parameters: &[NotHeld]) -> String {
    parameters.iter().map(|p| format!("\n  {p}")).collect()
}

/// Why a plan could not be made or used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
    /// The plan has no such rank.
    #[error("there is no rank {rank}: the plan has {ranks} rank(s), numbered from 0")]
    RankOutOfRange {
        /// The rank asked for.
        rank: usize,
        /// Number of ranks.
        ranks: usize,
    },
    /// A rank is to use parameters that it does not hold.
    #[error("rank {rank} does not hold what it is to use:{}", lines(parameters))]
    NotLit {
        /// The rank.
        rank: usize,
        /// Every such parameter.
        parameters: Vec<NotHeld>,
    },
    /// A machine without ranks.
    #[error("a machine has at least one rank")]
    NoStages,
    /// More stages than modules.
    #[error(
        "{stages} stages are too many: the model has {modules} modules with parameters, and a stage \
         needs one"
    )]
    TooManyStages {
        /// Stages asked for.
        stages: usize,
        /// Modules of the model.
        modules: usize,
    },
    /// No parameter stands under a module path.
    #[error("no parameter stands under `{module}`{}", did_you_mean(near))]
    UnknownModule {
        /// The path.
        module: String,
        /// Modules with similar paths.
        near: Vec<String>,
    },
    /// A cut leaves a stage without parameters.
    #[error(
        "the cut at `{module}` leaves a stage without parameters before or after it (cut number \
         {stage}): give the cuts in the order of the forward, each module once"
    )]
    EmptyStage {
        /// Path of the cut.
        module: String,
        /// Number of the cut, from 1.
        stage: usize,
    },
    /// The plan names a parameter that the model does not have.
    #[error(
        "the plan names `{path}`, which the model does not have{}",
        did_you_mean(near)
    )]
    UnknownParameter {
        /// The path.
        path: ParameterPath,
        /// Parameters with similar paths.
        near: Vec<ParameterPath>,
    },
    /// Two stages own one parameter.
    #[error("{}", owned_twice(path, *first, *second))]
    OwnedTwice {
        /// The parameter.
        path: ParameterPath,
        /// The stage that comes first.
        first: StageIndex,
        /// The other.
        second: StageIndex,
    },
    /// A stage is to hold a copy of a parameter that it has already.
    #[error("stage {stage} holds `{path}` and is to hold a copy of it too")]
    HeldTwice {
        /// The parameter.
        path: ParameterPath,
        /// The stage.
        stage: StageIndex,
    },
    /// A stage reads a parameter that the plan does not give it.
    #[error(
        "stage {stage} reads `{path}` for a batch of this shape, and the plan gives it no copy: make \
         the plan from a trace of such a batch"
    )]
    NotHeld {
        /// The parameter.
        path: ParameterPath,
        /// The stage.
        stage: StageIndex,
    },
    /// No stage owns a parameter.
    #[error("no stage owns `{path}`")]
    NotOwned {
        /// The parameter.
        path: ParameterPath,
    },
    /// The forward reads a stage's parameters before those of an earlier stage.
    #[error(
        "stage {stage} would need parameters that the forward reads first after those of a later \
         stage: stages must follow the order of the forward"
    )]
    OutOfOrder {
        /// The stage.
        stage: StageIndex,
    },
    /// No stage has the parameters that a backward operation reads.
    #[error("no stage holds all parameters that the backward operation {operation} reads")]
    Unplaceable {
        /// Name of the operation.
        operation: String,
    },
    /// The plan is for another model.
    #[error(
        "the plan is for a model with digest {expected}, this one has {found}: make the plan again"
    )]
    OtherModel {
        /// Digest in the plan.
        expected: String,
        /// Digest of the model.
        found: String,
    },
    /// The plan's version is unknown.
    #[error("the plan has version {found}, this build reads {expected}: make the plan again")]
    Version {
        /// What this build reads.
        expected: u32,
        /// What stands in the file.
        found: u32,
    },
    /// Stages and ranks do not match one to one.
    #[error("there are ranks for {found} stages, the plan has {expected}: give one rank per stage")]
    StageMap {
        /// Stages of the plan.
        expected: usize,
        /// Ranks that were given.
        found: usize,
    },
    /// A rank without a stage, below one that has one.
    #[error("no stage is on rank {rank}: number the ranks from 0 without a gap")]
    IdleRank {
        /// The lowest such rank.
        rank: RankIndex,
    },
    /// The stages of a plan file are not numbered 0, 1, 2.
    #[error("the stages of the plan must be numbered from 0 in their order")]
    Stages,
    /// The file is no plan.
    #[error("this is not a plan file")]
    Json {
        /// What the decoder said.
        #[source]
        source: serde_json::Error,
    },
    /// The file system failed.
    #[error("{action} {path} failed")]
    Io {
        /// What was tried.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: std::io::Error,
    },
    /// The trace failed.
    #[error("the model could not be traced")]
    Trace {
        /// What went wrong.
        #[source]
        source: TraceError,
    },
}

fn owned_twice(path: &ParameterPath, first: StageIndex, second: StageIndex) -> String {
    match first == second {
        true => format!("stage {first} lists `{path}` twice"),
        false => format!("stages {first} and {second} both own `{path}`"),
    }
}

fn did_you_mean(near: &[impl std::fmt::Display]) -> String {
    let quoted: Vec<String> = near.iter().map(|path| format!("`{path}`")).collect();
    match quoted.is_empty() {
        true => String::new(),
        false => format!("; the nearest are {}", quoted.join(", ")),
    }
}
