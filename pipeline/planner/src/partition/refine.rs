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

/// Moves blocks until no move improves the score, or `effort` assignments have been scored. The effort is the same
/// on every machine. The score never gets worse.
pub(super) fn refine(loads: &mut Loads<'_>, order: &[usize], effort: usize) {
    let mut moves = Moves {
        loads,
        order,
        locked: vec![false; order.len()],
        effort,
    };
    for _ in 0..ROUNDS {
        let before = moves.loads.score();
        moves.sweep(order.iter(), 1);
        moves.sweep(order.iter().rev(), 1);
        moves.sweep(order.iter(), usize::MAX);
        moves.locked.fill(false);
        moves.walk(moves.of_worst_rank());
        for node in order {
            if !moves.locked[*node] && moves.is_border(*node) && moves.effort > 0 {
                moves.walk(vec![*node]);
            }
        }
        if moves.effort == 0 || moves.loads.score() == before {
            break;
        }
    }
}

/// The moves of one assignment.
struct Moves<'m, 'a> {
    loads: &'m mut Loads<'a>,
    order: &'m [usize],
    /// The nodes that no walk of this round moves again.
    locked: Vec<bool>,
    /// The number of assignments that may still be scored.
    effort: usize,
}

impl Moves<'_, '_> {
    /// Whether a node can move under the current assignment.
    fn can_move(&self, node: usize) -> bool {
        let (low, high) = self.loads.range(node);
        low < high && self.loads.members(self.loads.stage_of()[node]) > 1
    }

    /// The nodes that exchange values with a node.
    fn neighbours(&self, node: usize) -> impl Iterator<Item = usize> {
        let graph = self.loads.graph;
        let before = graph.before[node].iter();
        before.chain(&graph.after[node]).copied()
    }

    /// Whether a node can move and has a neighbour on another stage.
    fn is_border(&self, node: usize) -> bool {
        let stage = |node: usize| self.loads.stage_of()[node];
        let mut neighbours = self.neighbours(node);
        neighbours.any(|other| stage(other) != stage(node)) && self.can_move(node)
    }

    /// Nodes of the rank that limits the score that can move.
    fn of_worst_rank(&self) -> Vec<usize> {
        let rank = self.loads.worst_rank();
        let own = self.order.iter().copied().filter(|node| {
            let stage = self.loads.stage_of()[*node];
            let is_own = self.loads.terms.rank_of[stage] == rank;
            is_own && !self.locked[*node] && self.can_move(*node)
        });
        own.take(POOL).collect()
    }

    /// Moves each node to the best stage within reach if that improves the score.
    fn sweep<'n>(&mut self, nodes: impl Iterator<Item = &'n usize>, reach: usize) {
        for node in nodes {
            if self.effort == 0 {
                return;
            }
            if self.can_move(*node) {
                let from = self.loads.stage_of()[*node];
                let here = (self.loads.score(), from);
                let best = self.best_stage(*node, reach);
                let to = best.map_or(from, |best| best.min(here).1);
                self.loads.shift(*node, to);
            }
        }
    }

    /// The best other stage of a node, and the score with the node on it. The node stays.
    fn best_stage(&mut self, node: usize, reach: usize) -> Option<(Score, usize)> {
        let from = self.loads.stage_of()[node];
        let (low, high) = self.loads.range(node);
        let low = low.max(from.saturating_sub(reach));
        let high = high.min(from.saturating_add(reach));
        let mut best = None;
        for to in (low..=high).filter(|to| *to != from) {
            self.loads.shift(node, to);
            self.effort = self.effort.saturating_sub(1);
            let found = (self.loads.score(), to);
            if best.is_none_or(|best| found < best) {
                best = Some(found);
            }
        }
        self.loads.shift(node, from);
        best
    }

    /// Moves nodes one after the other, the best move first, each node once, and returns to the assignment
    /// with the best score.
    fn walk(&mut self, mut pool: Vec<usize>) {
        let mut best = self.loads.score();
        let mut trail: Vec<(usize, usize)> = Vec::new();
        let (mut kept, mut stalled) = (0, 0);
        while stalled < STALLED && self.effort > 0 {
            let moves = pool.iter().filter_map(|node| {
                if self.locked[*node] || !self.can_move(*node) {
                    return None;
                }
                let (score, to) = self.best_stage(*node, 1)?;
                Some((score, *node, to))
            });
            let Some((score, node, to)) = moves.min() else {
                break;
            };
            trail.push((node, self.loads.stage_of()[node]));
            self.loads.shift(node, to);
            self.locked[node] = true;
            stalled += 1;
            if score < best {
                (best, kept, stalled) = (score, trail.len(), 0);
            }
            // Another rank may be the worst one now; its nodes can move on.
            let worst = self.of_worst_rank();
            pool.retain(|node| !self.locked[*node]);
            pool.truncate(POOL);
            pool.extend(self.neighbours(node).take(POOL).chain(worst));
            pool.sort_unstable();
            pool.dedup();
        }
        for (node, from) in trail.drain(kept..).rev() {
            self.loads.shift(node, from);
            // Nodes whose moves were undone may move in another walk of this round, but not start one
            // again.
            self.locked[node] = true;
        }
    }
}
