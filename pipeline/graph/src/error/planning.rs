//! Errors of plans, and of the lists of actions for them.

use std::fmt::Display;

use tinderbox_deferred::{ParameterPath, ProgramError};
use tinderbox_planner::{MachineError, ModelDifference, PlanFileError, PlannerError};

use super::tracing::{BatchError, TraceError};
use crate::partition::Cut;
use crate::schedule::{
    ChunkCounts, Placement, RankIndex, ScheduleKind, ScheduleKindError, StageIndex, VerifyError,
};

/// A parameter that a rank does not hold.
#[derive(Clone, Debug, derive_more::Display, PartialEq, Eq)]
#[display(
    "`{path}` {}",
    owner.map_or("was not selected, and no rank owns it".into(), |owner| format!("belongs to rank {owner}"))
)]
pub struct NotHeld {
    /// The parameter.
    pub path: ParameterPath,
    /// The rank that owns it; `None` if the plan does not contain it.
    pub owner: Option<RankIndex>,
}

fn lines(parameters: &[NotHeld]) -> String {
    parameters.iter().map(|p| format!("\n  {p}")).collect()
}

fn shape_of(schedule: ScheduleKind) -> &'static str {
    match (schedule.chunks(), schedule.placement()) {
        (ChunkCounts::One, _) => "one stage per rank, in the order of the ranks",
        (_, Placement::V) => "two stages per rank, placed in a V (`Placement::V`)",
        _ => "the same number of stages on each rank, placed in a loop (`Placement::Loop`)",
    }
}

