//! The choice of what stays.

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::mem::replace;

use serde::{Deserialize, Serialize};

use crate::{DiskRate, StreamError};

/// The time of reading a value of fewer bytes is mostly that until its first byte.
const SMALL_BYTES: u64 = 256 << 10;

/// A value that is read when it is needed, such as a parameter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct StreamItem {
    /// Its bytes in memory.
    pub bytes: u64,
    /// The nanoseconds of reading it.
    pub read_ns: u64,
    /// Whether each pass makes it anew, in its first visit that has it, and no longer needs it after the last one: such as an
    /// activation. Between two visits it is written and read again, if it does not stay.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_made: bool,
}

/// A part of a pass that needs some values at the same time, such as the forward of a stage.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct StreamVisit {
    /// The indices of the values, each once.
    pub items: Vec<usize>,
    /// The bytes of everything else that is in memory meanwhile.
    pub other_bytes: u64,
    /// The nanoseconds of its computation.
    pub compute_ns: u64,
}

/// Which values stay in memory from one visit to their next one.
///
/// The visits repeat: the first follows the last. A value that is not in memory is read, and while a visit runs, the values of
/// the next visit that reads any are read, if there is room for them. The rest of the memory is for values that stay: small ones
/// first, such as biases and adapters, because to read each takes as long as to read many of their bytes; then the values of most
/// visits, of these the largest, whose own visits need the memory anyway (a value that a pass makes saves a write and a read, as
/// one of two visits saves two reads), and of equal ones those that are far apart, so that the reader does not idle while one
/// visit after the other has its values. Last, values stay for single gaps between two visits, the shortest first.
///
/// With values of one size, in one pass after the other as in an evaluation, or forth and back as in training, the best choice
/// reads at most one value less, as a search over all choices shows for up to six values. For an order that is known, the best is
/// Belady's (IBM Systems Journal 5(2), 1966), without room to read ahead. With several sizes it is NP-hard.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StreamPlan {
    pub(super) items: Vec<StreamItem>,
    pub(super) visits: Vec<StreamVisit>,
    pub(super) budget_bytes: u64,
    /// Whether each value of each visit stays until its next visit.
    pub(super) stays: Vec<Vec<bool>>,
    /// The visit before each one that has the same value, or the last one of the pass before, and the place of the value in its
    /// list.
    pub(super) before: Vec<Vec<(usize, usize)>>,
    /// The first and the last visit of each value.
    ends: Vec<(usize, usize)>,
    /// What is read from.
    pub(super) disk: DiskRate,
}

/// The time between two uses of a value.
struct Gap {
    item: usize,
    /// The visit before it, and the index of the value in its list.
    visit: usize,
    place: usize,
    /// The number of visits until the next use, at least 1.
    length: usize,
}

/// The bytes at each visit.
struct Room {
    /// Of its values.
    own: Vec<u64>,
    /// Of values that stay for later visits.
    kept: Vec<u64>,
    /// Of what it reads.
    read: Vec<u64>,
}

impl Room {
    fn new(plan: &StreamPlan) -> Self {
        let items = |visit: usize| plan.items_of(visit).iter().copied();
        let own = (0..plan.visits()).map(|visit| plan.sum(items(visit)).bytes);
        let own: Vec<u64> = own.collect();
        let read = (0..plan.visits()).map(|visit| {
            let read = items(visit).filter(|item| !plan.makes(visit, *item));
            plan.sum(read).bytes
        });
        Self {
            kept: vec![0; own.len()],
            read: read.collect(),
            own,
        }
    }

    /// Lets the value of a gap stay in it, or no longer.
    fn set(&mut self, gap: &Gap, plan: &StreamPlan, stays: bool) {
        let (bytes, count) = (plan.items[gap.item].bytes, self.own.len());
        let change = |sum: &mut u64, adds| *sum = if adds { *sum + bytes } else { *sum - bytes };
        for after in 1..gap.length {
            change(&mut self.kept[(gap.visit + after) % count], stays);
        }
        change(&mut self.read[(gap.visit + gap.length) % count], !stays);
    }

    /// Whether every visit has room for its values, for those that stay, and to read ahead where that is possible at all.
    fn fits(&self, plan: &StreamPlan) -> bool {
        let count = self.own.len();
        // What the next visit reads that reads anything, from the last visit of a second pass to the first.
        let mut ahead = (0, 0);
        (0..2 * count).rev().all(|place| {
            let visit = place % count;
            let needed = self.own[visit] + plan.visits[visit].other_bytes;
            // A value that this visit has is not read while it runs.
            let (next, bytes) = ahead;
            let with_ahead = needed.saturating_add(if next == visit { 0 } else { bytes });
            let needed = match with_ahead <= plan.budget_bytes {
                // In the first round, what is read ahead is not known yet.
                true if place < count => with_ahead,
                _ => needed,
            };
            if self.read[visit] > 0 {
                ahead = (visit, self.read[visit]);
            }
            needed + self.kept[visit] <= plan.budget_bytes
        })
    }
}

