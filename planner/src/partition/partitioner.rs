//! The partitioners by name.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::auto::auto;
use super::chain::chain;
use super::limits::within_limits;
use super::mixed::mixed;
use super::reasons;
use crate::{Machine, Partition, PlannerError, Predicted, Step, UnknownPartitioner, Work, predict};

/// A partitioner.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[non_exhaustive]
pub enum Partitioner {
    /// `chain`: contiguous stages, optimal for a cost model.
    Chain,
    /// `mixed`: several stages per rank, which need not be contiguous.
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
    #[must_use]
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
        let mut all = Self::ALL.into_iter();
        all.find(|known| known.name() == name)
            .ok_or_else(|| UnknownPartitioner {
                name: name.to_owned(),
            })
    }
}

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

/// Partitions work and predicts the step.
///
/// ```
/// use tinderbox_planner::{Block, Machine, Partitioner, Step, Value, Work, partition};
/// use tinderbox_schedule::ScheduleKind;
///
/// let block = |index: usize| Block {
///     name: format!("blocks.{index}"),
///     forward: 1_000_000,
///     backward: 2_000_000,
///     input_gradient: 1_000_000,
///     weight_gradient: 1_000_000,
///     ..Block::default()
/// };
/// let value = |maker: usize| Value {
///     bytes: 4096,
///     gradient_bytes: 4096,
///     maker,
///     readers: vec![maker + 1],
///     ..Value::default()
/// };
/// let work = Work {
///     blocks: (0..8).map(block).collect(),
///     values: (0..7).map(value).collect(),
///     ..Work::default()
/// };
/// let step = Step::new(ScheduleKind::OneFOneB, 8);
/// let planned = partition(Partitioner::Chain, &work, &Machine::local(2)?, &step)?;
/// assert_eq!(planned.partition.stage_of, [0, 0, 0, 0, 1, 1, 1, 1]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
///
/// The error of the partitioner; [`Infeasible`](crate::Infeasible) where the partition does not fit the memory of the
/// ranks; [`PlannerError::NotBuiltIn`] for METIS without the feature `metis`. `auto` fails where all
/// partitioners do, with the error of `chain`.
pub fn partition(
    partitioner: Partitioner,
    work: &Work,
    machine: &Machine,
    step: &Step,
) -> Result<Planned, PlannerError> {
    work.check()?;
    let (ranks, blocks) = (machine.ranks(), work.blocks.len());
    if blocks < ranks {
        return Err(PlannerError::TooManyStages {
            stages: ranks,
            blocks,
        });
    }
    let mut optimal_ns = None;
    let (partition, predicted) = match partitioner {
        Partitioner::Auto => return auto(work, machine, step),
        Partitioner::Chain => {
            let chained = chain(work, machine, step)?;
            optimal_ns = chained.is_optimal.then_some(chained.model_ns);
            let predicted = predict(work, machine, step, &chained.partition)?;
            (chained.partition, predicted)
        }
        Partitioner::Mixed => {
            within_limits(work, machine, step, |machine| mixed(work, machine, step))?
        }
        Partitioner::Metis => {
            within_limits(work, machine, step, |machine| metis(work, machine, step))?
        }
    };
    if let Some(over) = predicted.prediction.over_limit(machine) {
        return Err(over.into());
    }
    let choice = Choice {
        partitioner: partitioner.name().to_owned(),
        reasons: vec![reasons::chosen(partitioner, &predicted, optimal_ns)],
    };
    Ok(Planned {
        partition,
        predicted,
        choice,
    })
}

#[cfg(feature = "metis")]
use super::metis::metis;

/// Fails where METIS is not built in.
#[cfg(not(feature = "metis"))]
fn metis(_: &Work, _: &Machine, _: &Step) -> Result<(Partition, Predicted), PlannerError> {
    Err(PlannerError::NotBuiltIn {
        partitioner: Partitioner::Metis.name(),
        feature: "metis",
    })
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
