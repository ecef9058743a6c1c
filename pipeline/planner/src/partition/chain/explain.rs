//! Explains why no cuts fit: the smallest set of facts that excludes all cuts.

use tinderbox_schedule::arithmetic::scaled;

use super::problem::Problem;
use super::search::Cuts;
use super::stages::Stages;
use crate::Infeasible;
use crate::predict::Excess;

/// The closest cuts, by the rank that exceeds its limit most.
pub(super) fn cuts(stages: usize, excess: Excess) -> Infeasible {
    Infeasible::Cuts {
        stages,
        rank: excess.rank,
        needed: excess.needed,
        limit: excess.limit,
    }
}

/// A search for the best cuts within the limits of the stages.
pub(super) type Best<'b> = &'b dyn Fn(&Stages) -> Option<Cuts>;

/// Returns the reason why no cuts fit: one block, all blocks, a range of blocks or, if none of these is too large
/// alone, the closest cuts.
pub(super) fn infeasible(problem: &Problem<'_>, stages: &mut Stages, best: Best<'_>) -> Infeasible {
    block(problem, stages)
        .or_else(|| total(problem))
        .or_else(|| blocks_of_rank(problem, stages))
        .unwrap_or_else(|| closest(problem, stages, best))
}

/// The first block that fits on no rank.
fn block(problem: &Problem<'_>, stages: &Stages) -> Option<Infeasible> {
    let mut blocks = problem.work.blocks.iter().enumerate();
    let limits = stages.places.iter().map(|place| place.limit_bytes);
    blocks.find_map(|(at, block)| {
        let range = problem.ranges.at_least(at, at + 1);
        let mut needed = u64::MAX;
        let fits = limits.clone().enumerate().any(|(place, limit)| {
            let bytes = stages.least_bytes(place, &range);
            needed = needed.min(bytes);
            bytes <= limit
        });
        (!fits).then(|| Infeasible::Block {
            block: block.name.clone(),
            needed,
            largest: limits.clone().max().unwrap_or(0),
        })
    })
}

/// Checks whether all ranks together are too small for the parameters, their gradients and states, and the
/// activations of one micro-batch.
fn total(problem: &Problem<'_>) -> Option<Infeasible> {
    let needed = problem.ranges.bytes_before(problem.work.blocks.len());
    let mut ranks = problem.machine.rank_models().iter();
    let available = ranks.try_fold(0_u64, |sum, rank| {
        Some(sum.saturating_add(rank.memory_bytes?))
    })?;
    (needed > available).then_some(Infeasible::Total { needed, available })
}

/// The rank with the fewest blocks that fit neither on the ranks before and after it nor on this rank.
fn blocks_of_rank(problem: &Problem<'_>, stages: &Stages) -> Option<Infeasible> {
    let blocks = problem.work.blocks.len();
    let needed = |place: usize, from: usize, to: usize| {
        stages.least_bytes(place, &problem.ranges.at_least(from, to))
    };
    let fits = |place: usize, from: usize, to: usize| {
        needed(place, from, to) <= stages.places[place].limit_bytes
    };
    // The block up to which the places before each one reach, and the block from which the places after it reach the end.
    let mut reached = vec![0];
    for place in 0..stages.count() {
        let from = reached[place];
        reached.push(furthest(from, blocks, |to| fits(place, from, to)));
    }
    let mut left = vec![blocks; stages.count() + 1];
    for place in (0..stages.count()).rev() {
        let to = left[place + 1];
        left[place] = to - furthest(0, to, |length| fits(place, to - length, to));
    }
    let map = problem.machine.stage_to_rank();
    let ranges = (0..stages.count()).map(|place| (place, reached[place], left[place + 1]));
    let over = ranges.filter(|(place, from, to)| from < to && !fits(*place, *from, *to));
    let (place, from, to) = over.min_by_key(|(place, from, to)| (to - from, *place))?;
    let name = |at: usize| problem.work.blocks[at].name.clone();
    Some(Infeasible::Range {
        rank: map[place],
        first: name(from),
        last: name(to - 1),
        needed: needed(place, from, to),
        limit: stages.places[place].limit_bytes,
    })
}

/// The rank that exceeds its limit most in the closest cuts: the cuts that fit when all limits are raised by the least
/// possible fraction.
fn closest(problem: &Problem<'_>, stages: &mut Stages, best: Best<'_>) -> Infeasible {
    let limits = stages.places.iter().map(|place| place.limit_bytes);
    let limits: Vec<u64> = limits.collect();
    let raise = |stages: &mut Stages, permille: u64| {
        for (place, limit) in stages.places.iter_mut().zip(&limits) {
            // `scaled` keeps `u64::MAX`, which is no limit.
            place.limit_bytes = scaled(*limit, permille, 1000);
        }
        best(stages)
    };
    let (mut low, mut high, mut found) = (1000, 2000, None);
    while high - low > 8 && high < 1 << 24 {
        let is_found = found.is_some();
        let permille = if is_found { (low + high) / 2 } else { high };
        if let Some(cuts) = raise(stages, permille) {
            (found, high) = (Some(cuts), permille);
        } else {
            (low, high) = (permille, if is_found { high } else { 2 * high });
        }
    }
    let map = problem.machine.stage_to_rank();
    let over = found.and_then(|cuts: Cuts| {
        let each = (0..stages.count()).map(|stage| Excess {
            rank: map[stage],
            needed: problem.held(stages, &cuts, stage),
            limit: limits[stage],
        });
        each.max_by_key(Excess::permille)
    });
    let none = Excess {
        rank: map[0],
        needed: u64::MAX,
        limit: limits[0],
    };
    cuts(stages.count(), over.unwrap_or(none))
}

/// Returns the largest number in `from..=to` up to which `is_fine` holds; it must hold for `from`.
fn furthest(from: usize, to: usize, is_fine: impl Fn(usize) -> bool) -> usize {
    let (mut low, mut high) = (from, to);
    while low < high {
        let middle = low + (high - low).div_ceil(2);
        match is_fine(middle) {
            true => low = middle,
            false => high = middle - 1,
        }
    }
    low
}
