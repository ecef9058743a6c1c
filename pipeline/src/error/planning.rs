//! What can be wrong before anything runs: with a batch, a trace, a plan.

use burn::tensor::DType;
use tinderbox_deferred::{DeferredError, ParameterPath, ProgramError};
use tinderbox_fake::{Difference, RecordError, dtype_name};
use tinderbox_planner::{MachineError, ModelDifference, PlanFileError, PlannerError};

use crate::partition::Cut;
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
    /// A tensor has another dtype than the one that the model was traced with.
    #[error(
        "tensor `{name}` of the batch is {}, and the model was traced with {}: cast it, or trace with such a batch",
        dtype_name(*found),
        dtype_name(*expected)
    )]
    DType {
        /// Name of the tensor; empty for a lone one.
        name: String,
        /// The dtype of the example.
        expected: DType,
        /// Its dtype.
        found: DType,
    },
    /// A tensor has no data.
    #[error(
        "tensor `{name}` of the batch is fake: it has a shape and no data, because it was made while something was \
         recorded"
    )]
    Fake {
        /// Name of the tensor; empty for a lone one.
        name: String,
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
    /// There are fewer samples than micro-batches, and a written schedule.
    #[error(
        "a batch of {samples} samples can't be split into {micro_batches} micro-batches, and the schedule is written for a \
         fixed number: drop the batch, or train under a named schedule, which is generated for fewer"
    )]
    TooFewForSchedule {
        /// Samples of the batch.
        samples: usize,
        /// Micro-batches asked for.
        micro_batches: usize,
    },
    /// There are no samples.
    #[error("the batch has no samples: its tensors have a first dimension of 0")]
    Empty,
}

/// Why a model could not be traced.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TraceError {
    /// The forward failed under recording.
    #[error("the forward could not be recorded")]
    Record {
        /// What went wrong.
        source: RecordError,
    },
    /// The forward uses batch norm.
    #[error(
        "the forward could not be recorded, and {} is a BatchNorm: it moves its running \
         statistics between devices, which can't be recorded; use GroupNorm, LayerNorm, RmsNorm or \
         InstanceNorm in its place, or train with fixed statistics \
         (`config.init(&device.clone().without_autodiff()).freeze()`)",
        module_name(path)
    )]
    BatchNorm {
        /// Path of the first batch norm; empty where the model itself is one.
        path: String,
        /// What went wrong.
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
    /// The constructor fails, or makes another model, when it is called again.
    #[error("the model can't be constructed twice alike")]
    Constructor {
        /// What differs.
        source: DeferredError,
    },
    /// The forward does something else when it is called again.
    #[error(
        "two recordings of the same forward differ: in the {place}, {difference}; a forward must depend on the \
         model and the batch alone, so take random values from `Tensor::random`, and what changes with the \
         step from the batch"
    )]
    UnstableForward {
        /// The constructor, the forward or the backward.
        place: &'static str,
        /// The first operation or constant that differs.
        difference: Difference,
    },
    /// The forward gives back something else when it is called again.
    #[error(
        "two recordings of the same forward differ in what output `{name}` is: a forward must depend on the model \
         and the batch alone"
    )]
    UnstableOutput {
        /// Name of the output.
        name: String,
    },
    /// The forward reads a random tensor that is no parameter.
    #[error(
        "the forward reads a tensor that the constructor makes at random (`{operation}`) and that is no parameter{}: no \
         checkpoint has it, and every construction makes another; make it a parameter that does not train, \
         `Param::from_tensor(tensor).set_require_grad(false)`",
        in_fields(fields)
    )]
    RandomField {
        /// The tensor fields of the model that its `Debug` shows: it is one of them.
        fields: Vec<String>,
        /// The operation that draws it.
        operation: String,
    },
    /// A program that was no longer kept was recorded again, and is another.
    #[error(
        "the forward of {program} differs from its earlier recording: a forward must depend on the model and the batch \
         alone, so take what changes with the step from the batch"
    )]
    ChangedForward {
        /// Mode and batch shapes.
        program: String,
    },
    /// The loss is a sum and has a count.
    #[error(
        "the loss was given as a sum and as a mean over a count: use `Outputs::sum(loss)` alone for a sum, or \
         `Outputs::loss(loss).weighted_by(count)` for a mean"
    )]
    SumOverCount,
    /// The forward makes the value of a parameter that no visitor of the module sees.
    #[error(
        "the forward draws the value of a parameter that no visitor of the module sees{}, as in a field with \
         `#[module(skip)]`: every run would draw another; make it a field of the module and freeze it (`no_grad`)",
        in_fields(fields)
    )]
    SkippedParameter {
        /// The parameters that the model's `Debug` shows and no visitor sees.
        fields: Vec<String>,
    },
    /// The loss has a gradient for the value that the constructor gave a parameter.
    #[error(
        "the forward reads a tensor field that the constructor computed from parameter `{path}`, and passes a \
         gradient through it: compute it from the parameter in the forward, or `detach` it in the \
         constructor"
    )]
    DerivedField {
        /// The parameter.
        path: ParameterPath,
    },
    /// The forward updates a running state.
    #[error(
        "the forward computes a new value of the running state `{path}`, which a pipeline can't keep yet: freeze \
         the module (`BatchNorm::freeze`), or use GroupNorm, LayerNorm, RmsNorm or InstanceNorm in its \
         place"
    )]
    RunningState {
        /// Its path; that of the first running state where a second call of the forward could not be recorded.
        path: ParameterPath,
        /// Why the second call could not be recorded.
        source: Option<RecordError>,
    },
    /// The forward of a training trace gave no loss.
    #[error(
        "the forward gave no loss: return `Outputs::loss(loss)`, or trace it with `trace_forward` for \
         evaluation alone"
    )]
    NoLoss,
    /// The loss has more than one element.
    #[error(
        "the loss has {elements} elements: reduce it to one, with `mean`, or with `sum` and `Outputs::sum`"
    )]
    LossShape {
        /// Elements of the loss.
        elements: usize,
    },
    /// The count of a loss has more than one element.
    #[error("the count in `weighted_by` has {elements} elements: reduce it to one, with `sum`")]
    CountShape {
        /// Elements of the count.
        elements: usize,
    },
    /// The count of a loss can't be exact.
    #[error(
        "the count in `weighted_by` is computed in {}, which has too few digits to count with: count in ints, as in \
         `mask.int().sum()`, and give a mask as ints or bools, since mixed precision casts the floats of a batch",
        dtype_name(*dtype)
    )]
    CountType {
        /// Its dtype.
        dtype: DType,
    },
    /// The count of a loss depends on a parameter.
    #[error(
        "the count in `weighted_by` depends on parameter `{path}`: it must be computed from the batch alone, \
         because a step needs it before the forward runs"
    )]
    CountOnParameter {
        /// The parameter.
        path: ParameterPath,
    },
    /// The count of a loss was not made by the forward.
    #[error(
        "the count in `weighted_by` is a tensor of the host, which was not made under recording: compute it from the tensors \
         of the batch"
    )]
    ForeignCount,
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

