//! What is in memory while visits run and values are read ahead.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::{StreamItem, StreamPlan};

/// The state of a reader that reads ahead of the visits, and of these: it decides when a value may be read. Pure, so that a
/// prediction and the runtime share it.
///
/// Reads are in the order of the visits; room for values that a visit makes is reserved before it. At every time, what was read
/// or made and not yet dropped fits the memory limit, with the other bytes of the visit that runs and of those up to the one that is
/// read for.
#[derive(Debug, Clone)]
pub struct StreamState {
    plan: Arc<StreamPlan>,
    /// The visit that runs or is next to run, counted from the first pass.
    running: u64,
    /// The visit that is read for.
    reading: u64,
    /// The places of the values that are left to be read for it, in reverse.
    left: Vec<usize>,
    /// The values that are in memory when that visit begins, beside those that it reads.
    kept: BTreeSet<usize>,
    /// Bytes of values in memory, those being read among them.
    present: u64,
    /// The visit before which it stops reading.
    end: Option<u64>,
}

/// What a reader does next. Visits are counted from the first pass.
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
    /// Begins before the first visit. Of the values in memory, those remain that the first visits need
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
        // What stays over the end of a pass.
        for visit in 0..state.plan.visits() {
            state.advance(visit);
        }
        state.kept.retain(|item| in_memory.contains(item));
        state.present = state.plan.sum(state.kept.iter().copied()).bytes;
        state.fill();
        state
    }

    /// As [`new`](Self::new), for one pass: nothing is read for the next one, because this one changes what is read.
    pub fn of_one_pass(plan: Arc<StreamPlan>, in_memory: &BTreeSet<usize>) -> Self {
        let end = Some(plan.visits() as u64);
        Self {
            end,
            ..Self::new(plan, in_memory)
        }
    }

    /// Returns the values that are in memory when the visit begins that is read for, beside those that it reads.
    pub fn kept(&self) -> &BTreeSet<usize> {
        &self.kept
    }

    /// Returns the bytes of values in memory, those being read among them.
    pub fn present_bytes(&self) -> u64 {
        self.present
    }

    /// Replaces the kept values by those after a visit.
    fn advance(&mut self, visit: usize) {
        let items = self.plan.items_of(visit).iter();
        for (item, stays) in items.zip(self.plan.stays(visit)) {
            match stays {
                true => self.kept.insert(*item),
                false => self.kept.remove(item),
            };
        }
    }

    /// Lists what the visit that is read for needs.
    fn fill(&mut self) {
        let items = self.plan.items_of(self.index(self.reading)).iter();
        let left = items.enumerate();
        let left = left.filter(|(_, item)| !self.kept.contains(item));
        self.left = left.rev().map(|(place, _)| place).collect();
    }

    fn index(&self, visit: u64) -> usize {
        (visit % self.plan.visits().max(1) as u64) as usize
    }

    /// Returns what to read next, as far as there is room for it: at most a pass ahead.
    pub fn step(&mut self) -> StreamStep {
        let visit = self.reading;
        let is_ahead = visit >= self.running + self.plan.visits() as u64;
        if is_ahead || self.end.is_some_and(|end| visit >= end) {
            return StreamStep::Wait;
        }
        let index = self.index(visit);
        while let Some(place) = self.left.last().copied() {
            let item = self.plan.items_of(index)[place];
            let StreamItem { bytes, is_made, .. } = self.plan.items[item];
            let rooms = (self.running..=visit).map(|visit| self.plan.room(self.index(visit)));
            if self.present + bytes > rooms.min().unwrap_or(0) {
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

    /// Whether the visit that writes a value, which a later one of the same pass reads, has not ended.
    fn is_unwritten(&self, visit: u64, place: usize) -> bool {
        let index = self.index(visit);
        let (before, _) = self.plan.before[index][place];
        before < index && self.running <= visit - (index - before) as u64
    }

    /// Ends the visit that runs. Its values that do not [stay](StreamPlan::stays) are dropped by the caller.
    pub fn finish(&mut self) {
        let visit = self.index(self.running);
        let items = self.plan.items_of(visit).iter();
        let dropped = items
            .zip(self.plan.stays(visit))
            .filter(|(_, stays)| !**stays);
        self.present -= self.plan.sum(dropped.map(|(item, _)| *item)).bytes;
        self.running += 1;
    }
}
