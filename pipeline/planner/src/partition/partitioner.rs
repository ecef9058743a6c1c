//! The partitioners by name.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::{Partition, Predicted, UnknownPartitioner};

/// A partitioner.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[non_exhaustive]
pub enum Partitioner {
    /// `chain`: contiguous stages, optimal for a cost model.
    Chain,
    /// `mixed`: several stages per rank, which need not be contiguous. It moves one block at a time, so under a tight limit it
    /// may find no plan although one exists.
    Mixed,
    /// `metis`: parts of the METIS library, with several stages per rank.
    Metis,
    /// `auto`: the fastest of all of these.
    #[default]
    Auto,
}

impl Partitioner {
    /// All partitioners, in the order in which `auto` tries them.
    pub const ALL: [Self; 4] = [Self::Mixed, Self::Chain, Self::Metis, Self::Auto];

    /// Returns its name.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Chain => "chain",
            Self::Mixed => "mixed",
            Self::Metis => "metis",
            Self::Auto => "auto",
        }
    }
}

impl fmt::Display for Partitioner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Partitioner {
    type Err = UnknownPartitioner;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        let known = Self::ALL.into_iter().find(|known| known.name() == name);
        let name = name.to_owned();
        known.ok_or(UnknownPartitioner { name })
    }
}

/// A partition with its prediction.
pub(super) type Found = (Partition, Predicted);

/// The partitioner that created a plan, and the reasons for choosing it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Choice {
    /// Its name: `chain`, `mixed`, `metis`, `fine` for many small stages, or `manual` for manual cuts.
    pub partitioner: String,
    /// The reasons, one sentence each.
    pub reasons: Vec<String>,
}

/// A partition with its prediction and the reasons for choosing it.
#[derive(Debug, Clone)]
pub struct Planned {
    /// The partition.
    pub partition: Partition,
    /// Schedule, times and memory.
    pub predicted: Predicted,
    /// The partitioner that found it, and one sentence for each that was tried, the sentence of the
    /// chosen one first.
    pub choice: Choice,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back() {
        for partitioner in Partitioner::ALL {
            assert_eq!(
                partitioner.to_string().parse::<Partitioner>().unwrap(),
                partitioner
            );
        }
        let unknown = "chian".parse::<Partitioner>().unwrap_err();
        insta::assert_snapshot!(
            unknown,
            @"unknown partitioner `chian`: expected mixed, chain, metis or auto"
        );
    }
}