fn in_fields(fields: &[String]) -> String {
    match fields {
        [] => String::new(),
        [only] => format!(", in field `{only}`"),
        several => format!(", in one of the fields `{}`", several.join("`, `")),
    }
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
    NotMaterialized {
        /// The rank.
        rank: usize,
        /// Every such parameter.
        parameters: Vec<NotHeld>,
    },
    /// No parameter stands under a module path.
    #[error("no parameter stands under `{module}`{}", did_you_mean(near))]
    UnknownModule {
        /// The path.
        module: String,
        /// Modules with similar paths.
        near: Vec<String>,
    },
    /// No operation of the forward can be told to be a module's.
    #[error(
        "no operation belongs to `{module}`: the forward reads none of its parameters; cut at another \
         module, or call `tinderbox::cut` in the forward"
    )]
    NoOperation {
        /// Path of the cut.
        module: String,
    },
    /// There is no such mark in the forward.
    #[error(
        "the forward has {marks} mark(s), numbered from 0, and none is number {mark}: call \
         `tinderbox::cut` where it may be cut"
    )]
    UnknownMark {
        /// The number asked for.
        mark: usize,
        /// Marks of the forward.
        marks: usize,
    },
    /// A mark stands where nothing depends on parameters.
    #[error(
        "mark {mark} stands on a value that depends on no parameter: there is no operation before it \
         that a stage could run"
    )]
    IdleMark {
        /// The mark.
        mark: usize,
    },
    /// A cut stands before one that was given before it.
    #[error(
        "the cut {cut} lies before the cut {previous}: give the cuts in the order of the forward"
    )]
    CutOrder {
        /// The cut.
        cut: Cut,
        /// The one given before it.
        previous: Cut,
    },
    /// A cut leaves a stage without operations.
    #[error(
        "the cut {cut} leaves stage {stage} without operations: it lies at the beginning or the end of the \
         forward, or where another cut does"
    )]
    EmptyStage {
        /// The cut.
        cut: Cut,
        /// The stage.
        stage: StageIndex,
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
    /// A stage below the owner of a parameter holds a copy of it.
    #[error(
        "stage {owner} owns `{path}`, and stage {lowest} before it holds a copy: gradients go from later stages to \
         earlier ones, so the first stage that reads a parameter must own it: list it among the parameters of stage \
         {lowest} and among the replicas of stage {owner}, or make the plan again"
    )]
    OwnerNotLowest {
        /// The parameter.
        path: ParameterPath,
        /// Its owner.
        owner: StageIndex,
        /// The first stage that holds it.
        lowest: StageIndex,
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
    #[error(transparent)]
    OtherModel(#[from] ModelDifference),
    /// The model has the same parameters and another forward.
    #[error("the plan is for another forward of this model: {}; make a plan for this one", operations(*position, expected.as_deref(), found.as_deref()))]
    OtherForward {
        /// The first operation that differs.
        position: usize,
        /// What it is in the plan; `None` behind its last.
        expected: Option<String>,
        /// What it is in the model; `None` behind its last.
        found: Option<String>,
    },
    /// The machine is none.
    #[error(transparent)]
    Machine(#[from] MachineError),
    /// The planner found no plan.
    #[error(transparent)]
    Planner(#[from] PlannerError),
    /// The file is no plan.
    #[error(transparent)]
    File(#[from] PlanFileError),
    /// The programs of a stage can't be made.
    #[error("a stage of the plan has no programs")]
    Program(#[from] ProgramError),
    /// The trace failed.
    #[error("the model could not be traced")]
    Trace {
        /// What went wrong.
        source: TraceError,
    },
}

fn operations(position: usize, expected: Option<&str>, found: Option<&str>) -> String {
    match (expected, found) {
        (Some(expected), Some(found)) => {
            format!("operation {position} is `{expected}` in the plan and `{found}` in the model")
        }
        (Some(expected), None) => {
            format!(
                "the plan has `{expected}` as operation {position}, where the model has no more"
            )
        }
        (None, Some(found)) => {
            format!("the model has `{found}` as operation {position}, where the plan has no more")
        }
        (None, None) => "their backward passes differ".to_owned(),
    }
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
