//! The best cuts of a chain: enumerates the limit of the slowest stage and minimizes the sum below it.
//!
//! For a limit `C` on the time of every stage, `S(C)` is the least sum over stages, computed in one
//! pass over stages and pairs of positions. `S` decreases as `C` grows, so an interval of limits whose
//! upper end is known has the bound `scaled(lower end, S(upper end))`. The interval with the lowest
//! bound is halved until no bound is below the best time found, which is then the optimum.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::ranges::RangeTable;
use super::stages::Stages;

/// A partition into contiguous stages, with its terms of the step's time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Cuts {
    /// The first block of each stage.
    pub(super) starts: Vec<usize>,
    /// Whether each stage recomputes its activations.
    pub(super) recompute: Vec<bool>,
    /// The maximum over stages.
    pub(super) most: u64,
    /// The sum over stages.
    pub(super) sum: u64,
}

/// The contribution of a stage between two positions to the time of a step.
#[derive(Debug, Clone, Copy, Default)]
struct Cell {
    /// The term of the maximum without messages, which grows with the stage's blocks.
    alone: u64,
    /// The term of the maximum.
    most: u64,
    /// The term of the sum.
    sum: u64,
}

/// The search for cuts at given positions.
pub(super) struct Search {
    table: RangeTable,
    /// The cells of all pairs of positions, at each place that is the first of its kind.
    cells: Vec<Vec<Cell>>,
}

impl Search {
    /// Computes the contribution of a stage between any two positions. Quadratic in positions.
    pub(super) fn new(stages: &Stages, table: RangeTable) -> Self {
        let width = table.positions.len();
        let cells = (0..stages.count()).map(|place| {
            if stages.first_like[place] != place {
                return Vec::new();
            }
            let mut cells = vec![Cell::default(); width * width];
            for from in 0..width {
                for to in from + 1..width {
                    let range = table.between(from, to);
                    let (most, sum) = stages.parts(place, &range, false);
                    let alone = stages.least_most(place, &range);
                    cells[from * width + to] = Cell { alone, most, sum };
                }
            }
            cells
        });
        Self {
            cells: cells.collect(),
            table,
        }
    }

    /// The fastest cuts that fit; `None` if none fit.
    pub(super) fn best(&self, stages: &Stages) -> Option<Cuts> {
        let scaled = |most: u64, sum: u64| stages.model.scaled(most, sum);
        let mut best = self.below(stages, u64::MAX)?;
        let mut best_scaled = scaled(best.most, best.sum);
        // Intervals of limits by their bounds, with the least sum at their upper end.
        let mut open = BinaryHeap::new();
        let push = |open: &mut BinaryHeap<_>, from: u64, to: u64, sum: u64| {
            if from <= to {
                open.push(Reverse((scaled(from, sum), from, to, sum)));
            }
        };
        push(&mut open, 0, best.most.saturating_sub(1), best.sum);
        while let Some(Reverse((bound, from, to, sum))) = open.pop() {
            if bound >= best_scaled {
                break;
            }
            // A higher limit does not improve the time with this sum.
            let highest = best_scaled.saturating_sub(sum) / stages.model.chunks;
            let limit = from + (to.min(highest) - from) / 2;
            push(&mut open, limit + 1, to.min(highest), sum);
            // Limits between the maximum found and this limit have the same sum.
            if let Some(found) = self.below(stages, limit) {
                push(&mut open, from, found.most.saturating_sub(1), found.sum);
                if scaled(found.most, found.sum) < best_scaled {
                    best_scaled = scaled(found.most, found.sum);
                    best = found;
                }
            }
        }
        Some(best)
    }

    /// The cuts with the least sum where no stage adds more than `limit` to the maximum.
    fn below(&self, stages: &Stages, limit: u64) -> Option<Cuts> {
        let (count, end) = (stages.count(), self.table.positions.len() - 1);
        // The least sums of the stages before each position, and the start of the last of these stages.
        let mut sums = vec![u64::MAX; end + 1];
        sums[0] = 0;
        let mut parents = Vec::with_capacity(count);
        for stage in 0..count {
            let mut next = vec![u64::MAX; end + 1];
            let mut parent = vec![0; end + 1];
            let cells = &self.cells[stages.first_like[stage]];
            let has_limit = stages.places[stage].limit_bytes < u64::MAX;
            // Each later stage needs a position.
            let last = (end + stage + 1).checked_sub(count)?;
            for from in (stage..last).filter(|from| sums[*from] < u64::MAX) {
                let row = &cells[from * (end + 1)..][..=last];
                let is_last = last == end && stage + 1 == count;
                let first = if is_last { end } else { from + 1 };
                for (to, cell) in row.iter().enumerate().skip(first) {
                    if cell.alone > limit {
                        break;
                    }
                    // Recomputation makes the stage slower.
                    if cell.most > limit || sums[from] + cell.sum >= next[to] {
                        continue;
                    }
                    let (mut most, mut sum) = (cell.most, cell.sum);
                    if has_limit {
                        let range = self.table.between(from, to);
                        match stages.recomputes(stage, &range) {
                            None => continue,
                            Some(false) => {}
                            Some(true) => (most, sum) = stages.parts(stage, &range, true),
                        }
                    }
                    if most <= limit && sums[from] + sum < next[to] {
                        (next[to], parent[to]) = (sums[from] + sum, from);
                    }
                }
            }
            sums = next;
            parents.push(parent);
        }
        (sums[end] < u64::MAX).then(|| self.cuts(stages, &parents, sums[end]))
    }

    /// Reconstructs the cuts that a pass found.
    fn cuts(&self, stages: &Stages, parents: &[Vec<usize>], sum: u64) -> Cuts {
        let count = stages.count();
        let mut cuts = Cuts {
            starts: vec![0; count],
            recompute: vec![false; count],
            most: 0,
            sum,
        };
        let mut to = self.table.positions.len() - 1;
        for stage in (0..count).rev() {
            let from = parents[stage][to];
            let range = self.table.between(from, to);
            let recompute = stages.recomputes(stage, &range).unwrap_or(false);
            let (most, _) = stages.parts(stage, &range, recompute);
            cuts.starts[stage] = range.from;
            cuts.recompute[stage] = recompute;
            cuts.most = cuts.most.max(most);
            to = from;
        }
        cuts
    }
}