/// Orders visits so that the first of them are far apart: by their binary digits in reverse.
fn apart(visit: usize) -> usize {
    visit.reverse_bits()
}

impl StreamPlan {
    /// Chooses what stays for a memory limit in bytes. Cost: the number of values times the number of visits.
    ///
    /// # Errors
    ///
    /// When the values of a visit and its other bytes exceed the limit: the error has the least limit.
    pub fn new(
        items: Vec<StreamItem>,
        visits: Vec<StreamVisit>,
        budget_bytes: u64,
    ) -> Result<Self, StreamError> {
        let largest = visits.iter().map(|visit| {
            let bytes = visit.items.iter().map(|item| items[*item].bytes);
            bytes.sum::<u64>().saturating_add(visit.other_bytes)
        });
        let largest = largest.enumerate();
        if let Some((visit, least_bytes)) = largest.max_by_key(|(_, bytes)| *bytes)
            && least_bytes > budget_bytes
        {
            return Err(StreamError {
                visit,
                budget_bytes,
                least_bytes,
            });
        }
        let mut ends = vec![(usize::MAX, 0); items.len()];
        for (index, visit) in visits.iter().enumerate() {
            for item in &visit.items {
                let (first, last) = &mut ends[*item];
                (*first, *last) = ((*first).min(index), index);
            }
        }
        // Of the pass before at first.
        let mut last = vec![(0, 0); items.len()];
        let mut before = Vec::new();
        for _ in 0..2 {
            let of_visit = |(index, visit): (usize, &StreamVisit)| {
                let items = visit.items.iter().enumerate();
                let before = items.map(|(place, item)| replace(&mut last[*item], (index, place)));
                before.collect()
            };
            before = visits.iter().enumerate().map(of_visit).collect();
        }
        let mut plan = Self {
            before,
            ends,
            disk: DiskRate::new(u64::MAX),
            stays: visits.iter().map(|v| vec![false; v.items.len()]).collect(),
            items,
            visits,
            budget_bytes,
        };
        plan.choose();
        Ok(plan)
    }

    fn choose(&mut self) {
        let gaps = self.gaps();
        let others = self.visits.iter().map(|visit| visit.other_bytes).max();
        if self.bytes().saturating_add(others.unwrap_or(0)) <= self.budget_bytes {
            gaps.iter().for_each(|gap| self.keep(gap));
            return;
        }
        let mut candidates: Vec<Vec<&Gap>> = vec![Vec::new(); self.items.len()];
        for gap in &gaps {
            candidates[gap.item].push(gap);
        }
        let mut room = Room::new(self);
        for gap in gaps.iter().filter(|gap| gap.length == 1) {
            self.keep(gap);
            room.set(gap, self, true);
        }
        candidates.retain(|gaps| !gaps.is_empty());
        candidates.sort_by_key(|gaps| {
            let bytes = self.items[gaps[0].item].bytes;
            // One gap less is read; of a value that is made, one is written too.
            let saved = gaps.len() + usize::from(self.items[gaps[0].item].is_made);
            let order = (Reverse(saved), Reverse(bytes), apart(gaps[0].visit));
            (bytes > SMALL_BYTES, order)
        });
        let mut single: Vec<&Gap> = gaps.iter().collect();
        single.sort_by_key(|gap| (gap.length, apart(gap.visit)));
        candidates.extend(single.into_iter().map(|gap| vec![gap]));
        for gaps in candidates {
            let left = gaps.into_iter();
            let left = left.filter(|gap| !self.stays[gap.visit][gap.place]);
            let left: Vec<&Gap> = left.collect();
            left.iter().for_each(|gap| room.set(gap, self, true));
            match room.fits(self) {
                true => left.iter().for_each(|gap| self.keep(gap)),
                false => left.iter().for_each(|gap| room.set(gap, self, false)),
            }
        }
    }

    fn keep(&mut self, gap: &Gap) {
        self.stays[gap.visit][gap.place] = true;
    }

