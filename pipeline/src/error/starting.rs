//! Errors of starting a pipeline.

use std::error::Error;
use std::io;

use tinderbox_deferred::{
    DeviceError, MaterializeError, ParameterPath, human_bytes, human_bytes_distinct,
};
use tinderbox_fake::{DeviceLabel, Difference};

use super::texts::joined;
use crate::schedule::{RankIndex, StageIndex};
use crate::sum::GradientSum;

/// Errors of starting a pipeline.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// The list of devices is empty.
    #[error("the list of devices is empty: leave it out for the CPU")]
    NoDevices,
    /// The number of threads is 0.
    #[error(
        "a rank can't run on 0 threads: use at least 1, or leave `threads_per_rank` out for an equal share of the machine"
    )]
    NoThreads,
    /// The number of replicas is not a power of two, so their sums have no binary tree.
    #[error("{replicas} replicas have no binary tree of sums: use a power of two, such as 4")]
    Replicas {
        /// The number of replicas.
        replicas: usize,
    },
    /// The replicas can't keep the order of sums.
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
         own, so trace the model with more"
    )]
    IdleReplicas {
        /// The number of replicas.
        replicas: usize,
        /// The number of micro-batches of a step.
        micro_batches: usize,
    },
    /// The trace is of another model.
    #[error(
        "the trace is of another model: in the constructor, {difference}; trace the model that is trained"
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
    /// A model whose forward updates running states can't be trained by replicas.
    #[error(
        "`{path}` is updated by the forward of one micro-batch after the other, so replicas would wait for each other: train \
         it with one replica, or use a norm without running statistics"
    )]
    RunningState {
        /// The state.
        path: ParameterPath,
    },
    /// A step of trained parameters can't be replayed with initial ones.
    #[error("a step after {step} others is replayed from a checkpoint: set it as the `source`")]
    NoReplaySource {
        /// The number of training steps done before.
        step: u64,
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
    /// A group of parameters of the optimizer can't be used.
    #[error(transparent)]
    Group(#[from] GroupError),
    /// Gradients would be clipped twice.
    #[error("both the optimizer's configuration and `clip` clip gradients: use one of them")]
    TwoClippings,
    /// The maximum norm of gradients is not a positive number.
    #[error("gradients can't be clipped to a norm of {max}: use a positive number")]
    Clip {
        /// The maximum norm requested.
        max: f64,
    },
    /// The decay of averages is not a fraction.
    #[error(
        "an average can't have the decay {decay}: it must be at least 0 and less than 1, such as 0.999"
    )]
    AverageDecay {
        /// The decay.
        decay: f64,
    },
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
    /// A device can't be used; no parameter was created.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The ranks of a device do not fit its memory; no parameter was created.
    #[error(
        "ranks {} need {} on {device} for parameters and gradients alone, but {} are available: distribute the ranks over \
         more devices, or start without this check (`memory_check(MemoryCheck::Off)`)",
        joined(ranks),
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
    /// A thread could not be started.
    #[error("rank {rank} could not be started")]
    Spawn {
        /// The rank.
        rank: RankIndex,
        /// The error of the operating system.
        source: io::Error,
    },
    /// A rank could not materialize its parameters.
    #[error("rank {rank} could not materialize its parameters")]
    Materialize {
        /// The rank.
        rank: RankIndex,
        /// The cause.
        source: MaterializeError,
    },
}

/// Errors of a group of parameters.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GroupError {
    /// A group has an optimizer, and contains no parameter that trains.
    #[error(
        "optimizer group {number} contains no parameter that trains: groups match the paths of parameters, not ids"
    )]
    Empty {
        /// Its number, from 1.
        number: usize,
    },
    /// A group has ids of parameters, or excludes ids.
    #[error(
        "{} has ids of parameters, which are others in each construction of the model, so they match nothing: match paths, \
         for example with `ParamGroup::from_predicate` or `ParameterTable::group`",
        number.map_or_else(|| "the group".to_owned(), |number| format!("optimizer group {number}"))
    )]
    Ids {
        /// Its number among the groups with an optimizer, from 1; `None` for another group.
        number: Option<usize>,
    },
    /// None of the parameters of a group has a gradient.
    #[error(
        "there is no gradient of `{path}`, because it did not train when the model was traced, or is a running state: trace \
         a model in which it trains, and freeze it after the start"
    )]
    NotTraced {
        /// The first parameter.
        path: ParameterPath,
    },
    /// A group contains no parameter.
    #[error("the group contains no parameter: groups match the paths of parameters, not ids")]
    NoParameters,
}

/// The error of a model that can't be streamed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StreamedError {
    /// The memory limit is too low; nothing was read.
    #[error(
        "a memory limit of {} is too low, the least is {}: stage {stage} needs {} for its parameters and {} for everything \
         else of the pass{}; raise the limit, plan smaller stages (`Trace::plan_streamed`), or use more or smaller micro-batches",
        human_bytes_distinct(*budget_bytes, *least_bytes),
        human_bytes_distinct(*least_bytes, *budget_bytes),
        human_bytes(*parameter_bytes),
        human_bytes(*other_bytes),
        besides(*besides_bytes)
    )]
    Budget {
        /// The limit in bytes.
        budget_bytes: u64,
        /// The least limit that suffices.
        least_bytes: u64,
        /// The stage that needs most.
        stage: StageIndex,
        /// Bytes of its parameters.
        parameter_bytes: u64,
        /// Bytes of values, carried tensors and the batch while it runs.
        other_bytes: u64,
        /// Bytes of the process outside of the pass, and spare bytes.
        besides_bytes: u64,
    },
    /// The limit is a limit of the process, and the parameters are on a device with its own memory.
    #[error(
        "a limit of the process' memory (`MemoryBudget::Bytes`) does not limit the memory of {device}: use \
         `MemoryBudget::Values`, or the default"
    )]
    ProcessBudget {
        /// The device.
        device: DeviceLabel,
    },
    /// The plan has more than one rank.
    #[error(
        "a streamed model runs on one rank, and the plan has {ranks}: create it with `Trace::plan_streamed`"
    )]
    Ranks {
        /// The number of ranks of all replicas.
        ranks: usize,
    },
    /// There is no store for the values that are trained.
    #[error(
        "a streamed model is trained with a store for its values: set one (`store`) and an optimizer"
    )]
    NoStore,
    /// Training can't begin or continue with the values of the store.
    #[error("training can't continue with the store")]
    Store {
        /// The cause.
        source: Box<dyn Error + Send + Sync>,
    },
    /// A step could not be committed. The last committed one is still there.
    #[error(
        "step {step} could not be committed: the last committed step is still there; start again to continue from it"
    )]
    Commit {
        /// The step.
        step: u64,
        /// The cause.
        source: Box<dyn Error + Send + Sync>,
    },
}

fn besides(bytes: u64) -> String {
    match bytes {
        0 => String::new(),
        bytes => format!(", and the process {} besides", human_bytes(bytes)),
    }
}
