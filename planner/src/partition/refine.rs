//! Local moves: blocks move between stages while the score improves.
//!
//! A block may only move where nothing that it reads is computed later and nothing that reads it runs
//! earlier, so stages stay numbered in an order in which they can run, without a check for cycles. No
//! stage loses its last block.
//!
//! The moves are from Moreira, Popp and Schulz (arXiv 1704.00705): *simple* ones to an adjacent
//! stage, *global* ones to any stage in the range, and walks of *Fiduccia and Mattheyses* (1982), in
//! which each block moves once, even if that makes the score worse, and the moves after the best score
//! are undone.

use super::loads::{Loads, Score};

/// Maximum number of rounds of all kinds of moves; they end earlier after a round without changes.
const ROUNDS: usize = 6;

/// Moves without improvement after which a walk ends.
const STALLED: usize = 12;

/// Candidate blocks of one step of a walk.
const POOL: usize = 24;

/// Moves blocks until no move improves the score, or `effort` assignments have been scored, a measure that is the same
/// on every machine. The score never gets worse.
pub(super) fn refine(loads: &mut Loads<'_>, order: &[usize], mut effort: usize) {
    let effort = &mut effort;
    let mut locked = vec![false; order.len()];
    for _ in 0..ROUNDS {
        let before = loads.score();
        sweep(loads, order.iter(), 1, effort);
        sweep(loads, order.iter().rev(), 1, effort);
        sweep(loads, order.iter(), usize::MAX, effort);
        locked.fill(false);
        let worst = of_rank(loads, order, loads.worst_rank(), &locked);
        walk(loads, order, worst, &mut locked, effort);
        for node in order {
            if !locked[*node] && is_border(loads, *node) && *effort > 0 {
                walk(loads, order, vec![*node], &mut locked, effort);
            }
        }
        if *effort == 0 || loads.score() == before {
            break;
        }
    }
}

/// Whether a node can move under the current assignment.
fn can_move(loads: &Loads<'_>, node: usize) -> bool {
    let (low, high) = loads.range(node);
    low < high && loads.members(loads.stage_of()[node]) > 1
}

/// Whether a node can move and has a neighbour on another stage.
fn is_border(loads: &Loads<'_>, node: usize) -> bool {
    let stage = |node: &usize| loads.stage_of()[*node];
    let (before, after) = (&loads.graph.before[node], &loads.graph.after[node]);
    let mut neighbours = before.iter().chain(after);
    neighbours.any(|other| stage(other) != stage(&node)) && can_move(loads, node)
}

/// Nodes of a rank that can move.
fn of_rank(loads: &Loads<'_>, order: &[usize], rank: usize, locked: &[bool]) -> Vec<usize> {
    let own = order.iter().copied().filter(|node| {
        let stage = loads.stage_of()[*node];
        loads.terms.rank_of[stage] == rank && !locked[*node] && can_move(loads, *node)
    });
    own.take(POOL).collect()
}

/// Moves each node to the best stage within reach if that improves the score.
fn sweep<'n>(
    loads: &mut Loads<'_>,
    nodes: impl Iterator<Item = &'n usize>,
    reach: usize,
    effort: &mut usize,
) {
    for node in nodes {
        if *effort == 0 {
            return;
        }
        if can_move(loads, *node) {
            let from = loads.stage_of()[*node];
            let here = (loads.score(), from);
            let best = best_stage(loads, *node, reach, effort);
            let to = best.map_or(from, |best| best.min(here).1);
            loads.shift(*node, to);
        }
    }
}

/// The best other stage of a node, and the score with the node on it. The node stays.
fn best_stage(
    loads: &mut Loads<'_>,
    node: usize,
    reach: usize,
    effort: &mut usize,
) -> Option<(Score, usize)> {
    let from = loads.stage_of()[node];
    let (low, high) = loads.range(node);
    let low = low.max(from.saturating_sub(reach));
    let high = high.min(from.saturating_add(reach));
    let mut best = None;
    for to in (low..=high).filter(|to| *to != from) {
        loads.shift(node, to);
        *effort = effort.saturating_sub(1);
        let found = (loads.score(), to);
        if best.is_none_or(|best| found < best) {
            best = Some(found);
        }
    }
    loads.shift(node, from);
    best
}

/// Moves nodes one after the other, the best move first, each node once, and returns to the assignment
/// with the best score.
fn walk(
    loads: &mut Loads<'_>,
    order: &[usize],
    mut pool: Vec<usize>,
    locked: &mut [bool],
    effort: &mut usize,
) {
    let mut best = loads.score();
    let mut trail: Vec<(usize, usize)> = Vec::new();
    let (mut kept, mut stalled) = (0, 0);
    while stalled < STALLED && *effort > 0 {
        let mut moves = pool.iter().filter_map(|node| {
            if locked[*node] || !can_move(loads, *node) {
                return None;
            }
            let (score, to) = best_stage(loads, *node, 1, effort)?;
            Some((score, *node, to))
        });
        let Some(first) = moves.next() else {
            break;
        };
        let (score, node, to) = moves.fold(first, Ord::min);
        trail.push((node, loads.stage_of()[node]));
        loads.shift(node, to);
        locked[node] = true;
        if score < best {
            (best, kept, stalled) = (score, trail.len(), 0);
        } else {
            stalled += 1;
        }
        let (before, after) = (&loads.graph.before[node], &loads.graph.after[node]);
        let neighbours = before.iter().chain(after).copied().take(POOL);
        // Another rank may be the worst one now; its nodes can move on.
        let worst = of_rank(loads, order, loads.worst_rank(), locked);
        pool.retain(|node| !locked[*node]);
        pool.truncate(POOL);
        pool.extend(neighbours.chain(worst));
        pool.sort_unstable();
        pool.dedup();
    }
    for (node, from) in trail.drain(kept..).rev() {
        loads.shift(node, from);
        // Nodes whose moves were undone may move in another walk of this round, but not start one
        // again.
        locked[node] = true;
    }
}
