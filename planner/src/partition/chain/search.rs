//! The best cuts of a chain, by dynamic programming below a moving limit of the slowest stage.
//!
//! For a limit `C` of the slowest stage, `S(C)` is the least sum over stages that are all below it: one
//! pass over cuts and stages. `S` falls where `C` grows, so the best time `C + S(C)` is found by looking
//! at limits between the least that is possible and the largest that could still pay. What is known of
//! an interval of limits is a sum that none in it is below; the interval whose bound is lowest is looked
//! at next, at its upper end and then in its middle, until no bound is below the best time found. That
//! is exact, and takes few passes: near the best limit only few cuts can be reached.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::ranges::{RangeBytes, RangeTable};
use super::stages::{StageTime, Stages};
use super::times::Times;

/// Where each stage may begin, and the bytes of the stages between.
#[derive(Debug)]
pub(super) struct Layers {
    /// Where stage `k` may begin, ascending; of the last one more, the end of the chain.
    pub(super) positions: Vec<Vec<usize>>,
    /// Tables of ranges.
    pub(super) tables: Vec<RangeTable>,
    /// The table of each stage: its rows are the positions of the stage, its columns those of the next.
    pub(super) table_of: Vec<usize>,
    /// What boundaries add to the sum at the least, from the beginning of each stage to the end.
    pub(super) least_links: Vec<u64>,
}

impl Layers {
    fn row(&self, stage: usize, start: usize) -> &[RangeBytes] {
        self.tables[self.table_of[stage]].row(start)
    }
}

/// A partition into contiguous stages, with its parts of the step's time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Cuts {
    /// Where each stage begins.
    pub(super) starts: Vec<usize>,
    /// Which stages make their activations again.
    pub(super) recompute: Vec<bool>,
    /// The maximum.
    pub(super) most: u64,
    /// The sum.
    pub(super) sum: u64,
}

/// An interval of limits of the slowest stage.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Interval {
    /// No time in it is below this.
    bound: u64,
    from: u64,
    to: u64,
    /// No sum in it is below this.
    sum: u64,
    /// Whether the sum is that of the upper end.
    is_seen: bool,
}

/// One search over fixed layers.
#[derive(Debug)]
pub(super) struct Search<'a> {
    stages: &'a Stages,
    layers: &'a Layers,
    /// Per stage and place in its layer: the least sum of the stages before, and where the last began.
    sums: Vec<Vec<u64>>,
    parents: Vec<Vec<u32>>,
    /// What the stages from a place on add to the sum at the least.
    rest: Vec<Vec<u64>>,
    /// What was worked out before.
    times: Times,
    /// In each layer, the first place that leaves the stages before a block each, and what is behind
    /// the last one that does so for the stages behind.
    lowest: Vec<usize>,
    last: Vec<usize>,
    /// The best time of earlier searches, or what is found here.
    best_scaled: u64,
    /// Stages that were looked at.
    pub(super) transitions: u64,
}

impl<'a> Search<'a> {
    pub(super) fn new(stages: &'a Stages, layers: &'a Layers, best_scaled: u64) -> Self {
        let of = |stage: usize| layers.positions[stage].len();
        let rest = (0..=stages.count()).map(|stage| {
            let positions = layers.positions[stage].iter();
            let links = layers.least_links[stage];
            let least = |from: &usize| stages.least_sum(stage, *from).saturating_add(links);
            positions.map(least).collect()
        });
        Self {
            sums: (0..=stages.count())
                .map(|stage| vec![u64::MAX; of(stage)])
                .collect(),
            parents: (0..=stages.count())
                .map(|stage| vec![0; of(stage)])
                .collect(),
            rest: rest.collect(),
            times: Times::new(stages, layers),
            lowest: lowest_places(&layers.positions),
            last: last_places(&layers.positions),
            stages,
            layers,
            best_scaled,
            transitions: 0,
        }
    }

