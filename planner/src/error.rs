//! What can be wrong with work, machines, partitions and plan files.

use std::fmt;
use std::path::PathBuf;

use tinderbox_schedule::{AutoError, RankIndex, VerifyError};

/// Why something is not the work of a model.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WorkError {
    /// A parameter has no readers, or readers that are not blocks in ascending order.
    #[error("parameter {index} needs readers among the blocks, each once and in ascending order")]
    Parameter {
        /// Its position.
        index: usize,
    },
    /// A value is read before it is made, or by what is no block.
    #[error(
        "value {index} needs a maker among the blocks, and readers after it, each once and in \
         ascending order"
    )]
    Value {
        /// Its position.
        index: usize,
    },
}

/// Why something is not a machine.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MachineError {
    /// It has no ranks.
    #[error("a plan needs at least one rank")]
    NoRanks,
    /// A rank would have no stage.
    #[error("every rank needs at least one stage")]
    NoChunks,
    /// A rank would never finish.
    #[error("rank {rank} has no speed: 1000 is that of the rank that times were measured on")]
    NoSpeed {
        /// The rank.
        rank: RankIndex,
    },
    /// The file can't be read or written.
    #[error("the machine file {} can't be {action}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What was tried.
        action: &'static str,
        /// Why not.
        #[source]
        source: std::io::Error,
    },
    /// The text is no machine.
    #[error("this is not a machine: `tinderbox calibrate -o FILE` writes one")]
    Json {
        /// Where and why.
        #[source]
        source: serde_json::Error,
    },
}

/// Why there is no plan.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PlannerError {
    /// The work is none.
    #[error(transparent)]
    Work(#[from] WorkError),
    /// The machine is none.
    #[error(transparent)]
    Machine(#[from] MachineError),
    /// There are more stages than places to begin one.
    #[error("{stages} stages were asked for, and the model can be cut into {blocks} at the most")]
    TooManyStages {
        /// Stages asked for.
        stages: usize,
        /// Blocks of the work.
        blocks: usize,
    },
    /// The stages have no schedule.
    #[error("no schedule runs these stages")]
    Schedule {
        /// Why.
        #[from]
        source: VerifyError,
    },
    /// No lists were found for the stages.
    #[error("no lists run these stages within the memory of the ranks")]
    Auto {
        /// Why.
        #[from]
        source: AutoError,
    },
    /// Memory is too small whatever the cut.
    #[error(transparent)]
    Infeasible(#[from] Infeasible),
    /// The partitioner is not part of this build.
    #[error("`{partitioner}` is not built in: build with the feature `{feature}`")]
    NotBuiltIn {
        /// Its name.
        partitioner: &'static str,
        /// The feature of this crate that it needs.
        feature: &'static str,
    },
    /// The work has more blocks or values than the partitioner can number.
    #[error("{blocks} blocks and values are more than METIS can number: use another partitioner")]
    TooLarge {
        /// How many there are.
        blocks: usize,
    },
    /// METIS found no parts.
    #[cfg(feature = "metis")]
    #[error("METIS found no parts: use another partitioner")]
    Metis {
        /// Why.
        #[source]
        source: metis::Error,
    },
    /// The parts of METIS depend on each other too often.
    #[error("the parts of METIS need more than {most} stages to run in order: use `mixed`")]
    MetisStages {
        /// The most stages.
        most: usize,
    },
}

/// No partitioner has this name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("no partitioner is called `{name}`: there are mixed, chain, metis and auto")]
pub struct UnknownPartitioner {
    /// The name.
    pub name: String,
}

/// The smallest set of facts that leaves no plan.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Infeasible {
    /// One block is too large for every rank.
    #[error(
        "`{block}` needs {} on whichever rank it lies, and the largest rank may hold {}: take smaller \
         micro-batches, finer blocks, or let stages make their activations again",
        Size(*needed),
        Size(*largest)
    )]
    Block {
        /// The block.
        block: String,
        /// Bytes that it needs at the least: its parameters, gradients, optimizer state and the
        /// activations of the micro-batches that its stage has in flight.
        needed: u64,
        /// The most bytes that a rank may hold.
        largest: u64,
    },
    /// All ranks together are too small.
    #[error(
        "the stages need {} in all, and the ranks may hold {} together: take more ranks, smaller \
         micro-batches or an optimizer with less state",
        Size(*needed),
        Size(*available)
    )]
    Total {
        /// Bytes that all stages need at the least: parameters, gradients, optimizer state and the
        /// activations of one micro-batch.
        needed: u64,
        /// Bytes of all ranks.
        available: u64,
    },
    /// A stretch of blocks does not fit the rank that would have to hold it.
    #[error(
        "rank {rank} would have to hold the blocks from `{first}` to `{last}`, which the ranks before \
         and behind it can't take too: they need {} and it may hold {}: take more ranks, another \
         schedule with fewer micro-batches in flight, or let stages make their activations again",
        Size(*needed),
        Size(*limit)
    )]
    Stretch {
        /// The rank.
        rank: RankIndex,
        /// The first block that the ranks before it can't hold.
        first: String,
        /// The last block that the ranks behind it can't hold.
        last: String,
        /// Bytes that these blocks need on the rank at the least.
        needed: u64,
        /// Bytes that the rank may hold.
        limit: u64,
    },
    /// The best partition that was found makes a rank hold too much.
    #[error(
        "rank {rank} would hold {} and may hold {}: let stages make their activations again, or take \
         smaller micro-batches or more ranks",
        Size(*needed),
        Size(*limit)
    )]
    Rank {
        /// The first such rank.
        rank: RankIndex,
        /// Bytes that it would hold.
        needed: u64,
        /// Bytes that it may hold.
        limit: u64,
    },
    /// No cuts were found that fit, though no single fact rules them out.
    #[error(
        "no cuts into {stages} stages were found that fit: those that come closest need {} on rank \
         {rank}, which may hold {}: take more ranks or smaller micro-batches, or let stages make their \
         activations again",
        Size(*needed),
        Size(*limit)
    )]
    Cuts {
        /// Number of stages.
        stages: usize,
        /// The rank that is furthest above its limit.
        rank: RankIndex,
        /// Bytes that it would hold.
        needed: u64,
        /// Bytes that it may hold.
        limit: u64,
    },
}

