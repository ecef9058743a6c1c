//! Errors of starting and running a pipeline.

use std::time::Duration;

use tinderbox_deferred::{
    DeviceError, MaterializeError, ParameterPath, ProgramError, SourceError, human_bytes,
    human_bytes_distinct,
};
use tinderbox_fake::{DeviceLabel, Difference, FakeError};
use tinderbox_planner::PlannerError;

use super::acting::ActionError;
use super::carrying::CarryError;
use super::certifying::CertifyError;
use super::damage::DamageError;
use super::grouping::GroupError;
use super::planning::{PlanError, did_you_mean};
use super::restoring::RestoreError;
use super::streaming::StreamedError;
use super::texts::{locate, not_finite, numbered};
use super::tracing::{BatchError, TraceError};
use crate::schedule::{GenerateError, MicroBatchIndex, RankIndex, StageIndex, VerifyError};
use crate::sum::GradientSum;

/// Errors of starting and running a pipeline.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PipelineError {
    /// A device can't be used; no parameter was created.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The ranks of a device do not fit its memory; no parameter was created.
    #[error(
        "ranks {} need {} on {device} for parameters and gradients alone, but {} are available: distribute the ranks over \
         more devices, or start without this check (`memory(MemoryCheck::Off)`)",
        ranks.iter().map(RankIndex::to_string).collect::<Vec<_>>().join(", "),
        human_bytes_distinct(*needed_bytes, *available_bytes),
        human_bytes_distinct(*available_bytes, *needed_bytes)
    )]
    Memory {
        /// The device.
        device: DeviceLabel,
        /// The ranks on it.
        ranks: Vec<RankIndex>,
        /// Bytes of their parameters, of the copies of these in the dtype of the forward, and of the
        /// gradients if they train.
        needed_bytes: u64,
        /// Bytes that are available to this process, or the configured limit.
        available_bytes: u64,
    },
    /// The trace is of another model.
    #[error(
        "the trace is of another model: in the constructor, {difference}; trace the model that \
         is trained"
    )]
    OtherModel {
        /// The first operation or constant that differs.
        difference: Difference,
    },
    /// The trace has no backward.
    #[error(
        "the model was traced for evaluation only: trace it with `trace`, and create the plan from that trace, to train \
         it; or leave out the optimizer"
    )]
    ForwardTrace,
    /// The model can't be streamed.
    #[error(transparent)]
    Streamed(#[from] StreamedError),
    /// The list of devices is empty.
    #[error("the list of devices is empty: leave it out for the CPU")]
    NoDevices,
    /// The number of micro-batches is 0.
    #[error("a batch can't be split into 0 micro-batches: use at least 1")]
    NoMicroBatches,
    /// Replicas whose sums have no binary tree.
    #[error("{replicas} replicas have no binary tree of sums: use a power of two, such as 4")]
    Replicas {
        /// The number of replicas.
        replicas: usize,
    },
    /// An order of sums that the replicas can't keep.
    #[error(
        "the order of sums is `{sum}`, which {} can't keep: use a tree whose number of groups is a power of two, and at least \
         the number of replicas",
        if *replicas == 1 { "one replica".to_owned() } else { format!("{replicas} replicas") }
    )]
    Sum {
        /// The order.
        sum: GradientSum,
        /// The number of replicas.
        replicas: usize,
    },
    /// Fewer micro-batches than replicas.
    #[error(
        "{replicas} replicas need at least {replicas} micro-batches, and there are {micro_batches}: each replica runs its \
         own (`micro_batches`)"
    )]
    IdleReplicas {
        /// The number of replicas.
        replicas: usize,
        /// The number of micro-batches of a step.
        micro_batches: usize,
    },
    /// A step of trained parameters can't be replayed with initial ones.
    #[error("a step after {step} others is replayed from a checkpoint: set it as the `source`")]
    NoReplaySource {
        /// The number of training steps done before.
        step: u64,
    },
    /// A model whose forward updates running states can't be trained by replicas.
    #[error(
        "`{path}` is updated by the forward of one micro-batch after the other, so replicas would wait for each other: train \
         it with one replica, or use a norm without running statistics"
    )]
    RunningState {
        /// The state.
        path: ParameterPath,
    },
    /// A value is wrong in memory, and no replica can repair it. The pipeline has stopped.
    #[error(transparent)]
    Damaged(#[from] DamageError),
    /// Values of a rank of this process can't be read.
    #[error("{what} can't be read")]
    Unreadable {
        /// The values.
        what: &'static str,
        /// The cause.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The number of threads is 0.
    #[error(
        "a rank can't run on 0 threads: use at least 1, or leave `threads_per_rank` out for an equal share of the machine"
    )]
    NoThreads,
    /// A learning rate is negative, NaN or infinite. Nothing was run.
    #[error(
        "the learning rate{} is {rate}: it must be finite and not negative",
        path.as_ref().map(|path| format!(" of `{path}`")).unwrap_or_default()
    )]
    LearningRate {
        /// The rate.
        rate: f64,
        /// The first parameter with this rate; `None` for the rate of all parameters.
        path: Option<ParameterPath>,
    },
    /// The loss or gradients are NaN or infinite, and no rank has updated. The pipeline is unchanged.
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
        /// The micro-batch, among the micro-batches of all replicas.
        micro_batch: Option<MicroBatchIndex>,
        /// The action in the notation of schedules, whose micro-batches count from the first of the replica.
        action: String,
        /// The cause.
        source: Box<ActionError>,
    },
    /// A rank could not materialize its parameters.
    #[error("rank {rank} could not materialize its parameters")]
    Materialize {
        /// The rank.
        rank: RankIndex,
        /// The cause.
        source: MaterializeError,
    },
    /// A batch has an index that is out of range: nothing was run, and the pipeline can continue with
    /// another batch. Or its indices can't be read because their device failed: the pipeline has
    /// stopped.
    #[error("micro-batch {micro_batch} of the batch can't be used, and nothing was run")]
    MicroBatch {
        /// The micro-batch.
        micro_batch: MicroBatchIndex,
        /// The cause.
        source: Box<ActionError>,
    },
    /// A rank did not answer in time.
    #[error("rank {rank} did not reply within {timeout:?} to the request to {request}")]
    Timeout {
        /// The rank.
        rank: RankIndex,
        /// The request.
        request: &'static str,
        /// The timeout.
        timeout: Duration,
    },
    /// The ranks make no progress with a step or an evaluation.
    #[error(
        "no rank finished an action within {timeout:?} during the request to {request}; rank {rank} has not replied"
    )]
    Idle {
        /// The first rank that has not replied.
        rank: RankIndex,
        /// The request.
        request: &'static str,
        /// The timeout.
        timeout: Duration,
    },
    /// A rank makes no progress with the parameters that it materializes or reads.
    #[error(
        "rank {rank} made no progress for {timeout:?} during the request to {request}: {parameters} of {of} parameters, \
         {}",
        human_bytes(*bytes)
    )]
    Stalled {
        /// The lowest rank that had not finished.
        rank: RankIndex,
        /// The request.
        request: &'static str,
        /// The timeout.
        timeout: Duration,
        /// The number of complete parameters.
        parameters: u64,
        /// The number of parameters that were started.
        of: u64,
        /// Bytes that were computed or read.
        bytes: u64,
    },
    /// The thread of a rank ended without a reason, for example because its link panicked while it was
    /// notified of another failure.
    #[error("the thread of rank {rank} ended without a reason: its panic, if any, is on stderr")]
    Ended {
        /// The rank.
        rank: RankIndex,
    },
    /// A rank of another process failed or is lost, or makes another call.
    #[error(transparent)]
    World(#[from] tinderbox_world::WorldError),
    /// The world has another number of processes than the plan has ranks.
    #[error(
        "the plan has {ranks} ranks and the world {processes} processes: plan for as many ranks as there are processes; with \
        `recovery`, it may be fewer, and the others wait as spares"
    )]
    WorldSize {
        /// The ranks of the plan.
        ranks: usize,
        /// The processes of the world.
        processes: usize,
    },
    /// Processes were started with different settings.
    #[error("rank {rank} has another {field} than rank 0: {found}, expected {expected}")]
    OtherSettings {
        /// The first rank that differs from rank 0.
        rank: RankIndex,
        /// What differs.
        field: String,
        /// The value of rank 0, or its digest.
        expected: String,
        /// The value of the rank, or its digest.
        found: String,
    },
    /// Processes do different things in the same call.
    #[error("{difference}: all processes make the same calls with the same batches")]
    Diverged {
        /// The other rank.
        rank: RankIndex,
        /// What differs, in words.
        difference: String,
    },
    /// Ranks are lost together with those that kept their state.
    #[error(
        "the state of {} is lost, because the process that keeps it is lost too, or had not received it yet: restore the last \
        checkpoint, as by `Checkpoints::resume`, and continue from its step",
        numbered(ranks)
    )]
    StateLost {
        /// The ranks.
        ranks: Vec<RankIndex>,
    },
    /// No plan was found for the ranks that are left.
    #[error(
        "there is no plan for the processes that are left, {processes}: set `Recovery::plan`, or resume the last checkpoint \
        with more processes"
    )]
    NoPlan {
        /// The number of processes.
        processes: usize,
        /// The first reason.
        source: Option<Box<dyn std::error::Error + Send + Sync>>,
    },
    /// The state of lost ranks is lost, and no checkpoint was restored since.
    #[error(
        "the state of lost ranks is lost: restore the last checkpoint, as by `Checkpoints::resume`, before any other call"
    )]
    AwaitsRestore,
    /// A second pipeline with recovery in one world.
    #[error(
        "another pipeline of this world has a recovery: one pipeline of a world can have it, and a world can have no other \
        pipelines beside it"
    )]
    TwoRecoveries,
    /// A timeout after which a silent process is not known to be lost yet.
    #[error(
        "the timeout of {timeout:?} is not longer than {lost_after:?}, after which a silent process is lost: set a longer \
        `timeout`, or fewer or shorter heartbeats"
    )]
    ShortTimeout {
        /// The timeout of a message.
        timeout: Duration,
        /// How long a process may be silent.
        lost_after: Duration,
    },
    /// Shares of a batch with recovery.
    #[error(
        "with recovery, the replicas that are left need other shares of a batch when a rank is lost: pass whole batches to \
        `step`"
    )]
    ShareRecovery,
    /// Another process has ended its pipeline.
    #[error(
        "rank {rank} has ended its pipeline before this call: its own error, if there is one, says why"
    )]
    Left {
        /// The other rank.
        rank: RankIndex,
    },
    /// Another process sent bytes that are no message.
    #[error(
        "rank {rank} sent bytes that are no message of this pipeline: do all processes run the same program?"
    )]
    Frame {
        /// The sender.
        rank: RankIndex,
    },
    /// A message to another process can't be read from its device.
    #[error("rank {rank} can't read {message} from its device to send it")]
    Unsent {
        /// The sender.
        rank: RankIndex,
        /// The message.
        message: String,
        /// The error of the device.
        source: Box<FakeError>,
    },
    /// A saved state does not fit the rank of another process; nothing has changed.
    #[error("rank {rank} can't restore: {reason}")]
    RestoreElsewhere {
        /// The rank.
        rank: RankIndex,
        /// Its error, with its causes.
        reason: String,
    },
    /// The pipeline has stopped because of an earlier error.
    #[error("the pipeline has stopped after an earlier error: start a new one")]
    Stopped,
    /// A thread could not be started.
    #[error("rank {rank} could not be started")]
    Spawn {
        /// The rank.
        rank: RankIndex,
        /// The error of the operating system.
        source: std::io::Error,
    },
    /// The schedule can't be generated for these stages.
    #[error("the schedule can't be generated")]
    Generate(#[source] GenerateError),
    /// No schedule was found for the stages of the plan.
    #[error("no schedule was found for the plan's stages")]
    Lists(#[source] PlannerError),
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
    /// A written schedule has only forwards.
    #[error(
        "schedule `{schedule}` has no backward: a training step needs one, and `evaluate` needs no schedule"
    )]
    NoBackward {
        /// Name of the schedule.
        schedule: String,
    },
    /// The maximum norm of gradients is not a positive number.
    #[error("gradients can't be clipped to a norm of {max}: use a positive number")]
    Clip {
        /// The maximum norm requested.
        max: f64,
    },
    /// A written schedule is for another number of micro-batches.
    #[error(
        "schedule `{schedule}` is for {expected} micro-batches, but the step has {found}: use \
         a batch that splits into as many, or use a named schedule"
    )]
    MicroBatches {
        /// Name of the schedule.
        schedule: String,
        /// The number of micro-batches of the schedule.
        expected: usize,
        /// The number of micro-batches of the step.
        found: usize,
    },
    /// The schedule is invalid for the plan.
    #[error("the schedule can't be run")]
    Schedule(#[source] VerifyError),
    /// The plan does not fit the model.
    #[error("the plan can't be used")]
    Plan(#[from] PlanError),
    /// The model could not be traced for this batch.
    #[error("the model could not be traced for this batch")]
    Trace {
        /// The cause.
        #[from]
        source: TraceError,
    },
    /// The programs or the lists do not compute what was recorded.
    #[error(
        "the programs of the pipeline differ from the recorded model, and nothing was run: this is a defect of tinderbox, \
         report it with the plan file"
    )]
    Certify(#[from] CertifyError),
    /// A program could not be built.
    #[error("a stage's program could not be built")]
    Program(#[from] ProgramError),
    /// The batch can't be used.
    #[error("the batch can't be used")]
    Batch(#[from] BatchError),
    /// The carried values can't be used with this batch. Nothing was run, and the carry is unchanged.
    #[error("the carried values can't be used, and nothing was run")]
    Carry(#[from] CarryError),
    /// The count of a micro-batch could not be computed.
    #[error("the count that weights the loss of micro-batch {micro_batch} could not be computed")]
    Count {
        /// The micro-batch.
        micro_batch: usize,
        /// The cause.
        source: Box<ActionError>,
    },
    /// A count is negative, NaN or infinite.
    #[error(
        "the count that weights the loss of micro-batch {micro_batch} is {count}: it must be finite and not \
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
        "the counts that weight the losses are 0 for all micro-batches, so the loss is undefined: leave \
         the batch out"
    )]
    NothingCounts,
    /// Some micro-batches have means and others have sums or means over something else.
    #[error(
        "the loss of micro-batch {micro_batch} is over something else than the loss of micro-batch 0: use the same one of \
         `Outputs::loss`, `weighted_by` and `Outputs::sum` for every batch"
    )]
    MixedLosses {
        /// The first micro-batch that differs.
        micro_batch: usize,
    },
    /// Parameters share an id.
    #[error(
        "`{second}` is a clone of `{first}`: Burn's optimizers update only one of them, so they \
         would differ; for a copy with values of its own, such as a target network, call `independent_copy` instead of \
         `clone`; to tie them, read one parameter in both places of the forward"
    )]
    Clones {
        /// The first parameter.
        first: ParameterPath,
        /// The clone.
        second: ParameterPath,
    },
    /// A parameter has more dimensions than optimizers support.
    #[error(
        "parameter `{path}` has {rank} dimensions, but Burn's optimizers support 1 to 8: store it with fewer, and reshape it \
         in the forward"
    )]
    ParameterRank {
        /// The parameter.
        path: ParameterPath,
        /// The number of dimensions.
        rank: usize,
    },
    /// Gradients would be clipped twice.
    #[error("both the optimizer's configuration and `clip` clip gradients: use one of them")]
    TwoClippings,
    /// The decay of averages is no fraction.
    #[error(
        "an average can't have the decay {decay}: it must be at least 0 and less than 1, such as 0.999"
    )]
    AverageDecay {
        /// The decay.
        decay: f64,
    },
    /// The pipeline keeps no averages.
    #[error("the pipeline keeps no averages: call `.average(0.999)` before `.start()`")]
    NoAverages,
    /// The parameters are exchanged for their averages.
    #[error(
        "the parameters are exchanged for their averages: train, set and restore parameters outside of `with_averages`"
    )]
    Averaged,
    /// A group of parameters can't be used; nothing was changed.
    #[error(transparent)]
    Group(#[from] GroupError),
    /// The pipeline has no optimizer.
    #[error("the pipeline has no optimizer: call `.optimizer(...)` before `.start()` to train")]
    NoOptimizer,
    /// The step does not fit the random generator's counter.
    #[error("step {step} does not fit the 32-bit step counter of the random generator")]
    StepOverflow {
        /// The step.
        step: u64,
    },
    /// The model has no parameter with a path.
    #[error("the model has no parameter `{path}`{}", did_you_mean(near))]
    UnknownParameter {
        /// The path.
        path: ParameterPath,
        /// Parameters with similar paths.
        near: Vec<ParameterPath>,
    },
    /// Values do not fit the parameters that they were to replace.
    #[error("the parameters could not be replaced; nothing was changed")]
    Values {
        /// The cause.
        source: SourceError,
    },
    /// Values could not be read back.
    #[error("the parameters could not be gathered")]
    Gather(#[source] MaterializeError),
    /// A saved state does not fit the pipeline.
    #[error("the saved state of rank {rank} could not be restored; nothing was changed")]
    Restore {
        /// The rank.
        rank: RankIndex,
        /// The cause.
        source: RestoreError,
    },
    /// A saved state could not be read completely.
    #[error(
        "rank {rank} could not read its part of a saved state, and the pipeline holds a mixture of old and restored \
         values: restore another saved state, or start a new pipeline"
    )]
    PartlyRestored {
        /// The lowest rank that failed.
        rank: RankIndex,
        /// The cause.
        source: RestoreError,
    },
    /// An earlier restore failed partway.
    #[error(
        "the pipeline holds a mixture of old and restored values because a restore failed: restore a saved state that \
         can be read, or start a new pipeline"
    )]
    Mixed,
}
