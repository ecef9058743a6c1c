//! What can go wrong while a pipeline runs.

use std::time::Duration;

use tinderbox_deferred::{
    DeviceError, MaterializeError, ParameterPath, ProgramError, SourceError, human_bytes_beside,
};
use tinderbox_fake::{DeviceLabel, FakeError};
use tinderbox_planner::PlannerError;

use super::planning::{BatchError, PlanError, TraceError};
use crate::schedule::{GenerateError, MicroBatchIndex, RankIndex, StageIndex, Task, VerifyError};

/// Why a message did not arrive or leave.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LinkError {
    /// The message did not come in time.
    #[error("no `{message}` from rank {from} within {timeout:?}")]
    Timeout {
        /// The sender.
        from: RankIndex,
        /// What was waited for.
        message: String,
        /// How long.
        timeout: Duration,
    },
    /// Another rank gave up.
    #[error("another rank failed")]
    Aborted,
    /// The other rank is gone.
    #[error("rank {rank} has ended")]
    Closed {
        /// The other rank.
        rank: RankIndex,
    },
    /// Two messages came under one tag.
    #[error("rank {from} sent `{message}` twice: a tag names one message")]
    Repeated {
        /// The sender.
        from: RankIndex,
        /// The tag of both.
        message: String,
    },
}

