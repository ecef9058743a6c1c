//! Errors of work, machines, partitioners and plan files.

use std::path::PathBuf;

use tinderbox_ids::text::{count_text, human_bytes_distinct};
use tinderbox_schedule::{AutoError, RankIndex, ScheduleKind, VerifyError};

/// Errors of [`Work::check`](crate::Work::check).
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WorkError {
    /// A parameter has no readers, or readers that are missing blocks or out of order.
    #[error(
        "parameter {index} needs at least one reader, and readers must be existing blocks, each listed \
         once in ascending order"
    )]
    Parameter {
        /// The index of the parameter.
        index: usize,
    },
    /// A value is read before it is computed, or by a block that does not exist.
    #[error(
        "value {index} needs an existing block as its maker and later blocks as its readers, each listed \
         once in ascending order"
    )]
    Value {
        /// The index of the value.
        index: usize,
    },
}

/// The error of reading or writing a machine or plan file.
#[derive(Debug, thiserror::Error)]
#[error("the {kind} file {} can't be {action}", path.display())]
pub struct FileError {
    /// The kind of the file: `machine` or `plan`.
    pub kind: &'static str,
    /// The file.
    pub path: PathBuf,
    /// The operation that failed: `read` or `written`.
    pub action: &'static str,
    /// The cause.
    pub source: std::io::Error,
}

/// Errors of machines and machine files.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MachineError {
    /// The machine has no ranks.
    #[error("a plan needs at least one rank")]
    NoRanks,
    /// A rank would have no stage.
    #[error("every rank needs at least one stage")]
    NoChunks,
    /// A rank has speed 0.
    #[error(
        "rank {rank} has speed 0: use 1000 for the speed of the rank on which times were measured"
    )]
    NoSpeed {
        /// The rank.
        rank: RankIndex,
    },
    /// Machines with another number of ranks than the plan.
    #[error("there are {ranks} ranks, and the machines have {found}: give each rank its machine")]
    Machines {
        /// The number of ranks.
        ranks: usize,
        /// The number of ranks of all machines.
        found: usize,
    },
    /// A number of replicas that is no power of two, or does not divide the ranks.
    #[error(
        "{ranks} ranks can't be divided among {replicas} replicas: use 1, 2, 4, 8 or another power of two that divides the \
         number of ranks"
    )]
    Replicas {
        /// The number of ranks.
        ranks: usize,
        /// The number of replicas.
        replicas: usize,
    },
    /// The file could not be read or written.
    #[error(transparent)]
    Io(#[from] FileError),
    /// The text is not a machine.
    #[error(
        "the JSON is not a machine: write a machine file with `tinderbox calibrate --json -o FILE`"
    )]
    Json {
        /// The position and the cause.
        source: serde_json::Error,
    },
}

/// Errors of partitioners.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PlannerError {
    /// The work is invalid.
    #[error(transparent)]
    Work(#[from] WorkError),
    /// The machine is invalid.
    #[error(transparent)]
    Machine(#[from] MachineError),
    /// The machine has more stages than the work has blocks.
    #[error("{stages} stages were requested, but the model can be cut into at most {blocks}")]
    TooManyStages {
        /// The number of stages requested.
        stages: usize,
        /// The number of blocks of the work.
        blocks: usize,
    },
    /// The schedule of the stages is invalid.
    #[error("these stages have no valid schedule")]
    Schedule {
        /// The cause.
        #[from]
        source: VerifyError,
    },
    /// No schedule was found for the stages.
    #[error("no schedule of these stages fits the memory of the ranks")]
    Auto {
        /// The cause.
        #[from]
        source: AutoError,
    },
    /// A schedule that places stages on other ranks than the plan.
    #[error(
        "the schedule {schedule} does not run {stages} stages on {ranks} ranks as the plan places them, \
         in {micro_batches} micro-batches"
    )]
    OtherPlaces {
        /// The schedule.
        schedule: ScheduleKind,
        /// The number of stages of the plan.
        stages: usize,
        /// The number of its ranks.
        ranks: usize,
        /// The number of micro-batches of the schedule.
        micro_batches: usize,
    },
    /// No partition fits the memory of the ranks.
    #[error(transparent)]
    Infeasible(#[from] Infeasible),
    /// The partitioner is not part of this build.
    #[error("`{partitioner}` is not built in: build with the feature `{feature}`")]
    NotBuiltIn {
        /// The name of the partitioner.
        partitioner: &'static str,
        /// The feature of this crate that the partitioner needs.
        feature: &'static str,
    },
    /// The work has more blocks or values than METIS can index.
    #[error("METIS can't index {blocks} blocks and values: use another partitioner")]
    TooLarge {
        /// The number of blocks and values.
        blocks: usize,
    },
    /// METIS failed.
    #[cfg(feature = "metis")]
    #[error("METIS failed: use another partitioner")]
    Metis {
        /// The cause.
        source: metis::Error,
    },
    /// The parts that METIS found depend on each other too often.
    #[error("the parts of METIS need more than {most} stages to run in order: use `mixed`")]
    MetisStages {
        /// The maximum number of stages.
        most: usize,
    },
}

/// The error for an unknown partitioner name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown partitioner `{name}`: expected mixed, chain, metis or auto")]
pub struct UnknownPartitioner {
    /// The name.
    pub name: String,
}

