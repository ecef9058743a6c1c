//! Cuts that a user names: by module path, or by the marks of the forward.

use std::fmt;

use serde::{Deserialize, Serialize};
use tinderbox_deferred::ParameterTable;

use super::Chain;
use crate::PlanError;
use crate::schedule::StageIndex;
use crate::trace::JointGraph;

/// A cut at a module, nested as deep as wanted, such as `blocks.3` or `blocks.3.attention`, or at a mark
/// of the forward.
///
/// A module's operations are those from the first that reads a parameter of it for the first time up to
/// the next module's; the exact place between two modules is the one where the fewest bytes cross.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Cut {
    /// The module begins a stage.
    Before(String),
    /// The module ends a stage.
    After(String),
    /// A stage ends with the value that [`cut`](tinderbox_fake::cut()) was called with: the index of the
    /// call of the forward, from 0.
    Mark(usize),
}

impl Cut {
    /// A cut before a module.
    pub fn before(module: impl Into<String>) -> Self {
        Self::Before(module.into())
    }

    /// A cut after a module.
    pub fn after(module: impl Into<String>) -> Self {
        Self::After(module.into())
    }

    /// A cut at a mark of the forward.
    pub const fn mark(number: usize) -> Self {
        Self::Mark(number)
    }
}

impl fmt::Display for Cut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Before(module) => write!(f, "before `{module}`"),
            Self::After(module) => write!(f, "after `{module}`"),
            Self::Mark(number) => write!(f, "at mark {number}"),
        }
    }
}

/// The first position of every stage.
pub(crate) fn manual(
    joint: &JointGraph,
    chain: &Chain,
    table: &ParameterTable,
    cuts: &[Cut],
) -> Result<Vec<usize>, PlanError> {
    let places = Places {
        joint,
        chain,
        table,
    };
    let mut starts = vec![0];
    for (number, cut) in cuts.iter().enumerate() {
        let since = starts[number];
        let start = places.start(cut, since)?;
        if start < since {
            return Err(PlanError::CutOrder {
                cut: cut.clone(),
                previous: cuts[number - 1].clone(),
            });
        }
        if start == since || start >= chain.nodes().len() {
            // The stage behind the last operation, or the one that the cut before began.
            let stage = number + usize::from(start > since);
            return Err(PlanError::EmptyStage {
                cut: cut.clone(),
                stage: StageIndex::new(stage),
            });
        }
        starts.push(start);
    }
    Ok(starts)
}

struct Places<'a> {
    joint: &'a JointGraph,
    chain: &'a Chain,
    table: &'a ParameterTable,
}

impl Places<'_> {
    /// The position at which the stage behind a cut begins, if the one before it begins at `since`.
    fn start(&self, cut: &Cut, since: usize) -> Result<usize, PlanError> {
        let end = self.chain.nodes().len();
        match cut {
            Cut::Mark(number) => self.behind_mark(*number),
            Cut::Before(module) => {
                let first = self.reads_under(module)?.into_iter().min().unwrap_or(0);
                let before = self.first_reads(|read| read < first).max();
                Ok(match before {
                    Some(before) => self.chain.cheapest_since(since, before, first),
                    None => 0,
                })
            }
            Cut::After(module) => {
                let last = self.reads_under(module)?.into_iter().max().unwrap_or(0);
                let next = self.first_reads(|read| read > last).min();
                Ok(match next {
                    Some(next) => self.chain.cheapest_since(since, last, next),
                    None => end,
                })
            }
        }
    }

    fn behind_mark(&self, mark: usize) -> Result<usize, PlanError> {
        let marks = self.joint.marks();
        let value = marks.get(mark).ok_or(PlanError::UnknownMark {
            mark,
            marks: marks.len(),
        })?;
        let producer = self.joint.graph().value(*value).producer;
        let position = producer.and_then(|node| self.chain.position(node));
        position
            .map(|position| position + 1)
            .ok_or(PlanError::IdleMark { mark })
    }

    /// Where the forward reads parameters for the first time.
    fn first_reads(&self, keep: impl Fn(usize) -> bool) -> impl Iterator<Item = usize> {
        let reads = self.table.distinct();
        let reads = reads.filter_map(|parameter| self.chain.first_read(&parameter.path));
        reads.filter(move |read| keep(*read))
    }

    /// Where the forward reads the parameters of a module for the first time.
    fn reads_under(&self, module: &str) -> Result<Vec<usize>, PlanError> {
        let inside = |path: &tinderbox_deferred::ParameterPath| path.is_under(module);
        let mut known = self.table.iter().map(|parameter| &parameter.path);
        if module.is_empty() || !known.any(inside) {
            return Err(PlanError::UnknownModule {
                module: module.to_owned(),
                near: self.table.near_modules(module),
            });
        }
        let parameters = self.table.distinct();
        let reads: Vec<usize> = parameters
            .filter(|parameter| inside(&parameter.path))
            .filter_map(|parameter| self.chain.first_read(&parameter.path))
            .collect();
        match reads.is_empty() {
            true => Err(PlanError::NoOperation {
                module: module.to_owned(),
            }),
            false => Ok(reads),
        }
    }
}