/// Bytes as people read them: whole below a MiB, and in MiB with one decimal above.
struct Size(u64);

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(bytes) = self;
        match bytes >> 20 {
            0 => write!(f, "{bytes} bytes"),
            _ => {
                let tenths = (u128::from(*bytes) * 10 + (1 << 19)) >> 20;
                write!(f, "{}.{} MiB", tenths / 10, tenths % 10)
            }
        }
    }
}

/// Why a file is not a plan.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PlanFileError {
    /// The file can't be read or written.
    #[error("the plan file {} can't be {action}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What was tried.
        action: &'static str,
        /// Why not.
        #[source]
        source: std::io::Error,
    },
    /// The text is no plan.
    #[error("the plan is not valid JSON of a plan")]
    Json {
        /// Where and why.
        #[source]
        source: serde_json::Error,
    },
    /// The plan has another version.
    #[error(
        "the plan has version {found} and this build reads version {expected}: make the plan again"
    )]
    Version {
        /// The version of this build.
        expected: u32,
        /// That of the file.
        found: u32,
    },
    /// The stages are not numbered from 0 in order.
    #[error("the plan needs stages numbered from 0 in order")]
    Stages,
    /// A rank between 0 and the highest has no stage.
    #[error("rank {rank} has no stage: the ranks of a plan are numbered from 0 without gaps")]
    IdleRank {
        /// The rank.
        rank: RankIndex,
    },
    /// There is not one rank per stage.
    #[error("the plan has {expected} stages, and ranks for {found} were given")]
    StageMap {
        /// Stages of the plan.
        expected: usize,
        /// Ranks given.
        found: usize,
    },
}