/// What went wrong inside an action.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ActionError {
    /// A program failed.
    #[error(transparent)]
    Program(#[from] ProgramError),
    /// A tensor is of the wrong kind or on the wrong device.
    #[error(transparent)]
    Tensor(#[from] FakeError),
    /// The device could not run what was queued for it: it is out of memory, or lost.
    #[error("{device} failed: restart from the last checkpoint")]
    Device {
        /// The device.
        device: DeviceLabel,
        /// What it says.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A message did not arrive or leave.
    #[error(transparent)]
    Link(#[from] LinkError),
    /// An operation, or code that the user gave, panicked.
    #[error("panicked: {message}")]
    Panicked {
        /// Text of the panic.
        message: String,
    },
    /// A message has another number of values than the plan says.
    #[error("a message has {found} values, the plan says {expected}")]
    MessageLength {
        /// What the plan says.
        expected: usize,
        /// What came.
        found: usize,
    },
    /// A value is read that is not there.
    #[error("value {value} is not at hand")]
    MissingValue {
        /// The value.
        value: tinderbox_fake::ValueId,
    },
    /// A clip by the norm of all gradients misses the norms of a stage.
    #[error("the norms of the gradients of stage {stage} did not come")]
    MissingNorms {
        /// The stage.
        stage: StageIndex,
    },
    /// One of the two programs of an overlapped pair failed.
    #[error("{task} of the pair failed")]
    OfPair {
        /// Its program.
        task: Task,
        /// What went wrong.
        #[source]
        source: Box<ActionError>,
    },
    /// The action is not one that this runtime runs.
    #[error("this runtime does not run the action")]
    UnknownAction,
    /// The stage lacks a parameter that a program reads.
    #[error("the stage does not hold `{path}`, which the program reads: make the plan again")]
    MissingParameter {
        /// The parameter.
        path: ParameterPath,
    },
}

/// Why training stopped.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PipelineError {
    /// A device can't be used; nothing was made.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The ranks of a device will not fit there; nothing was made.
    #[error(
        "ranks {} need {} on {device} for parameters and gradients alone, and {} are available: deal the ranks out to \
         more devices, or start without this check (`memory(MemoryCheck::Off)`)",
        ranks.iter().map(RankIndex::to_string).collect::<Vec<_>>().join(", "),
        human_bytes_beside(*needed_bytes, *available_bytes),
        human_bytes_beside(*available_bytes, *needed_bytes)
    )]
    Memory {
        /// The device.
        device: DeviceLabel,
        /// Its ranks.
        ranks: Vec<RankIndex>,
        /// Bytes of their parameters, of copies of these in the type of the forward, and of the gradients if they train.
        needed_bytes: u64,
        /// Bytes that this process can still get there, or those that were allowed.
        available_bytes: u64,
    },
    /// The list of devices is empty.
    #[error("the pipeline was given an empty list of devices: leave it out for the CPU")]
    NoDevices,
    /// An action of a rank failed. All ranks have stopped.
    #[error("{}", locate(*rank, *stage, *micro_batch, action))]
    Action {
        /// The rank.
        rank: RankIndex,
        /// The stage.
        stage: Option<StageIndex>,
        /// The micro-batch.
        micro_batch: Option<MicroBatchIndex>,
        /// The action, as schedules write it.
        action: String,
        /// What went wrong.
        #[source]
        source: Box<ActionError>,
    },
    /// A rank could not make its parameters.
    #[error("rank {rank} could not make its parameters")]
    Materialize {
        /// The rank.
        rank: RankIndex,
        /// What went wrong.
        #[source]
        source: MaterializeError,
    },
    /// A rank did not answer in time.
    #[error("rank {rank} did not answer within {timeout:?} while it was asked to {request}")]
    Timeout {
        /// The rank.
        rank: RankIndex,
        /// What it was asked for.
        request: &'static str,
        /// How long.
        timeout: Duration,
    },
    /// The thread of a rank ended without a reason, as by a panic of its link while it was told of
    /// another failure.
    #[error("the thread of rank {rank} ended without a reason: its panic, if any, is on stderr")]
    Ended {
        /// The rank.
        rank: RankIndex,
    },
    /// The pipeline has stopped because of an earlier error.
    #[error("the pipeline has stopped after an earlier error: start a new one")]
    Stopped,
    /// A thread could not be started.
    #[error("rank {rank} could not be started")]
    Spawn {
        /// The rank.
        rank: RankIndex,
        /// What the system said.
        #[source]
        source: std::io::Error,
    },
    /// The schedule can't be generated for these stages.
    #[error("the schedule can't be made")]
    Generate {
        /// What it needs.
        #[source]
        source: GenerateError,
    },
    /// No lists run the stages of the plan.
    #[error("no schedule was found for the plan's stages")]
    Lists {
        /// Why.
        #[source]
        source: PlannerError,
    },
    /// The schedule has its stages on other ranks than the plan.
    #[error(
        "schedule `{schedule}` runs its stages on ranks {expected:?}, the plan has them on ranks \
         {found:?}: make the plan for it, with `Machine::with_chunks` or `Planner::on_ranks`"
    )]
    Placement {
        /// Name of the schedule.
        schedule: String,
        /// The rank of each stage, as the schedule has it.
        expected: Vec<usize>,
        /// The rank of each stage, as the plan has it.
        found: Vec<usize>,
    },
    /// A named schedule has as many stages on every rank.
    #[error(
        "a named schedule has as many stages on every rank, the plan has {stages} stages on {ranks} \
         ranks: make the plan with `Machine::with_chunks`, or write a schedule for it"
    )]
    Chunks {
        /// Stages of the plan.
        stages: usize,
        /// Its ranks.
        ranks: usize,
    },
    /// A written schedule has forwards alone.
    #[error(
        "schedule `{schedule}` has no backward: a step trains, and `evaluate` needs no schedule"
    )]
    NoBackward {
        /// Name of the schedule.
        schedule: String,
    },
    /// Gradients can't be brought to this norm.
    #[error("gradients can't be clipped to a norm of {max}: give a positive number")]
    Clip {
        /// What was asked for.
        max: f64,
    },
    /// A written schedule is for another number of micro-batches.
    #[error(
        "schedule `{schedule}` is written for {expected} micro-batches, the step has {found}: give \
         a batch that splits into as many, or take a named schedule"
    )]
    MicroBatches {
        /// Name of the schedule.
        schedule: String,
        /// Its micro-batches.
        expected: usize,
        /// Those of the step.
        found: usize,
    },
    /// The schedule can't be run.
    #[error("the schedule can't be run")]
    Schedule {
        /// What is wrong with it.
        #[source]
        source: VerifyError,
    },
    /// The plan does not fit the model.
    #[error("the plan can't be used")]
    Plan {
        /// What is wrong with it.
        #[from]
        source: PlanError,
    },
    /// The model could not be traced for this batch.
    #[error("the model could not be traced for this batch")]
    Trace {
        /// What went wrong.
        #[from]
        source: TraceError,
    },
    /// A program could not be built.
    #[error("a stage's program could not be built")]
    Program {
        /// What went wrong.
        #[from]
        source: ProgramError,
    },
    /// The batch can't be used.
    #[error("the batch can't be used")]
    Batch {
        /// What is wrong with it.
        #[from]
        source: BatchError,
    },
    /// Parameters share an id.
    #[error(
        "`{second}` is a clone of `{first}`: Burn's optimizers update one of them and let them \
         drift apart; to tie them, read one parameter in both places of the forward"
    )]
    Clones {
        /// The first of them.
        first: ParameterPath,
        /// The other.
        second: ParameterPath,
    },
    /// The optimizer was not given.
    #[error("no optimizer was given: call `.optimizer(...)` before `.start()` to train")]
    NoOptimizer,
    /// The step counter does not fit the random generator's counter.
    #[error("step {step} does not fit the 32 bits that random values count steps with")]
    StepOverflow {
        /// The step.
        step: u64,
    },
    /// Values could not be read back.
    #[error("the parameters could not be gathered")]
    Gather {
        /// What went wrong.
        #[source]
        source: MaterializeError,
    },
    /// A saved state does not fit.
    #[error("the saved state of rank {rank} could not be restored, nothing was changed")]
    Restore {
        /// The rank.
        rank: RankIndex,
        /// What is wrong with it.
        #[source]
        source: RestoreError,
    },
}

/// Why a stage's state could not be restored.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RestoreError {
    /// The parameters could not be made.
    #[error(transparent)]
    Parameters(#[from] MaterializeError),
    /// The state of the optimizer could not be loaded.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// The saved state is of another optimizer, or incomplete.
    #[error(
        "the optimizer state of `{path}` is incomplete or of another optimizer: saved are {found:?}"
    )]
    OptimizerState {
        /// The parameter.
        path: ParameterPath,
        /// Names of what was saved for it.
        found: Vec<String>,
    },
}

fn locate(
    rank: RankIndex,
    stage: Option<StageIndex>,
    micro_batch: Option<MicroBatchIndex>,
    action: &str,
) -> String {
    let mut text = format!("rank {rank}");
    if let Some(stage) = stage {
        text.push_str(&format!(", stage {stage}"));
    }
    if let Some(micro_batch) = micro_batch {
        text.push_str(&format!(", micro-batch {micro_batch}"));
    }
    text.push_str(&format!(", action {action} failed"));
    text
}
