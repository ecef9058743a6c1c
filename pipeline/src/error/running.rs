//! What can go wrong while a pipeline runs.

use std::time::Duration;

use tinderbox_deferred::{
    DeviceError, MaterializeError, ParameterPath, ProgramError, human_bytes, human_bytes_distinct,
};
use tinderbox_fake::{DeviceLabel, Difference};
use tinderbox_planner::PlannerError;

use super::acting::ActionError;
use super::certifying::CertifyError;
use super::planning::{BatchError, PlanError, TraceError};
use super::restoring::RestoreError;
use crate::schedule::{GenerateError, MicroBatchIndex, RankIndex, StageIndex, VerifyError};

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
        human_bytes_distinct(*needed_bytes, *available_bytes),
        human_bytes_distinct(*available_bytes, *needed_bytes)
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
    /// The pipeline was given a trace of another model.
    #[error(
        "the trace is of another model than the pipeline trains: in the constructor, {difference}; trace the model that \
         is trained"
    )]
    OtherModel {
        /// The first operation or constant that differs.
        difference: Difference,
    },
    /// The list of devices is empty.
    #[error("the pipeline was given an empty list of devices: leave it out for the CPU")]
    NoDevices,
    /// The number of micro-batches is 0.
    #[error("a batch can't be split into 0 micro-batches: give at least 1")]
    NoMicroBatches,
    /// The number of threads is 0.
    #[error(
        "a rank can't run on 0 threads: give at least 1, or leave `threads_per_rank` out for its share of the machine"
    )]
    NoThreads,
    /// A learning rate would make the parameters worse or NaN. Nothing was run.
    #[error(
        "the learning rate{} is {rate}: it must be a finite number and not negative",
        path.as_ref().map(|path| format!(" of `{path}`")).unwrap_or_default()
    )]
    LearningRate {
        /// The rate.
        rate: f64,
        /// The first parameter that it is for; `None` where it is the one for all.
        path: Option<ParameterPath>,
    },
    /// The loss or gradients are NaN or infinite, and no rank has updated. The pipeline is as it was before the step.
    #[error("{}", not_finite(*step, losses, gradients))]
    NotFinite {
        /// The step.
        step: u64,
        /// The losses that are not finite, with their micro-batches.
        losses: Vec<(MicroBatchIndex, f64)>,
        /// The parameters whose gradients have a norm that is not finite, in the order of the table.
        gradients: Vec<ParameterPath>,
    },
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
        source: Box<ActionError>,
    },
    /// A rank could not make its parameters.
    #[error("rank {rank} could not make its parameters")]
    Materialize {
        /// The rank.
        rank: RankIndex,
        /// What went wrong.
        source: MaterializeError,
    },
    /// A batch has an index that is out of range: no rank has run anything of it, and the pipeline goes on with another. Or
    /// its indices can't be read, because their device has failed: then the pipeline has stopped.
    #[error("micro-batch {micro_batch} of the batch can't be used, and nothing was run")]
    MicroBatch {
        /// The micro-batch.
        micro_batch: MicroBatchIndex,
        /// What is wrong with it.
        source: Box<ActionError>,
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
    /// The ranks make no progress with a step or an evaluation.
    #[error(
        "no rank has finished an action within {timeout:?} while they were asked to {request}; rank {rank} has not answered"
    )]
    Idle {
        /// The first rank that has not answered.
        rank: RankIndex,
        /// What they were asked for.
        request: &'static str,
        /// How long.
        timeout: Duration,
    },
    /// A rank makes no progress with the parameters that it makes or reads.
    #[error(
        "rank {rank} made no progress for {timeout:?} while it was asked to {request}: {parameters} of {of} parameters, \
         {}",
        human_bytes(*bytes)
    )]
    Stalled {
        /// The lowest rank that had not finished.
        rank: RankIndex,
        /// What it was asked for.
        request: &'static str,
        /// How long.
        timeout: Duration,
        /// Parameters that are there.
        parameters: u64,
        /// Parameters that it has begun with.
        of: u64,
        /// Bytes that it has made or read.
        bytes: u64,
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
        source: std::io::Error,
    },
    /// The schedule can't be generated for these stages.
    #[error("the schedule can't be made")]
    Generate(#[source] GenerateError),
    /// No lists run the stages of the plan.
    #[error("no schedule was found for the plan's stages")]
    Lists(#[source] PlannerError),
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
    Schedule(#[source] VerifyError),
    /// The plan does not fit the model.
    #[error("the plan can't be used")]
    Plan(#[from] PlanError),
    /// The model could not be traced for this batch.
    #[error("the model could not be traced for this batch")]
    Trace {
        /// What went wrong.
        #[from]
        source: TraceError,
    },
    /// The programs or the lists do not compute what was recorded.
    #[error(
        "the pipeline would not compute what the model does, and nothing was run: this is a defect of tinderbox, \
         report it with the plan's file"
    )]
    Certify(#[from] CertifyError),
    /// A program could not be built.
    #[error("a stage's program could not be built")]
    Program(#[from] ProgramError),
    /// The batch can't be used.
    #[error("the batch can't be used")]
    Batch(#[from] BatchError),
    /// The count of a micro-batch could not be computed.
    #[error(
        "the count that the loss of micro-batch {micro_batch} is weighted by could not be computed"
    )]
    Count {
        /// The micro-batch.
        micro_batch: usize,
        /// What went wrong.
        source: Box<ActionError>,
    },
    /// A count is not one.
    #[error(
        "the count that the loss of micro-batch {micro_batch} is weighted by is {count}: it must be finite and not \
         negative"
    )]
    BadCount {
        /// The micro-batch.
        micro_batch: usize,
        /// The count.
        count: f64,
    },
    /// The counts of all micro-batches are 0.
    #[error(
        "the counts that the losses are weighted by are 0 for all micro-batches, so the loss is not defined: leave \
         the batch out"
    )]
    NothingCounts,
    /// The forward gives means for some micro-batches and sums, or other means, for others.
    #[error(
        "the loss of micro-batch {micro_batch} is over something else than that of micro-batch 0: use the same of \
         `Outputs::loss`, `weighted_by` and `Outputs::sum` for every batch"
    )]
    MixedLosses {
        /// The first that differs.
        micro_batch: usize,
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
    /// A parameter has more dimensions than optimizers take.
    #[error(
        "parameter `{path}` has {rank} dimensions, and Burn's optimizers take 1 to 8: store it with fewer, and reshape it \
         in the forward"
    )]
    ParameterRank {
        /// The parameter.
        path: ParameterPath,
        /// Its dimensions.
        rank: usize,
    },
    /// Gradients are to be clipped in two ways.
    #[error(
        "the optimizer's configuration clips each gradient, and `clip` asks for another clipping: give one of them"
    )]
    TwoClippings,
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
    Gather(#[source] MaterializeError),
    /// A saved state does not fit.
    #[error("the saved state of rank {rank} could not be restored, nothing was changed")]
    Restore {
        /// The rank.
        rank: RankIndex,
        /// What is wrong with it.
        source: RestoreError,
    },
    /// A saved state could not be read to its end.
    #[error(
        "rank {rank} could not read its part of a saved state, and the pipeline holds a mixture of old and restored \
         values: restore another saved state, or start a new pipeline"
    )]
    PartlyRestored {
        /// The lowest rank that failed.
        rank: RankIndex,
        /// What went wrong.
        source: RestoreError,
    },
    /// A restore has failed midway before.
    #[error(
        "the pipeline holds a mixture of old and restored values since a restore failed: restore a saved state that \
         can be read, or start a new pipeline"
    )]
    Mixed,
}

