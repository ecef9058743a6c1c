//! Cuts that a user names: by module path, or by the marks of the forward.

use std::collections::BTreeMap;

use derive_more::Display;
use serde::{Deserialize, Serialize};
use tinderbox_fake::ValueId;

use crate::PlanError;
use crate::schedule::StageIndex;
use crate::trace::JointGraph;

/// A cut at a module, nested as deep as wanted, such as `blocks.3` or `blocks.3.attention`, or at a mark
/// of the forward.
///
/// A module's operations are those from the first that reads a parameter of it for the first time up to
/// the next module's; the exact place between two modules is the one where the fewest bytes cross.
#[derive(Clone, Debug, Display, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Cut {
    /// The module begins a stage.
    #[display("before `{_0}`")]
    Before(String),
    /// The module ends a stage.
    #[display("after `{_0}`")]
    After(String),
    /// A stage ends with the value that [`cut`](tinderbox_fake::cut()) was called with: the index of the
    /// call of the forward, from 0. What updates the running states of the modules before it belongs to the
    /// stage too.
    #[display("at mark {_0}")]
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

/// The first position of every stage.
pub fn manual(joint: &JointGraph, cuts: &[Cut]) -> Result<Vec<usize>, PlanError> {
    let places = Places::new(joint);
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
        if start == since || start >= places.end() {
            // The stage after the last operation, or the one that the cut before began.
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

/// The positions between the operations of a forward, with what a cut at each costs.
struct Places<'a> {
    joint: &'a JointGraph,
    /// The bytes that cross a cut at each position.
    crossing: Vec<u64>,
    /// The forward values that the operation at each position reads.
    reads: Vec<Vec<ForwardRead>>,
    /// Whether a cut at each position separates a running state, which stays on one stage.
    separates: Vec<bool>,
}

/// A value that an assigned operation reads.
struct ForwardRead {
    /// The position of the operation that makes it.
    made: usize,
    /// The position of the operation that read it before, or else made it.
    touched: usize,
    bytes: u64,
}

impl<'a> Places<'a> {
    /// Cost: linear in the graph.
    fn new(joint: &'a JointGraph) -> Self {
        let (graph, forward) = (joint.graph(), joint.forward());
        let end = forward.nodes().len();
        let mut touched: BTreeMap<ValueId, usize> = BTreeMap::new();
        let mut reads: Vec<Vec<ForwardRead>> = Vec::with_capacity(end);
        // A value crosses every cut between two of its uses.
        let mut change = vec![0_i64; end + 2];
        for (position, id) in forward.nodes().iter().enumerate() {
            let mut here = Vec::new();
            for value in graph.node(*id).inputs() {
                let Some(made) = joint.position_of(*value) else {
                    continue;
                };
                let touched = touched.insert(*value, position).unwrap_or(made);
                if touched < position {
                    let bytes = graph.value(*value).bytes();
                    change[touched + 1] += bytes as i64;
                    change[position + 1] -= bytes as i64;
                    here.push(ForwardRead {
                        made,
                        touched,
                        bytes,
                    });
                }
            }
            reads.push(here);
        }
        let mut separates = vec![false; end + 1];
        for (first, last) in joint.inseparable() {
            separates[first + 1..=last].fill(true);
        }
        let mut live = 0;
        let crossing = change.into_iter().map(|change| {
            live += change;
            live as u64
        });
        Self {
            joint,
            crossing: crossing.collect(),
            reads,
            separates,
        }
    }

    /// The position after all running states that a cut at a position would separate.
    fn after_states(&self, position: usize) -> usize {
        let mut positions = position..self.end();
        let after = positions.find(|position| !self.separates[*position]);
        after.unwrap_or(self.end())
    }

    /// The position of the first of the running states that a cut at a position would separate.
    fn first_of_states(&self, position: usize) -> usize {
        let mut positions = (0..=position).rev();
        let first = positions.find(|position| !self.separates[*position]);
        first.unwrap_or(0)
    }

    /// The position after the last operation.
    fn end(&self) -> usize {
        self.reads.len()
    }

    /// The position at which the stage after a cut begins, if the one before it begins at `since`.
    fn start(&self, cut: &Cut, since: usize) -> Result<usize, PlanError> {
        match cut {
            Cut::Mark(number) => self.after_mark(*number),
            Cut::Before(module) => {
                let first = self.reads_under(module)?.into_iter().min().unwrap_or(0);
                let before = self.joint.first_reads(|_| true);
                let before = before.filter(|read| *read < first).max();
                let inside = |before| match self.cheapest(since, before, first) {
                    Some(position) => position,
                    // The operation before the module is of a state: the stage begins with the state.
                    None => self.first_of_states(first),
                };
                Ok(before.map_or(0, inside))
            }
            Cut::After(module) => {
                let last = self.reads_under(module)?.into_iter().max().unwrap_or(0);
                let next = self.joint.first_reads(|_| true);
                let next = next.filter(|read| *read > last).min();
                let inside = |next| {
                    let cheapest = self.cheapest(since, last, next);
                    cheapest.unwrap_or_else(|| self.after_states(next))
                };
                Ok(next.map_or(self.end(), inside))
            }
        }
    }

    fn after_mark(&self, mark: usize) -> Result<usize, PlanError> {
        let marks = self.joint.marks();
        let value = marks.get(mark).ok_or(PlanError::UnknownMark {
            mark,
            marks: marks.len(),
        })?;
        let position = self.joint.position_of(*value);
        let position = position.ok_or(PlanError::IdleMark { mark })?;
        Ok(self.after_states(position + 1))
    }

    /// The cheapest position for a cut after position `after` and not after `before`, for a stage
    /// after one that begins at `since`; of equals the last, so that an activation function
    /// stays with the module before it; `None` if each separates a running state.
    ///
    /// What the stage reads of values older than `since` is sent to it, in addition to what crosses. So what
    /// joins a skip connection runs after the cut, where the skip is sent instead of the joined value.
    fn cheapest(&self, since: usize, after: usize, before: usize) -> Option<usize> {
        let mut sent_before = 0;
        let mut best = None;
        for position in after + 1..=before {
            let old = self.reads[position - 1].iter();
            let old = old.filter(|read| read.made < since && read.touched < since);
            sent_before += old.map(|read| read.bytes).sum::<u64>();
            let cost = self.crossing[position] + sent_before;
            if !self.separates[position] && best.is_none_or(|(least, _)| cost <= least) {
                best = Some((cost, position));
            }
        }
        best.map(|(_, position)| position)
    }

    /// Where the forward reads the parameters of a module for the first time.
    fn reads_under(&self, module: &str) -> Result<Vec<usize>, PlanError> {
        let table = self.joint.table();
        let mut known = table.iter().map(|parameter| &parameter.path);
        if module.is_empty() || !known.any(|path| path.is_under(module)) {
            return Err(PlanError::UnknownModule {
                module: module.to_owned(),
                near: table.near_modules(module),
            });
        }
        let reads = self.joint.first_reads(|path| path.is_under(module));
        let reads: Vec<usize> = reads.collect();
        match reads.is_empty() {
            true => Err(PlanError::NoOperation {
                module: module.to_owned(),
            }),
            false => Ok(reads),
        }
    }
}
