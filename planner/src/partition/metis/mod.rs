//! K-way partitions by METIS (Karypis and Kumar, *A fast and high quality multilevel scheme for
//! partitioning irregular graphs*, 1998), made runnable.
//!
//! METIS sees an undirected graph: blocks weigh their time and, where a rank's memory is limited, their
//! bytes; an edge weighs what its ends exchange. Its parts balance well and exchange little, but they
//! may wait for each other in circles. [`MetisRepair`] says what is done about that.

#[cfg(feature = "metis")]
mod kway;
#[cfg(feature = "metis")]
mod repair;

#[cfg(feature = "metis")]
pub use repair::metis;

/// How parts that wait for each other become stages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum MetisRepair {
    /// Each part is a rank, which runs as many stages as the flow asks for.
    #[default]
    MixedPipe,
    /// Each part is a stage of the machine; blocks that close circles are moved to another one.
    Acyclic,
}

/// What the METIS partitioner may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MetisOptions {
    /// What is done about circles.
    pub repair: MetisRepair,
    /// How much larger than its share a part may be, in thousandths; METIS' own default is 30.
    pub imbalance_permille: u64,
    /// For [`MetisRepair::MixedPipe`]: the most stages, in stages per rank. 0 counts as 1. Where the flow
    /// asks for more, circles are repaired as by [`MetisRepair::Acyclic`].
    pub most_stages_per_rank: usize,
}

impl Default for MetisOptions {
    fn default() -> Self {
        Self::of(MetisRepair::MixedPipe)
    }
}

impl MetisOptions {
    /// A repair, with what METIS does by default.
    #[must_use]
    pub const fn of(repair: MetisRepair) -> Self {
        Self {
            repair,
            imbalance_permille: 30,
            most_stages_per_rank: 8,
        }
    }
}