/// Errors of creating or using a plan.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
    /// Two settings of a planner contradict each other.
    #[error("`{first}` and `{second}` both decide {decided}: call one of them")]
    Contradiction {
        /// A setting.
        first: &'static str,
        /// The other setting.
        second: &'static str,
        /// The decision that both settings make.
        decided: &'static str,
    },
    /// Ranks for the stages of manual cuts are given, and no cuts.
    #[error(
        "`Planner::on_ranks` places the stages of manual cuts, and there are no cuts: call `Planner::cuts` too, or leave it out"
    )]
    RanksWithoutCuts,
    /// The stages of manual cuts need more ranks than a replica has.
    #[error(
        "the stages need {used} ranks, and each of {replicas} replicas has {ranks}: make fewer cuts, or plan for a machine \
         of {} ranks",
        used * replicas
    )]
    ReplicaRanks {
        /// The number of ranks that the stages are placed on.
        used: usize,
        /// The number of replicas.
        replicas: usize,
        /// The number of ranks of a replica.
        ranks: usize,
    },
    /// A rank does not hold some parameters of a module.
    #[error(
        "rank {rank} does not hold these parameters of the module:{}",
        lines(parameters)
    )]
    NotMaterialized {
        /// The rank.
        rank: usize,
        /// All parameters of the module that the rank does not hold.
        parameters: Vec<NotHeld>,
    },
    /// No parameter is in a module.
    #[error(
        "no parameter is in module `{module}`{}; mark a place without parameters by `tinderbox::fake::mark` in the forward",
        did_you_mean(near)
    )]
    UnknownModule {
        /// The path.
        module: String,
        /// Modules with similar paths.
        near: Vec<String>,
    },
    /// No operation of the forward belongs to a module.
    #[error(
        "no operation belongs to `{module}`: the forward reads none of its parameters; cut at another \
         module, or call `tinderbox::fake::mark` in the forward"
    )]
    NoOperation {
        /// Path of the cut.
        module: String,
    },
    /// The forward has no such mark.
    #[error(
        "mark {mark} does not exist: the forward has {marks} mark(s), numbered from 0; add one with `tinderbox::fake::mark`"
    )]
    UnknownMark {
        /// The mark requested.
        mark: usize,
        /// The number of marks in the forward.
        marks: usize,
    },
    /// A mark is on a value that depends on no parameter.
    #[error(
        "mark {mark} is on a value that depends on no parameter: there is no operation before it that a stage could run"
    )]
    IdleMark {
        /// The mark.
        mark: usize,
    },
    /// A batch can't be split into micro-batches.
    #[error(transparent)]
    Batch(#[from] BatchError),
    /// A batch has fewer samples than there are replicas.
    #[error(
        "a batch of {samples} samples can't be divided among {replicas} replicas: use fewer replicas, or a larger batch"
    )]
    FewSamples {
        /// The number of samples of the batch.
        samples: usize,
        /// The number of replicas.
        replicas: usize,
    },
    /// The schedule needs other stages, or other ranks for them.
    #[error(
        "{schedule} does not fit stages on ranks {}: it has {}, so create the machine with `with_chunks`, or choose \
         another schedule",
        joined(ranks),
        shape_of(*schedule)
    )]
    ScheduleStages {
        /// The schedule.
        schedule: ScheduleKind,
        /// The rank of each stage.
        ranks: Vec<RankIndex>,
    },
    /// The cuts are not in the order of the forward.
    #[error(
        "the cut {cut} is not after the cut {previous}: list each cut once, in the order of the forward"
    )]
    CutOrder {
        /// The cut.
        cut: Cut,
        /// The cut listed before it.
        previous: Cut,
    },
    /// A cut leaves a stage without operations.
    #[error(
        "the cut {cut} leaves stage {stage} without operations: it is at the beginning or the end of the \
         forward, or at the position of another cut"
    )]
    EmptyStage {
        /// The cut.
        cut: Cut,
        /// The stage.
        stage: StageIndex,
    },
    /// The plan contains a parameter that the model does not have.
    #[error(
        "the plan contains `{path}`, which the model does not have{}",
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
        /// The first stage that lists it.
        first: StageIndex,
        /// The other stage.
        second: StageIndex,
    },
    /// A stage lists a parameter both as its own and as a copy.
    #[error("stage {stage} lists `{path}` both as a parameter and as a copy")]
    HeldTwice {
        /// The parameter.
        path: ParameterPath,
        /// The stage.
        stage: StageIndex,
    },
    /// A stage before the owner of a parameter holds a copy of it.
    #[error(
        "stage {owner} owns `{path}`, and stage {lowest} before it holds a copy: gradients go from later stages to \
         earlier ones, so the first stage that reads a parameter must own it: list it among the parameters of stage \
         {lowest} and among the copies of stage {owner}, or create the plan again"
    )]
    OwnerNotLowest {
        /// The parameter.
        path: ParameterPath,
        /// The owner.
        owner: StageIndex,
        /// The first stage that holds it.
        lowest: StageIndex,
    },
    /// A stage reads a parameter that the plan does not assign to it.
    #[error(
        "stage {stage} reads `{path}` for a batch of this shape, but the plan assigns it no copy: create \
         the plan from a trace of such a batch"
    )]
    NotHeld {
        /// The parameter.
        path: ParameterPath,
        /// The stage.
        stage: StageIndex,
    },
    /// A running state that the forward updates is read or updated by several stages.
    #[error(
        "stage {owner} owns the running state `{path}`, and stage {stage} uses it too: all calls of its module must \
         be on one stage, because each micro-batch reads the value that the previous one has left; cut elsewhere"
    )]
    StateApart {
        /// The running state.
        path: ParameterPath,
        /// Its owner.
        owner: StageIndex,
        /// The other stage.
        stage: StageIndex,
    },
    /// A carried tensor of the batch is read by another stage than the one that computes its new value.
    #[error(
        "stage {owner} computes the new value of the carried tensor `{name}`, and stage {stage} reads the tensor: one \
         stage must do both, because carried values stay on it; cut elsewhere"
    )]
    CarriedApart {
        /// The name of the tensor.
        name: String,
        /// The stage that computes its new value.
        owner: StageIndex,
        /// The stage that reads it.
        stage: StageIndex,
    },
    /// No stage owns a parameter.
    #[error("no stage owns `{path}`")]
    NotOwned {
        /// The parameter.
        path: ParameterPath,
    },
    /// The forward reads a stage's parameters before the parameters of an earlier stage.
    #[error(
        "stage {stage} needs parameters that the forward first reads after the parameters of a later \
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
    /// The plan is for another forward of the model.
    #[error("the plan is for another forward of this model: {}; create a plan for this one", operations(*position, expected.as_deref(), found.as_deref()))]
    OtherForward {
        /// The first operation that differs.
        position: usize,
        /// The operation in the plan; `None` after its last.
        expected: Option<String>,
        /// The operation in the model; `None` after its last.
        found: Option<String>,
    },
    /// The machine is invalid.
    #[error(transparent)]
    Machine(#[from] MachineError),
    /// The planner found no plan.
    #[error(transparent)]
    Planner(#[from] PlannerError),
    /// The file is not a plan, or the plan is invalid.
    #[error(transparent)]
    File(#[from] PlanFileError),
    /// The programs of a stage could not be created.
    #[error("a stage of the plan has no programs")]
    Program(#[from] ProgramError),
    /// The trace failed.
    #[error("the model could not be traced")]
    Trace {
        /// The cause.
        #[from]
        source: TraceError,
    },
}

fn operations(position: usize, expected: Option<&str>, found: Option<&str>) -> String {
    let (who, name, other) = match (expected, found) {
        (Some(expected), Some(found)) => {
            return format!(
                "operation {position} is `{expected}` in the plan and `{found}` in the model"
            );
        }
        (Some(expected), None) => ("plan", expected, "model"),
        (None, Some(found)) => ("model", found, "plan"),
        (None, None) => return "their backward passes differ".to_owned(),
    };
    format!("the {who} has `{name}` as operation {position}, where the {other} has no more")
}

fn owned_twice(path: &ParameterPath, first: StageIndex, second: StageIndex) -> String {
    match first == second {
        true => format!("stage {first} lists `{path}` twice"),
        false => format!("stages {first} and {second} both own `{path}`"),
    }
}

/// Returns the end of a message about an unknown name.
pub fn did_you_mean(near: &[impl std::fmt::Display]) -> String {
    match near.is_empty() {
        true => String::new(),
        false => format!("; the nearest are {}", quoted(near)),
    }
}

/// Joins texts by commas.
pub fn joined<T: ToString>(items: impl IntoIterator<Item = T>) -> String {
    let texts = items.into_iter().map(|item| item.to_string());
    texts.collect::<Vec<_>>().join(", ")
}

/// Puts names in backquotes, and joins them by commas.
pub fn quoted(names: &[impl Display]) -> String {
    joined(names.iter().map(|name| format!("`{name}`")))
}

/// Errors of the lists of actions that the ranks run, before they run: when a pipeline starts, and in a step.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ListsError {
    /// The numbers of stages per rank differ, but the schedule is a named one.
    #[error(
        "a named schedule needs the same number of stages on every rank, but the plan has {stages} stages on {ranks} \
         ranks: create the plan with `Machine::with_chunks`, or write a schedule for it"
    )]
    Chunks {
        /// The number of stages of the plan.
        stages: usize,
        /// The number of ranks of the plan.
        ranks: usize,
    },
    /// A written schedule is for another number of micro-batches.
    #[error(
        "schedule `{schedule}` is for {expected} micro-batches, but the step has {found}: use \
         batches that together split into {expected} (`step_accumulated`), or use a named schedule"
    )]
    MicroBatches {
        /// Name of the schedule.
        schedule: String,
        /// The number of micro-batches of the schedule.
        expected: usize,
        /// The number of micro-batches of the step.
        found: usize,
    },
    /// A written schedule is for another number of micro-batches than the plan.
    #[error(
        "schedule `{schedule}` is for {expected} micro-batches, but the plan has {found}: trace the model with {expected} \
         micro-batches, or use a named schedule"
    )]
    PlannedMicroBatches {
        /// Name of the schedule.
        schedule: String,
        /// The number of micro-batches of the schedule, times the replicas.
        expected: usize,
        /// The number of micro-batches of the plan.
        found: usize,
    },
    /// A written schedule has only forwards.
    #[error(
        "schedule `{schedule}` has no backward: a training step needs one, and `evaluate` needs no schedule"
    )]
    NoBackward {
        /// Name of the schedule.
        schedule: String,
    },
    /// The schedule places its stages on other ranks than the plan.
    #[error(
        "schedule `{schedule}` places its stages on ranks {expected:?}, but the plan places them on ranks \
         {found:?}: create the plan for this schedule with `Machine::with_chunks` or `Planner::on_ranks`"
    )]
    Placement {
        /// Name of the schedule.
        schedule: String,
        /// The rank of each stage in the schedule.
        expected: Vec<usize>,
        /// The rank of each stage in the plan.
        found: Vec<usize>,
    },
    /// The schedule can't be generated for these stages.
    #[error("the schedule can't be generated")]
    Generate(#[source] ScheduleKindError),
    /// No schedule was found for the stages of the plan.
    #[error("no schedule was found for the plan's stages")]
    Lists(#[source] PlannerError),
    /// The schedule is invalid for the plan.
    #[error("the schedule can't be run")]
    Schedule(#[source] VerifyError),
}
