//! The V-shaped schedules ZBV, V-Half and V-Min: one block of six programs, repeated for every
//! micro-batch.
//!
//! A block has the tick at which each rank runs the two forwards and the two input gradients of a
//! micro-batch; every program is one tick long. The next micro-batch runs the same block
//! six ticks later, which is the duration of its programs on a rank. A block is therefore valid if no two
//! of its starts on a rank are equal modulo six. A steep block keeps activations for a long time, a flat
//! block for a short time: the slope determines the memory (Qi et al. 2024, arXiv 2405.15362).
//!
//! The ticks determine the order of forwards and input gradients. Weight gradients are placed where a rank
//! would wait or would exceed its limit, which a simulation finds. The lists can run with any times, but
//! without a wait in the middle of the step only if F, I and W are equal.

use std::collections::VecDeque;

use tinderbox_ids::{MicroBatchIndex, StageIndex};

use crate::action::Action;
use crate::task::{Compute, Task};

use super::placement::{Lists, Shape};

/// The ticks between the blocks of two micro-batches: a rank's programs of one micro-batch.
const PERIOD: usize = 6;

/// The times of the parts of a micro-batch, and the limit of a rank.
#[derive(Debug, Clone, Copy)]
struct Block {
    /// Ticks from one rank to the next on the four ways: down the first chunk, up the second, back down the
    /// second and back up the first.
    steps: [usize; 4],
    /// Ticks from one way to the next on the rank where both meet.
    turns: [usize; 3],
    /// The maximum number of chunks that a rank has in flight.
    limit: usize,
    /// Whether a rank that waits runs forwards of its first chunk earlier than in the block.
    runs_ahead: bool,
}

/// ZBV (Qi et al. 2024, arXiv 2401.10241): the memory of 1F1B, no bubble at F = I = W.
pub(super) fn zbv(shape: Shape) -> Lists {
    let block = Block {
        steps: [3; 4],
        turns: [1; 3],
        limit: 2 * shape.ranks,
        runs_ahead: true,
    };
    block.lists(shape)
}

/// V-Half (Qi et al. 2024, arXiv 2405.15362): half the memory of 1F1B and half its bubble.
pub(super) fn v_half(shape: Shape) -> Lists {
    let block = Block {
        steps: [1, 2, 1, 2],
        // Other turns keep a rank's starts distinct modulo the period too, but wait longer if F, I and W differ.
        turns: match shape.ranks % 2 {
            0 => [4, 2, 4],
            _ => [1, 2, 1],
        },
        limit: 2 * ((shape.ranks + 2) / 2),
        runs_ahead: false,
    };
    block.lists(shape)
}

/// V-Min (Qi et al. 2024, arXiv 2405.15362): a third of the memory of 1F1B, two thirds of its
/// bubble. If F, I and W differ, every micro-batch waits a little, and the bubble grows with m.
pub(super) fn v_min(shape: Shape) -> Lists {
    let block = Block {
        steps: [1; 4],
        // With turns of one tick a micro-batch returns to its rank after 2p ticks, and if 3 divides p
        // that is a multiple of the period.
        turns: match shape.ranks % 3 {
            0 => [3, 1, 3],
            _ => [1; 3],
        },
        limit: 2 * ((shape.ranks + 4) / 3),
        runs_ahead: false,
    };
    block.lists(shape)
}

impl Block {
    fn lists(self, shape: Shape) -> Lists {
        let ranks = (0..shape.ranks).map(|rank| Rank::new(self, shape, rank));
        let mut clock = Clock {
            shape,
            block: self,
            ranks: ranks.collect(),
            done: vec![[0; 2]; shape.ranks * shape.chunks],
        };
        let programs = 4 * shape.micro_batches * shape.ranks;
        let mut ran = 0;
        while ran < programs {
            ran += clock.tick();
        }
        clock.ranks.into_iter().map(Rank::finish).collect()
    }

    /// Returns the ticks at which a rank runs the four ways of the first micro-batch.
    fn starts(self, ranks: usize, rank: usize) -> [usize; 4] {
        let after = ranks - 1 - rank;
        let [down, up, back_down, back_up] = self.steps;
        let bottom = down * (ranks - 1) + self.turns[0];
        let top = bottom + up * (ranks - 1) + self.turns[1];
        let bottom_again = top + back_down * (ranks - 1) + self.turns[2];
        [
            down * rank,
            bottom + up * after,
            top + back_down * rank,
            bottom_again + back_up * after,
        ]
    }
}

