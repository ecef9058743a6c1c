//! The values in memory while visits run and a reader reads ahead.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::{StreamItem, StreamPlan};

/// The state of the visits and of a reader that reads ahead of them. It decides when a value may be read. It is pure, so a
/// prediction and the runtime share it.
///
/// Reads are in the order of the visits. Memory for the values that a visit computes is reserved before it. At every time, the
/// values that were read or computed and not dropped fit the memory limit, together with the other bytes of each visit from
/// the running visit up to the visit that is read for.
#[derive(Debug, Clone)]
pub struct StreamState {
    plan: Arc<StreamPlan>,
    /// The visit that runs or is next to run, counted from the first pass.
    running: u64,
    /// The visit that is read for.
    reading: u64,
    /// The places of the values that remain to be read for it, in reverse.
    left: Vec<usize>,
    /// The values that are in memory when that visit begins, without the values that it reads.
    kept: BTreeSet<usize>,
    /// Bytes of values in memory, including values that are being read.
    present: u64,
    /// The visit before which the reader stops.
    end: Option<u64>,
}

/// The next step of a reader. Visits are counted from the first pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StreamStep {
    /// A value is read.
    Read {
        /// The visit that needs it.
        visit: u64,
        /// The index of the value.
        item: usize,
    },
    /// All values of a visit have been read.
    Ready {
        /// The visit.
        visit: u64,
    },
    /// The visit that runs has to [finish](StreamState::finish) first.
    Wait,
}

impl StreamState {
    /// Creates the state before the first visit. The values in memory that the first visits need remain
    /// ([`kept`](Self::kept)); the caller drops the others.
    pub fn new(plan: Arc<StreamPlan>, in_memory: &BTreeSet<usize>) -> Self {
        let mut state = Self {
            running: 0,
            reading: 0,
            left: Vec::new(),
            kept: BTreeSet::new(),
            present: 0,
            end: None,
            plan,
        };
        // The values that stay over the end of a pass.
        for visit in 0..state.plan.visits() {
            state.advance(visit);
        }
        state.kept.retain(|item| in_memory.contains(item));
        state.present = state.plan.sum(state.kept.iter().copied());
        state.fill();
        state
    }

    /// Creates the same state as [`new`](Self::new), for one pass. Nothing is read for the next pass, because this pass changes
    /// the values in the source.
    pub fn of_one_pass(plan: Arc<StreamPlan>, in_memory: &BTreeSet<usize>) -> Self {
        let end = Some(plan.visits() as u64);
        Self {
            end,
            ..Self::new(plan, in_memory)
        }
    }

    /// Returns the values that are in memory when the visit begins that is read for, without the values that it reads.
    pub fn kept(&self) -> &BTreeSet<usize> {
        &self.kept
    }

    /// Returns the bytes of values in memory, including values that are being read.
    pub fn present_bytes(&self) -> u64 {
        self.present
    }

    /// Replaces the kept values by the values that are kept after a visit.
    fn advance(&mut self, visit: usize) {
        let items = self.plan.items_of(visit).iter();
        for (item, stays) in items.zip(self.plan.stays(visit)) {
            match stays {
                true => self.kept.insert(*item),
                false => self.kept.remove(item),
            };
        }
    }

    /// Lists the missing values of the visit that is read for.
    fn fill(&mut self) {
        let items = self.plan.items_of(self.index(self.reading)).iter();
        let left = items.enumerate();
        let left = left.filter(|(_, item)| !self.kept.contains(item));
        self.left = left.rev().map(|(place, _)| place).collect();
    }

    fn index(&self, visit: u64) -> usize {
        (visit % self.plan.visits().max(1) as u64) as usize
    }

    /// Returns the next step: a read if the memory limit allows it, at most a pass ahead.
    pub fn step(&mut self) -> StreamStep {
        let visit = self.reading;
        let is_ahead = visit >= self.running + self.plan.visits() as u64;
        if is_ahead || self.end.is_some_and(|end| visit >= end) {
            return StreamStep::Wait;
        }
        let index = self.index(visit);
        while let Some(place) = self.left.last().copied() {
            let item = self.plan.items_of(index)[place];
            let StreamItem { bytes, is_made } = self.plan.items[item];
            let visits = (self.running..=visit).map(|visit| self.index(visit));
            let capacity = visits.map(|visit| self.plan.capacity(visit)).min();
            if self.present + bytes > capacity.unwrap_or(0) {
                return StreamStep::Wait;
            }
            let is_made_now = self.plan.makes(index, item);
            if is_made && !is_made_now && self.is_unwritten(visit, place) {
                return StreamStep::Wait;
            }
            self.present += bytes;
            self.left.pop();
            if !is_made_now {
                return StreamStep::Read { visit, item };
            }
        }
        self.advance(index);
        self.reading += 1;
        self.fill();
        StreamStep::Ready { visit }
    }

    /// Whether the visit that writes a value for a later visit of the same pass has not ended.
    fn is_unwritten(&self, visit: u64, place: usize) -> bool {
        let index = self.index(visit);
        let (before, _) = self.plan.before[index][place];
        before < index && self.running <= visit - (index - before) as u64
    }

    /// Ends the running visit. The caller drops its values that do not [stay](StreamPlan::stays).
    pub fn finish(&mut self) {
        let visit = self.index(self.running);
        let items = self.plan.items_of(visit).iter();
        let items = items.zip(self.plan.stays(visit));
        let dropped = items.filter(|(_, stays)| !**stays);
        self.present -= self.plan.sum(dropped.map(|(item, _)| *item));
        self.running += 1;
    }
}
