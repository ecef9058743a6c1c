//! The local search: small changes along the critical path, kept if the step gets no longer.

use std::mem;

use crate::task::Compute;

use super::evaluate::{Evaluator, NO_MESSAGE};
use super::problem::{Lists, Problem, Turn, count, next};

/// Actions of one rank on the critical path that run without a pause.
#[derive(Debug, Clone, Copy)]
struct Block {
    rank: usize,
    first: usize,
    last: usize,
}

/// The number of accepted makespans after which a change is compared with an older one (late acceptance hill climbing,
/// Burke and Bykov 2017): large enough to leave a plateau, small enough to converge within the effort.
const MEMORY: usize = 30;

/// The distance that a change moves an action beyond the critical path, in actions.
const REACH: usize = 6;

/// The cost of drawing and rejecting a change, in timed entries.
const DRAW_TURNS: u64 = 4;

/// Improves lists until `turns` more entries have been timed or `target` is reached. The result is
/// at least as good as the initial lists, which must be able to run.
pub(super) fn improve(
    problem: &Problem<'_>,
    evaluator: &mut Evaluator<'_>,
    start: &Lists,
    turns: u64,
    target: u64,
) -> Option<(u64, Lists)> {
    let end = evaluator.turns.saturating_add(turns);
    let makespan = evaluator.makespan(start, u64::MAX)?;
    let mut search = Search {
        problem,
        random: Random(0),
        lists: start.clone(),
        blocks: Vec::new(),
        backup: Vec::new(),
        counts: vec![[0; 3]; problem.stages()],
    };
    let mut best = (makespan, start.clone());
    let mut current = makespan;
    let mut late = [makespan; MEMORY];
    let mut step = 0;
    search.find_blocks(evaluator);
    while evaluator.turns < end && best.0 > target {
        step += 1;
        // A step without a change has a small cost, so that the search ends.
        evaluator.turns += DRAW_TURNS;
        let Some(rank) = search.change() else {
            continue;
        };
        let slot = step % MEMORY;
        let cutoff = late[slot].max(current);
        match evaluator.makespan(&search.lists, cutoff) {
            Some(makespan) => {
                current = makespan;
                search.find_blocks(evaluator);
                if makespan < best.0 {
                    best = (makespan, search.lists.clone());
                }
            }
            None => mem::swap(&mut search.lists[rank], &mut search.backup),
        }
        late[slot] = late[slot].min(current);
    }
    Some(best)
}

struct Search<'a> {
    problem: &'a Problem<'a>,
    random: Random,
    lists: Lists,
    /// The critical path of the lists, from its end.
    blocks: Vec<Block>,
    /// The original of the list that the last change was made to.
    backup: Vec<Turn>,
    /// Per stage, the number of its programs that have run, for checking a list.
    counts: Vec<[usize; 3]>,
}

