//! Cuts that a user names: by module path, or by the marks of the forward.

use std::collections::BTreeMap;

use derive_more::Display;
use serde::{Deserialize, Serialize};
use tinderbox_fake::ValueId;

use crate::schedule::StageIndex;
use crate::{JointGraph, PlanError};

/// A cut at a module, nested as deep as wanted, such as `blocks.3` or `blocks.3.attention`, or at a mark
/// of the forward.
///
/// The operations of a module begin with the first that reads a parameter of it for the first time, and end before the
/// operations of the next module. The exact place between two modules is the place where the fewest bytes cross.
#[derive(Clone, Debug, Display, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Cut {
    /// The module begins a stage.
    #[display("before `{_0}`")]
    Before(String),
    /// The module ends a stage.
    #[display("after `{_0}`")]
    After(String),
    /// A stage ends with the value that [`mark`](tinderbox_fake::mark()) was called with: the index of the
    /// call of the forward, from 0. Operations that update the running states of the modules before it belong to the
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
            let (cut, previous) = (cut.clone(), cuts[number - 1].clone());
            return Err(PlanError::CutOrder { cut, previous });
        }
        if start == since || start >= places.end() {
            // The stage after the last operation, or the one that the cut before began.
            let stage = StageIndex::new(number + usize::from(start > since));
            let cut = cut.clone();
            return Err(PlanError::EmptyStage { cut, stage });
        }
        starts.push(start);
    }
    Ok(starts)
}

/// The positions between the operations of a forward, with the cost of a cut at each.
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
    /// The position of the operation that computes it.
    made: usize,
    /// The position of the operation that read it before, or else computed it.
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
            let inputs = graph.node(*id).inputs().iter();
            let made = inputs.filter_map(|value| Some((*value, joint.position_of(*value)?)));
            for (value, made) in made {
                let touched = touched.insert(value, position).unwrap_or(made);
                if touched < position {
                    let bytes = graph.value(value).bytes();
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
                let (first, _) = self.reads_under(module)?;
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
                let (_, last) = self.reads_under(module)?;
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
        let value = self.joint.marks().get(mark);
        let marks = self.joint.marks().len();
        let value = value.ok_or(PlanError::UnknownMark { mark, marks })?;
        let position = self.joint.position_of(*value);
        let position = position.ok_or(PlanError::IdleMark { mark })?;
        Ok(self.after_states(position + 1))
    }

    /// The cheapest position for a cut after position `after` and not after `before`, for a stage after one that begins at
    /// `since`. Of equally cheap positions it is the last, so that an activation function stays with the module before it.
    /// `None` if each position separates a running state.
    ///
    /// Values older than `since` that the stage reads are sent to it, in addition to the values that cross. So the operation
    /// that joins a skip connection runs after the cut, and the skip is sent instead of the joined value.
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

    /// The first and the last of the positions at which the forward reads a parameter of a module for the first time.
    fn reads_under(&self, module: &str) -> Result<(usize, usize), PlanError> {
        let table = self.joint.table();
        let mut known = table.iter().map(|parameter| &parameter.path);
        if module.is_empty() || !known.any(|path| path.is_under(module)) {
            let (module, near) = (module.to_owned(), table.near_modules(module));
            return Err(PlanError::UnknownModule { module, near });
        }
        let reads = || self.joint.first_reads(move |path| path.is_under(module));
        let (first, last) = (reads().min(), reads().max());
        let module = module.to_owned();
        first.zip(last).ok_or(PlanError::NoOperation { module })
    }
}
