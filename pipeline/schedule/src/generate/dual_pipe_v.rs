//! DualPipeV: the V-shaped half of DualPipe, with overlapped pairs of a forward and a backward.

use std::collections::VecDeque;

use crate::action::Action;
use crate::task::Compute::{self, Backward, Forward, InputGradient};
use crate::task::Task;

use super::placement::{Lists, Shape};

/// DualPipeV for at least 2p micro-batches (DeepSeek-V3, arXiv 2412.19437; cut in half to a V).
///
/// Each rank's list has eight phases. It fills the first chunk (1), then both chunks (2). It returns
/// the first gradients early (3), with their weight gradients in the gaps. In the middle (4) a
/// forward of one chunk overlaps a backward of the other. When the first chunk has no more forwards
/// (5), and then neither has the second (6), only backwards remain, the later ones split; their weight
/// gradients fill the waits (7) and the end (8).
pub(super) fn dual_pipe_v(shape: Shape) -> Lists {
    (0..shape.ranks).map(|rank| list(shape, rank)).collect()
}

fn list(shape: Shape, rank: usize) -> Vec<Action> {
    let (after, up_to) = (shape.ranks - 1 - rank, rank + 1);
    let mut list = List {
        shape,
        rank,
        next: [[0; 2]; 2],
        weights: VecDeque::new(),
        actions: Vec::new(),
    };
    for _ in 0..2 * after {
        list.run(0, Forward);
    }
    for _ in 0..up_to {
        list.run(0, Forward);
        list.run(1, Forward);
    }
    for _ in 0..after {
        list.run(1, InputGradient);
        list.weight_gradient();
        list.run(1, Forward);
    }
    for step in 0..shape.micro_batches + up_to - 2 * shape.ranks {
        if step == 0 && after == 0 {
            // The published list does not overlap these two on the last rank: the bubble is smaller if F
            // and I differ, and the same if they do not.
            list.run(0, Forward);
            list.run(1, Backward);
        } else {
            list.pair(0, 1);
        }
        list.pair(1, 0);
    }
    for _ in 0..after {
        list.run(1, Backward);
        list.pair(1, 0);
    }
    // The first half of the remaining backwards is not split: the rank has no waits that their
    // weight gradients could fill.
    for step in 0..2 * up_to {
        let chunk = (step + 1) % 2;
        let is_whole = step < up_to;
        list.run(chunk, if is_whole { Backward } else { InputGradient });
    }
    for _ in 0..after {
        list.weight_gradient();
        list.run(0, InputGradient);
    }
    while list.weight_gradient() {}
    list.actions
}

/// A rank's list during generation; every direction of a chunk continues where it stopped.
struct List {
    shape: Shape,
    rank: usize,
    /// The next micro-batch of each chunk's forwards, and of its backwards.
    next: [[usize; 2]; 2],
    weights: VecDeque<Task>,
    actions: Vec<Action>,
}

impl List {
    /// Runs the next program of a chunk.
    fn run(&mut self, chunk: usize, compute: Compute) {
        let task = self.next(chunk, compute);
        self.actions.push(Action::Compute(task));
        if compute == InputGradient {
            let compute = Compute::WeightGradient;
            self.weights.push_back(Task { compute, ..task });
        }
    }

    /// Runs the oldest remaining weight gradient, if any.
    fn weight_gradient(&mut self) -> bool {
        let task = self.weights.pop_front();
        self.actions.extend(task.map(Action::Compute));
        task.is_some()
    }

    fn pair(&mut self, forward_chunk: usize, backward_chunk: usize) {
        let forward = self.next(forward_chunk, Compute::Forward);
        let backward = self.next(backward_chunk, Compute::Backward);
        self.actions.push(Action::Overlap([forward, backward]));
    }

    fn next(&mut self, chunk: usize, compute: Compute) -> Task {
        let next = &mut self.next[usize::from(compute != Compute::Forward)][chunk];
        *next += 1;
        self.shape.task((self.rank, chunk), compute, *next - 1)
    }
}
