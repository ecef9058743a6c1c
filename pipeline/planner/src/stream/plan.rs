//! The choice of the values that stay in memory.

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::mem::replace;

use crate::StreamError;

/// The time of reading a smaller value is mostly the time until its first byte.
const SMALL_BYTES: u64 = 256 << 10;

/// A value that is read when it is needed, such as a parameter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StreamItem {
    /// Its bytes in memory.
    pub bytes: u64,
    /// Whether every pass computes it, such as an activation: in its first visit that has it. It is not needed after the last
    /// such visit. Between two visits it is written and read again, if it does not stay.
    pub is_made: bool,
}

/// A part of a pass that needs some values at the same time, such as the forward of a stage.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct StreamVisit {
    /// The indices of the values, each once.
    pub items: Vec<usize>,
    /// The bytes of everything else that is in memory during the visit.
    pub other_bytes: u64,
}

/// A choice of the values that stay in memory from one visit to their next visit.
///
/// The visits repeat: the first follows the last. A value that is not in memory is read. While a visit runs, the values of
/// the next visit that reads any are read, if the memory limit allows it. The rest of the memory is for values that stay,
/// chosen in this order:
///
/// - Small values, such as biases and adapters, because reading one takes as long as reading many times its bytes.
/// - The values with most visits. A value that a pass computes counts as one visit more, because it saves a write as well.
///   Of these, the largest, whose own visits need the memory anyway. Of equal values, values that are far apart, so that the
///   reader does not idle while consecutive visits have their values.
/// - Values for a single gap between two visits, the shortest gaps first.
///
/// With values of one size, in one pass after the other as in an evaluation, or forth and back as in training, the best choice
/// reads at most one value less; a search over all choices shows this for up to six values. For a known order and a reader
/// that does not read ahead, Belady's choice is the best (IBM Systems Journal 5(2), 1966). With several sizes, the problem is
/// NP-hard.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StreamPlan {
    pub(super) items: Vec<StreamItem>,
    pub(super) visits: Vec<StreamVisit>,
    pub(super) budget_bytes: u64,
    /// Whether each value of each visit stays until its next visit.
    pub(super) stays: Vec<Vec<bool>>,
    /// For each value of each visit, the visit before that has the value, maybe in the pass before, and the place of the value
    /// in its list.
    pub(super) before: Vec<Vec<(usize, usize)>>,
    /// The first and the last visit of each value.
    ends: Vec<(usize, usize)>,
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

/// The bytes of each visit.
struct VisitBytes {
    /// The bytes of its values.
    own: Vec<u64>,
    /// The bytes of values that stay for later visits.
    kept: Vec<u64>,
    /// The bytes that it reads.
    read: Vec<u64>,
}

impl VisitBytes {
    fn new(plan: &StreamPlan) -> Self {
        let items = |visit: usize| plan.items_of(visit).iter().copied();
        let own = (0..plan.visits()).map(|visit| plan.sum(items(visit)));
        let own: Vec<u64> = own.collect();
        let read = (0..plan.visits()).map(|visit| {
            let read = items(visit).filter(|item| !plan.makes(visit, *item));
            plan.sum(read)
        });
        Self {
            kept: vec![0; own.len()],
            read: read.collect(),
            own,
        }
    }

    /// Adds the value of a gap to the values that stay, or removes it from them.
    fn set(&mut self, gap: &Gap, plan: &StreamPlan, stays: bool) {
        let (bytes, count) = (plan.items[gap.item].bytes, self.own.len());
        let change = |sum: &mut u64, adds| *sum = if adds { *sum + bytes } else { *sum - bytes };
        for after in 1..gap.length {
            change(&mut self.kept[(gap.visit + after) % count], stays);
        }
        change(&mut self.read[(gap.visit + gap.length) % count], !stays);
    }

    /// Whether every visit has memory for its values, for the values that stay, and for reading ahead where its own values
    /// leave enough.
    fn fits(&self, plan: &StreamPlan) -> bool {
        let count = self.own.len();
        // The next visit that reads anything, and its bytes, from the last visit of a second pass to the first.
        let mut ahead = (0, 0);
        (0..2 * count).rev().all(|place| {
            let visit = place % count;
            let needed = self.own[visit] + plan.visits[visit].other_bytes;
            // A value that this visit has is not read while it runs.
            let (next, bytes) = ahead;
            let with_ahead = needed.saturating_add(if next == visit { 0 } else { bytes });
            let needed = match with_ahead <= plan.budget_bytes {
                // In the first round, the next visit that reads is not known yet.
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
    /// Chooses the values that stay within a memory limit in bytes. Cost: the number of values times the number of visits.
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
        // The first round finds the last visits of the pass before.
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
        let mut bytes = VisitBytes::new(self);
        for gap in gaps.iter().filter(|gap| gap.length == 1) {
            self.keep(gap);
            bytes.set(gap, self, true);
        }
        candidates.retain(|gaps| !gaps.is_empty());
        candidates.sort_by_key(|gaps| {
            let bytes = self.items[gaps[0].item].bytes;
            // A computed value saves its write, too.
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
            left.iter().for_each(|gap| bytes.set(gap, self, true));
            match bytes.fits(self) {
                true => left.iter().for_each(|gap| self.keep(gap)),
                false => left.iter().for_each(|gap| bytes.set(gap, self, false)),
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
                // A computed value is not needed from its last visit to the first visit of the next pass.
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
        self.sum(0..self.items.len())
    }

    /// Returns the bytes of some values together.
    pub(super) fn sum(&self, items: impl IntoIterator<Item = usize>) -> u64 {
        let items = items.into_iter();
        items.map(|item| self.items[item].bytes).sum()
    }

    /// Returns the bytes that may be used for values during a visit.
    pub(super) fn capacity(&self, visit: usize) -> u64 {
        self.budget_bytes - self.visits[visit].other_bytes
    }

    /// Returns whether a visit computes a value.
    pub fn makes(&self, visit: usize, item: usize) -> bool {
        self.items[item].is_made && self.ends[item].0 == visit
    }

    /// Returns whether a value is written when a visit ends: it was computed in this pass, is needed later in the pass, and
    /// does not stay for the first time.
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

    /// Chooses the values that stay in a second memory, between this memory and the source. Of the values that may stay there,
    /// the values that are read most often in a pass come first, and of these the largest that fit.
    pub fn second_tier(&self, bytes: u64, may_stay: impl Fn(usize) -> bool) -> BTreeSet<usize> {
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

    /// Returns the values that a visit has to read in every pass except the first.
    pub fn reads(&self, visit: usize) -> Vec<usize> {
        let items = self.visits[visit].items.iter().zip(&self.before[visit]);
        let read = items.filter(|(item, (before, place))| {
            !self.makes(visit, **item) && !self.stays[*before][*place]
        });
        read.map(|(item, _)| *item).collect()
    }
}