    /// The best cuts that are better than what is known; `None` where there are none.
    pub(super) fn best(&mut self) -> Option<Cuts> {
        let least = self.least_limit()?;
        let least_sum = self.rest[0].first().copied().unwrap_or(0);
        let (mut from, mut limit) = (least, least);
        let mut step = (least / 64).max(1);
        let mut best = loop {
            let found = self.below(limit, from);
            let highest = self.highest(least_sum);
            if found.is_some() || limit >= highest {
                break found;
            }
            from = limit.saturating_add(1);
            // Steps grow, so that a chain without a solution costs few passes.
            limit = limit.saturating_add(step).min(highest);
            step = step.saturating_mul(4);
        };
        let first = best.as_ref()?;
        self.best_scaled = self.stages.model.scaled(first.most, first.sum);
        let mut heap = BinaryHeap::new();
        self.push(
            &mut heap,
            (from, first.most.saturating_sub(1)),
            first.sum,
            true,
        );
        self.push(
            &mut heap,
            (limit.saturating_add(1), u64::MAX),
            least_sum,
            false,
        );
        while let Some(Reverse(interval)) = heap.pop() {
            let Interval { from, sum, .. } = interval;
            let to = interval.to.min(self.highest(sum));
            if interval.bound >= self.best_scaled || to < from {
                continue;
            }
            let limit = match interval.is_seen {
                true => from + (to - from) / 2,
                false => to,
            };
            let found = self.below(limit, from);
            self.push(
                &mut heap,
                (limit.saturating_add(1), to),
                sum,
                interval.is_seen,
            );
            if let Some(found) = found {
                self.push(
                    &mut heap,
                    (from, found.most.saturating_sub(1)),
                    found.sum,
                    true,
                );
                let scaled = self.stages.model.scaled(found.most, found.sum);
                if scaled < self.best_scaled {
                    self.best_scaled = scaled;
                    best = Some(found);
                }
            }
        }
        best
    }

    /// The highest limit that could give a better time with such a sum.
    fn highest(&self, sum: u64) -> u64 {
        match self.best_scaled {
            u64::MAX => u64::MAX,
            best => best.saturating_sub(sum).saturating_sub(1) / self.stages.model.chunks,
        }
    }

    fn push(
        &self,
        heap: &mut BinaryHeap<Reverse<Interval>>,
        (from, to): (u64, u64),
        sum: u64,
        is_seen: bool,
    ) {
        let bound = self.stages.model.scaled(from, sum);
        if from <= to && bound < self.best_scaled {
            heap.push(Reverse(Interval {
                bound,
                from,
                to,
                sum,
                is_seen,
            }));
        }
    }

    /// The cuts of the least sum whose slowest stage is not above `limit`, if they may be better than
    /// what is known given that the slowest is not below `from`.
    fn below(&mut self, limit: u64, from: u64) -> Option<Cuts> {
        let first = self.first_places(limit)?;
        let count = self.stages.count();
        for sums in &mut self.sums {
            sums.fill(u64::MAX);
        }
        if first[0] > 0 {
            return None;
        }
        self.sums[0][0] = 0;
        let most = self.stages.model.scaled(from, 0);
        for stage in 0..count {
            self.pass(stage, limit, most, first[stage + 1]);
        }
        let sum = *self.sums[count].last()?;
        (sum < u64::MAX).then(|| self.cuts(sum))
    }

    /// Carries the least sums over one stage.
    fn pass(&mut self, stage: usize, limit: u64, most: u64, first_end: usize) {
        let [starts, ends] = [stage, stage + 1].map(|at| &self.layers.positions[at]);
        let (before, behind) = self.sums.split_at_mut(stage + 1);
        let (before, behind) = (&before[stage], &mut behind[0]);
        let has_limit = self.stages.places[stage].limit_bytes < u64::MAX;
        let mut last_end = 0;
        for (place, from) in starts.iter().enumerate() {
            let sum = before[place];
            let least = sum
                .saturating_add(self.rest[stage][place])
                .saturating_add(most);
            if sum == u64::MAX || least >= self.best_scaled {
                continue;
            }
            let bytes = self.layers.row(stage, place);
            // The end that a stage can reach does not come back where its begin goes on.
            let reaches = |end: usize| {
                let least = self
                    .stages
                    .least_most(stage, (*from, ends[end]), &bytes[end]);
                least.is_some_and(|least| least <= limit)
            };
            while last_end < ends.len() && (ends[last_end] <= *from || reaches(last_end)) {
                last_end += 1;
            }
            let next = ends.partition_point(|end| end <= from).max(first_end);
            let reached = next..last_end.min(self.last[stage + 1]);
            self.transitions += reached.len() as u64;
            for end in reached {
                let range = (*from, ends[end]);
                let mut parts = |recompute| {
                    let work_out = || self.stages.parts(stage, range, &bytes[end], recompute);
                    self.times.parts((stage, recompute), place, end, work_out)
                };
                let mut time = parts(false);
                let is_better = |time: (u64, u64)| time.0 <= limit && sum + time.1 < behind[end];
                if !is_better(time) {
                    // Nor is it with activations made again, which takes more.
                    continue;
                }
                if has_limit {
                    match self.stages.recomputes(stage, range, &bytes[end]) {
                        None => continue,
                        Some(false) => {}
                        Some(true) => time = parts(true),
                    }
                }
                if is_better(time) {
                    behind[end] = sum + time.1;
                    self.parents[stage + 1][end] = place as u32;
                }
            }
        }
    }

