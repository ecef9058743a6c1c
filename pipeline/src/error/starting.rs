//! Errors of starting a pipeline.

use tinderbox_deferred::{DeviceError, MaterializeError, ParameterPath, human_bytes_distinct};
use tinderbox_fake::{DeviceLabel, Difference};

use super::grouping::GroupError;
use crate::schedule::RankIndex;
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
    /// The decay of averages is no fraction.
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
    /// A thread could not be started.
    #[error("rank {rank} could not be started")]
    Spawn {
        /// The rank.
        rank: RankIndex,
        /// The error of the operating system.
        source: std::io::Error,
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