/// One way of the V on a rank: a program of a chunk, for one micro-batch after the other.
#[derive(Debug, Clone, Copy)]
struct Way {
    stage: StageIndex,
    compute: Compute,
    /// The tick of the first micro-batch.
    start: usize,
}

impl Way {
    /// Returns the entry in [`Clock::done`].
    fn direction(&self) -> usize {
        usize::from(self.compute != Compute::Forward)
    }
}

/// The state of a rank during generation.
struct Rank {
    ways: [Way; 4],
    in_flight: usize,
    weights: VecDeque<Task>,
    list: Vec<Action>,
}

impl Rank {
    fn new(block: Block, shape: Shape, rank: usize) -> Self {
        let [a, b, c, d] = block.starts(shape.ranks, rank);
        let way = |chunk, compute, start| Way {
            stage: shape.placement.stage(rank, chunk, shape.ranks),
            compute,
            start,
        };
        Self {
            ways: [
                way(0, Compute::Forward, a),
                way(1, Compute::Forward, b),
                way(1, Compute::InputGradient, c),
                way(0, Compute::InputGradient, d),
            ],
            in_flight: 0,
            weights: VecDeque::new(),
            list: Vec::with_capacity(PERIOD * shape.micro_batches),
        }
    }

    fn run_weight_gradient(&mut self) {
        if let Some(weight) = self.weights.pop_front() {
            self.list.push(Action::Compute(weight));
            self.in_flight -= 1;
        }
    }

    /// Returns the list with the remaining weight gradients.
    fn finish(mut self) -> Vec<Action> {
        let weights = self.weights.into_iter();
        self.list.extend(weights.map(Action::Compute));
        self.list
    }
}

/// The state of all ranks at one tick.
struct Clock {
    shape: Shape,
    block: Block,
    ranks: Vec<Rank>,
    /// Per stage, the numbers of forwards and input gradients that have run. Both run in micro-batch order,
    /// so a number identifies them.
    done: Vec<[usize; 2]>,
}

impl Clock {
    /// Lets every rank run one program, and returns the number of forwards and input gradients run. A rank reads the
    /// outputs of earlier ticks.
    ///
    /// At least one rank always runs a program: among all programs that have not run, the earliest in the blocks has all
    /// its inputs.
    fn tick(&mut self) -> usize {
        let chosen = self.ranks.iter().map(|rank| self.choose(rank));
        let chosen: Vec<Option<Way>> = chosen.collect();
        let mut ran = 0;
        for (rank, way) in self.ranks.iter_mut().zip(chosen) {
            let Some(way) = way else {
                rank.run_weight_gradient();
                continue;
            };
            let done = &mut self.done[way.stage.index()][way.direction()];
            let task = Task::new(way.stage, way.compute, MicroBatchIndex::new(*done));
            *done += 1;
            ran += 1;
            rank.list.push(Action::Compute(task));
            if task.compute == Compute::Forward {
                rank.in_flight += 1;
            } else {
                let compute = Compute::WeightGradient;
                rank.weights.push_back(Task { compute, ..task });
            }
        }
        ran
    }

    /// Returns the way on which a rank continues, or `None` if a weight gradient or a wait is next.
    fn choose(&self, rank: &Rank) -> Option<Way> {
        let is_left = |way: &&Way| self.next(way) < self.shape.micro_batches;
        let left = rank.ways.iter().filter(is_left);
        let first = left.min_by_key(|way| way.start + PERIOD * self.next(way))?;
        let has_capacity = rank.in_flight < self.block.limit;
        let is_forward = first.compute == Compute::Forward;
        // Without a weight gradient to run, a forward exceeds the limit, because waiting would never end.
        let may_run = has_capacity || !is_forward || rank.weights.is_empty();
        if may_run && self.is_ready(first) {
            return Some(*first);
        }
        let runs_ahead = self.block.runs_ahead && has_capacity;
        let ahead = &rank.ways[0];
        (runs_ahead && is_left(&ahead) && self.is_ready(ahead)).then_some(*ahead)
    }

    /// Returns the next micro-batch of a way.
    fn next(&self, way: &Way) -> usize {
        self.done[way.stage.index()][way.direction()]
    }

    /// Returns whether the inputs of a way's next program exist.
    fn is_ready(&self, way: &Way) -> bool {
        let (stage, next) = (way.stage.index(), self.next(way));
        match way.compute {
            Compute::Forward => stage == 0 || self.done[stage - 1][0] > next,
            _ => {
                let is_last = stage + 1 == self.done.len();
                self.done[stage][0] > next && (is_last || self.done[stage + 1][1] > next)
            }
        }
    }
}