    /// The first place of each stage from which the stages behind reach the end below a limit, if
    /// any. Times and bytes that grow with a stage's blocks alone are looked at.
    fn first_places(&self, limit: u64) -> Option<Vec<usize>> {
        let count = self.stages.count();
        let mut first = vec![0; count + 1];
        first[count] = self.layers.positions[count].len().checked_sub(1)?;
        for stage in (0..count).rev() {
            let end = first[stage + 1];
            let to = self.layers.positions[stage + 1][end];
            let starts = &self.layers.positions[stage];
            let fits = |place: usize| {
                let bytes = &self.layers.row(stage, place)[end];
                let least = self.stages.least_most(stage, (starts[place], to), bytes);
                least.is_some_and(|least| least <= limit)
            };
            let last = starts.partition_point(|start| *start < to);
            let (mut low, mut high) = (self.lowest[stage], last);
            while low < high {
                let middle = (low + high) / 2;
                match fits(middle) {
                    true => high = middle,
                    false => low = middle + 1,
                }
            }
            // Where not even one block fits, a stage that ends later begins no earlier than here.
            if low >= starts.len() {
                return None;
            }
            first[stage] = low;
        }
        Some(first)
    }

    /// The least limit at which times and bytes that grow with the blocks alone leave a way.
    fn least_limit(&self) -> Option<u64> {
        let is_open = |limit: u64| {
            let first = self.first_places(limit);
            first.is_some_and(|first| first[0] == 0)
        };
        if !is_open(u64::MAX) {
            return None;
        }
        let (mut low, mut high) = (0, u64::MAX);
        while low < high {
            let middle = low + (high - low) / 2;
            match is_open(middle) {
                true => high = middle,
                false => low = middle + 1,
            }
        }
        Some(low)
    }

    /// The cuts of the last pass.
    fn cuts(&self, sum: u64) -> Cuts {
        let count = self.stages.count();
        let mut cuts = Cuts {
            starts: vec![0; count],
            recompute: vec![false; count],
            most: 0,
            sum,
        };
        let mut end = self.layers.positions[count].len() - 1;
        for stage in (0..count).rev() {
            let place = self.parents[stage + 1][end] as usize;
            let time = self.time(stage, place, end);
            let time = time.expect("the pass came this way");
            cuts.starts[stage] = self.layers.positions[stage][place];
            cuts.recompute[stage] = time.recompute;
            cuts.most = cuts.most.max(time.most);
            end = place;
        }
        cuts
    }

    fn time(&self, stage: usize, place: usize, end: usize) -> Option<StageTime> {
        let range = (
            self.layers.positions[stage][place],
            self.layers.positions[stage + 1][end],
        );
        self.stages
            .time(stage, range, &self.layers.row(stage, place)[end])
    }
}

/// Behind the last place of each layer from which every layer behind has a later one.
fn last_places(positions: &[Vec<usize>]) -> Vec<usize> {
    let mut last: Vec<usize> = positions.iter().map(Vec::len).collect();
    for layer in (1..positions.len()).rev() {
        let end = last[layer]
            .checked_sub(1)
            .map_or(0, |end| positions[layer][end]);
        last[layer - 1] = positions[layer - 1].partition_point(|start| *start < end);
    }
    last
}

/// The first place of each layer before which every layer has an earlier one.
fn lowest_places(positions: &[Vec<usize>]) -> Vec<usize> {
    let mut lowest = vec![0; positions.len()];
    for layer in 1..positions.len() {
        let before = positions[layer - 1].get(lowest[layer - 1]);
        let before = before.copied().unwrap_or(usize::MAX);
        lowest[layer] = positions[layer].partition_point(|start| *start <= before);
    }
    lowest
}