impl Search<'_> {
    /// Finds the critical path of the lists that were timed last.
    fn find_blocks(&mut self, evaluator: &Evaluator<'_>) {
        self.blocks.clear();
        let ends = evaluator.ends().enumerate();
        let last = ends.max_by_key(|&(rank, end)| (end, rank));
        let Some((mut rank, _)) = last else { return };
        let Some(mut position) = self.lists[rank].len().checked_sub(1) else {
            return;
        };
        let mut block_last = position;
        loop {
            let cause = evaluator.causes[rank][position];
            if cause == NO_MESSAGE && position > 0 {
                position -= 1;
                continue;
            }
            self.blocks.push(Block {
                rank,
                first: position,
                last: block_last,
            });
            if cause == NO_MESSAGE {
                return;
            }
            let edge = cause / self.problem.micro_batches;
            let from = self.problem.dependencies.edges()[edge].from.stage;
            rank = self.problem.rank_of(from.index());
            position = evaluator.made_at[cause];
            block_last = position;
        }
    }

    /// Changes the list of one rank, and returns the rank; `None` if the drawn change
    /// is not possible.
    fn change(&mut self) -> Option<usize> {
        let block = *self.blocks.get(self.random.below(self.blocks.len()))?;
        self.backup.clone_from(&self.lists[block.rank]);
        let is_new = self.draw(block).is_some() && self.lists[block.rank] != self.backup;
        if is_new && self.is_legal(block.rank) {
            return Some(block.rank);
        }
        mem::swap(&mut self.lists[block.rank], &mut self.backup);
        None
    }

    /// Draws a change of a block of the critical path.
    ///
    /// A path gets shorter when the last action of a block, whose message the next block waits for,
    /// moves forward, or when an action that no other action waits for moves after it.
    fn draw(&mut self, Block { rank, first, last }: Block) -> Option<()> {
        let total = self.lists[rank].len();
        let inside = first + self.random.below(last - first + 1);
        match self.random.below(8) {
            0..=2 => {
                let is_last = self.random.below(3) == 0;
                let from = if is_last { last } else { inside };
                let reach = (from - first + 2).min(from);
                let steps = 1 + self.random.below(reach.max(1));
                self.shift(rank, from, from.saturating_sub(steps))
            }
            3..=5 => {
                let beyond = (total - 1 - last).min(REACH);
                let to = last + self.random.below(beyond + 1);
                self.shift(rank, inside, to)
            }
            6 => self.split_or_join(rank, inside),
            _ => {
                let from = self.random.below(total);
                let to = (from + self.random.below(2 * REACH + 1)).saturating_sub(REACH);
                self.shift(rank, from, to.min(total - 1))
            }
        }
    }

    /// Moves an entry, or an overlapped pair, to another position.
    fn shift(&mut self, rank: usize, from: usize, to: usize) -> Option<()> {
        let list = &mut self.lists[rank];
        if from == to || is_second(list, from) {
            return None;
        }
        let turn = list.remove(from);
        let partner = turn.is_paired.then(|| list.remove(from));
        let to = to.min(list.len());
        let to = to + usize::from(is_second(list, to));
        list.insert(to, turn);
        if let Some(partner) = partner {
            list.insert(to + 1, partner);
        }
        Some(())
    }

    /// Splits a whole backward into two programs, or joins them.
    fn split_or_join(&mut self, rank: usize, at: usize) -> Option<()> {
        let beyond = 1 + self.random.below(REACH);
        let list = &mut self.lists[rank];
        let turn = *list.get(at)?;
        let part = |compute: Compute| Turn { compute, ..turn };
        match turn.compute {
            Compute::Backward => {
                list[at] = part(Compute::InputGradient);
                let to = (at + beyond).min(list.len());
                let to = to + usize::from(is_second(list, to));
                list.insert(to, part(Compute::WeightGradient));
            }
            Compute::InputGradient => {
                let weight = part(Compute::WeightGradient);
                let to = at + list[at..].iter().position(|turn| *turn == weight)?;
                if is_second(list, to) {
                    return None;
                }
                list.remove(to);
                list[at] = part(Compute::Backward);
            }
            Compute::WeightGradient => {
                let input = part(Compute::InputGradient);
                let from = list[..at].iter().rposition(|turn| *turn == input)?;
                if is_second(list, from) {
                    return None;
                }
                list[at] = part(Compute::Backward);
                list.remove(from);
            }
            Compute::Forward => return None,
        }
        Some(())
    }

    /// Returns whether a list keeps every stage's own order and the rank's budget.
    fn is_legal(&mut self, rank: usize) -> bool {
        for &stage in &self.problem.stages_of[rank] {
            self.counts[stage] = [0; 3];
        }
        let mut held = 0;
        for turn in &self.lists[rank] {
            let counts = &mut self.counts[turn.stage()];
            let is_next = next(*counts, turn.compute).is_some();
            count(counts, turn.compute);
            held = self.problem.held_after(held, *turn);
            if !is_next || held > self.problem.budgets[rank] {
                return false;
            }
        }
        true
    }
}

/// Returns whether the entry at a position is the backward of an overlapped pair.
fn is_second(list: &[Turn], position: usize) -> bool {
    let before = position.checked_sub(1).and_then(|before| list.get(before));
    before.is_some_and(|turn| turn.is_paired)
}

/// SplitMix64 (Steele, Lea, Flood 2014), with a fixed seed.
#[derive(Debug, Clone)]
struct Random(u64);

impl Random {
    /// Returns the next number below a bound.
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        let wide = u128::from(z ^ (z >> 31)) * bound as u128;
        (wide >> 64) as usize
    }
}