fn not_finite(step: u64, losses: &[(MicroBatchIndex, f64)], gradients: &[ParameterPath]) -> String {
    let mut found = Vec::new();
    match losses {
        [] => {}
        [(micro_batch, loss)] => {
            found.push(format!("the loss of micro-batch {micro_batch} is {loss}"))
        }
        several => {
            let named = first_of(
                several
                    .iter()
                    .map(|(micro_batch, _)| micro_batch.to_string()),
            );
            found.push(format!(
                "the losses of micro-batches {named} are not finite"
            ));
        }
    }
    let named = first_of(gradients.iter().map(|path| format!("`{path}`")));
    match gradients.len() {
        0 => {}
        1 => found.push(format!("the gradient of {named} is not finite")),
        _ => found.push(format!("the gradients of {named} are not finite")),
    }
    format!(
        "step {step} was stopped before the update, and no parameter has changed: {}; skip the batch, or lower the \
         learning rate and go on from a checkpoint",
        found.join(", and ")
    )
}

/// The first few names, and how many more there are.
fn first_of(names: impl ExactSizeIterator<Item = String>) -> String {
    const NAMED: usize = 3;
    let more = match names.len().saturating_sub(NAMED) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    names.take(NAMED).collect::<Vec<_>>().join(", ") + &more
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