/// The smallest set of facts that excludes every partition within the memory limits.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Infeasible {
    /// One block is too large for every rank.
    #[error(
        "`{block}` needs at least {} on any rank, and the largest memory limit is {}: use smaller \
         micro-batches or finer blocks, or allow recomputation of activations",
        human_bytes_distinct(*needed, *largest),
        human_bytes_distinct(*largest, *needed)
    )]
    Block {
        /// The name of the block.
        block: String,
        /// Bytes that the block needs at least: its parameters, gradients, optimizer state and the
        /// activations of the micro-batches that its stage has in flight.
        needed: u64,
        /// The largest memory limit of a rank, in bytes.
        largest: u64,
    },
    /// The memory of all ranks together is too small.
    #[error(
        "the stages need at least {} in total, and the memory limits of the ranks add up to {}: use more \
         ranks, smaller micro-batches or an optimizer with less state",
        human_bytes_distinct(*needed, *available),
        human_bytes_distinct(*available, *needed)
    )]
    Total {
        /// Bytes that all stages need at least: parameters, gradients, optimizer state and the
        /// activations of one micro-batch.
        needed: u64,
        /// The sum of the memory limits of all ranks, in bytes.
        available: u64,
    },
    /// A range of blocks does not fit the only rank that could hold it.
    #[error(
        "the other ranks have no memory left for the blocks from `{first}` to `{last}`, which need {} on rank {rank}, \
         whose memory limit is {}: use more ranks, a schedule with fewer micro-batches in flight, or recomputation of \
         activations (`may_recompute`)",
        human_bytes_distinct(*needed, *limit),
        human_bytes_distinct(*limit, *needed)
    )]
    Range {
        /// The rank.
        rank: RankIndex,
        /// The first block that does not fit the ranks before this rank.
        first: String,
        /// The last block that does not fit the ranks after this rank.
        last: String,
        /// Bytes that these blocks need on the rank at least.
        needed: u64,
        /// The memory limit of the rank in bytes.
        limit: u64,
    },
    /// The best partition that was found exceeds the memory of a rank.
    #[error(
        "rank {rank} needs {} and its memory limit is {}: allow recomputation of activations, or use \
         smaller micro-batches or more ranks",
        human_bytes_distinct(*needed, *limit),
        human_bytes_distinct(*limit, *needed)
    )]
    Rank {
        /// The first such rank.
        rank: RankIndex,
        /// Bytes that the rank needs.
        needed: u64,
        /// The memory limit of the rank in bytes.
        limit: u64,
    },
    /// No cuts that fit were found, although no single fact excludes them.
    #[error(
        "found no cuts into {stages} stages that fit: the closest need {} on rank {rank}, whose memory \
         limit is {}: use more ranks or smaller micro-batches, or allow recomputation of activations",
        human_bytes_distinct(*needed, *limit),
        human_bytes_distinct(*limit, *needed)
    )]
    Cuts {
        /// The number of stages.
        stages: usize,
        /// The rank that exceeds its limit most.
        rank: RankIndex,
        /// Bytes that the rank needs.
        needed: u64,
        /// The memory limit of the rank in bytes.
        limit: u64,
    },
}

/// Errors of plans and of their files.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PlanFileError {
    /// The file could not be read or written.
    #[error(transparent)]
    Io(#[from] FileError),
    /// The text is not a plan.
    #[error("invalid plan JSON")]
    Json {
        /// The position and the cause.
        source: serde_json::Error,
    },
    /// The plan has another version.
    #[error(
        "the plan has version {found} and this build reads versions {oldest} to {newest}: create the plan again"
    )]
    Version {
        /// The oldest version that this build reads.
        oldest: u32,
        /// The newest version that this build reads, which it writes.
        newest: u32,
        /// The version of the file.
        found: u32,
    },
    /// The stages are not numbered from 0 in order.
    #[error("the stages of the plan are not numbered from 0 in order")]
    Stages,
    /// A number of replicas that is no power of two.
    #[error("a plan has 1, 2, 4, 8 or another power of two of replicas, not {replicas}")]
    Replicas {
        /// The number of replicas.
        replicas: usize,
    },
    /// Stages that are divided among several ranks.
    #[error(
        "the plan divides every stage into {shards} shards, and this version runs no shards: create the plan with one shard"
    )]
    Shards {
        /// The number of shards.
        shards: usize,
    },
    /// The plan has no such rank.
    #[error(
        "rank {rank} does not exist: the plan has {}, numbered from 0",
        count_text(*ranks, "rank")
    )]
    RankOutOfRange {
        /// The rank requested.
        rank: usize,
        /// The number of ranks.
        ranks: usize,
    },
    /// A rank between 0 and the highest has no stage.
    #[error("rank {rank} has no stage: the ranks of a plan are numbered from 0 without gaps")]
    IdleRank {
        /// The rank.
        rank: RankIndex,
    },
    /// The number of ranks given differs from the number of stages.
    #[error("the plan has {expected} stages, but ranks were given for {found}")]
    StageMap {
        /// The number of stages of the plan.
        expected: usize,
        /// The number of ranks given.
        found: usize,
    },
}

/// The error of a memory limit that is too low for the values that are needed at the same time.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("visit {visit} needs {least_bytes} bytes, and the limit is {budget_bytes} bytes")]
pub struct StreamError {
    /// The visit that needs most.
    pub visit: usize,
    /// The limit.
    pub budget_bytes: u64,
    /// The least limit that suffices.
    pub least_bytes: u64,
}