    /// The gaps between uses, in the order of the visits before them.
    fn gaps(&self) -> Vec<Gap> {
        let mut gaps = Vec::new();
        for (index, visit) in self.visits.iter().enumerate() {
            for (item, (before, place)) in visit.items.iter().zip(&self.before[index]) {
                let is_of_pass = *before < index;
                // One that is made is not needed from its last visit to the first of the next pass.
                if is_of_pass || !self.items[*item].is_made {
                    let passed = if is_of_pass { 0 } else { self.visits.len() };
                    gaps.push(Gap {
                        item: *item,
                        visit: *before,
                        place: *place,
                        length: passed + index - before,
                    });
                }
            }
        }
        gaps.sort_by_key(|gap| (gap.visit, Reverse(gap.place)));
        gaps
    }

    /// Returns the plan with other times: of values that are read from a disk, and in nanoseconds of each visit.
    #[must_use]
    pub fn with_times(mut self, disk: DiskRate, compute_ns: impl Fn(usize) -> u64) -> Self {
        self.disk = disk;
        for item in &mut self.items {
            item.read_ns = disk.read_ns(item.bytes);
        }
        for (index, visit) in self.visits.iter_mut().enumerate() {
            visit.compute_ns = compute_ns(index);
        }
        self
    }

    /// Returns the number of visits of a pass.
    pub fn visits(&self) -> usize {
        self.visits.len()
    }

    /// Returns the values of a visit.
    pub fn items_of(&self, visit: usize) -> &[usize] {
        &self.visits[visit].items
    }

    /// Returns whether each value of a visit stays in memory until its next visit.
    pub fn stays(&self, visit: usize) -> &[bool] {
        &self.stays[visit]
    }

    /// Returns the bytes of a value.
    pub fn item_bytes(&self, item: usize) -> u64 {
        self.items[item].bytes
    }

    /// Returns the bytes of all values.
    pub fn bytes(&self) -> u64 {
        self.sum(0..self.items.len()).bytes
    }

    /// The bytes and times of some values together.
    pub(super) fn sum(&self, items: impl IntoIterator<Item = usize>) -> StreamItem {
        let items = items.into_iter().map(|item| self.items[item]);
        items.fold(StreamItem::default(), |sum, item| StreamItem {
            bytes: sum.bytes + item.bytes,
            read_ns: sum.read_ns.saturating_add(item.read_ns),
            ..sum
        })
    }

    /// Returns the bytes that may be used for values during a visit.
    pub(super) fn room(&self, visit: usize) -> u64 {
        self.budget_bytes - self.visits[visit].other_bytes
    }

    /// Returns whether a visit makes a value.
    pub fn makes(&self, visit: usize, item: usize) -> bool {
        self.items[item].is_made && self.ends[item].0 == visit
    }

    /// Returns whether a value is written when a visit ends, because it was made in this pass, is needed later in it, and does not
    /// stay for the first time.
    pub fn writes(&self, visit: usize, item: usize) -> bool {
        let place = self.visits[visit].items.iter().position(|of| *of == item);
        let Some(mut place) = place.filter(|_| self.items[item].is_made) else {
            return false;
        };
        if self.stays[visit][place] || visit == self.ends[item].1 {
            return false;
        }
        let mut at = visit;
        while at > self.ends[item].0 {
            (at, place) = self.before[at][place];
            if !self.stays[at][place] {
                return false;
            }
        }
        true
    }

    /// Chooses the values that stay in another memory of so many bytes, between this one and the source, of those that may: those
    /// that are read most often in a pass, of these the largest that fit.
    pub fn behind(&self, bytes: u64, may_stay: impl Fn(usize) -> bool) -> BTreeSet<usize> {
        let mut reads = vec![0_usize; self.items.len()];
        for item in (0..self.visits()).flat_map(|visit| self.reads(visit)) {
            reads[item] += 1;
        }
        let read = (0..self.items.len()).filter(|item| reads[*item] > 0 && may_stay(*item));
        let mut read: Vec<usize> = read.collect();
        read.sort_by_key(|item| Reverse((reads[*item], self.items[*item].bytes)));
        let mut left = bytes;
        let stay = read.into_iter().filter(|item| {
            let rest = left.checked_sub(self.items[*item].bytes);
            left = rest.unwrap_or(left);
            rest.is_some()
        });
        stay.collect()
    }

    /// Returns the values that a visit has to read in every pass but the first.
    pub fn reads(&self, visit: usize) -> Vec<usize> {
        let items = self.visits[visit].items.iter().zip(&self.before[visit]);
        let read = items.filter(|(item, (before, place))| {
            !self.makes(visit, **item) && !self.stays[*before][*place]
        });
        read.map(|(item, _)| *item).collect()
    }
}
