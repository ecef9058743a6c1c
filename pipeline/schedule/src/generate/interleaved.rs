//! Schedules of loop placement that alternate forwards and backwards: 1F1B, interleaved 1F1B, and
//! the zero bubble schedules, which differ in the warm-up and in where the weight gradients go.

use crate::task::{Compute, Task};

use super::placement::{Lists, Shape};

/// 1F1B (PipeDream-Flush, Narayanan et al. 2021, arXiv 2006.09503), also with several chunks per rank (Narayanan et
/// al. 2021, arXiv 2104.04473).
///
/// Rank r begins with the forwards that it can run until the first gradient can arrive: one round
/// for each chunk except the last, and two forwards for each rank after it, one down and one up.
pub(super) fn interleaved(shape: Shape) -> Lists {
    let round = first_round(shape);
    shape.lists(|rank| {
        let after = shape.ranks - 1 - rank;
        let warm_up = match shape.chunks {
            // With one chunk the way up needs no further forwards: the rank would only wait later.
            1 => after + 1,
            chunks => (chunks - 1) * round + 2 * after + 1,
        };
        let mut forwards = order(shape, rank, Compute::Forward).into_iter();
        let mut list: Vec<Task> = forwards.by_ref().take(warm_up).collect();
        for backward in order(shape, rank, Compute::Backward) {
            list.push(backward);
            list.extend(forwards.next());
        }
        list
    })
}

/// ZB-H1 over one or more chunks per rank (ZB1P, Qi et al. 2024, arXiv 2401.10241).
///
/// The last rank holds as many chunks as the first rank of 1F1B, because it delays weight gradients;
/// it therefore returns gradients earlier, and has work left at the end.
pub(super) fn zero_bubble(shape: Shape) -> Lists {
    let others = shape.chunks.saturating_sub(1) * first_round(shape);
    let limit = others + shape.ranks;
    shape.lists(|rank| split_list(shape, rank, others + shape.ranks - rank, limit))
}

/// ZB-H2 (ZB2P, Qi et al. 2024, arXiv 2401.10241): with twice the warm-up no rank waits for the
/// first gradient, at the cost of 2p-1 micro-batches in flight on every rank.
pub(super) fn zero_bubble_h2(shape: Shape) -> Lists {
    let limit = (2 * shape.ranks).saturating_sub(1);
    shape.lists(|rank| split_list(shape, rank, limit - 2 * rank, limit))
}

/// Returns the list of a rank with split backwards that may have `limit` chunks in flight.
///
/// A weight gradient runs when the next forward would exceed the limit, and, once there are no more
/// forwards, after each input gradient, where the rank would otherwise wait for the next one.
fn split_list(shape: Shape, rank: usize, warm_up: usize, limit: usize) -> Vec<Task> {
    let mut forwards = order(shape, rank, Compute::Forward).into_iter();
    let mut weights = order(shape, rank, Compute::WeightGradient).into_iter();
    let mut list: Vec<Task> = forwards.by_ref().take(warm_up).collect();
    let mut in_flight = list.len();
    for input in order(shape, rank, Compute::InputGradient) {
        list.push(input);
        match forwards.next() {
            Some(forward) if in_flight < limit => {
                list.push(forward);
                in_flight += 1;
            }
            forward => {
                list.extend(weights.next());
                list.extend(forward);
            }
        }
    }
    list.extend(weights);
    list
}

/// Returns a rank's programs of one kind: by round, within a round by chunk, within a chunk by micro-batch.
/// Forwards have the chunks in ascending order, other programs in descending order.
fn order(shape: Shape, rank: usize, compute: Compute) -> Vec<Task> {
    let mut list = Vec::with_capacity(shape.chunks * shape.micro_batches);
    let mut start = 0;
    for length in rounds(shape) {
        for step in 0..shape.chunks {
            let chunk = match compute {
                Compute::Forward => step,
                _ => shape.chunks - 1 - step,
            };
            let round = start..start + length;
            list.extend(round.map(|k| shape.task((rank, chunk), compute, k)));
        }
        start += length;
    }
    list
}

/// Returns the number of micro-batches of each round: a round passes all chunks before the next one begins.
///
/// In the literature, rounds have p micro-batches. If m is not a multiple of p, the rest is distributed over the rounds,
/// because a round shorter than p would make the first rank wait for the last one in the middle of the step.
/// With three chunks or more, it would make ranks wait for each other in a cycle.
fn rounds(shape: Shape) -> impl Iterator<Item = usize> {
    let count = (shape.micro_batches / shape.ranks.max(1)).max(1);
    let (length, rest) = (shape.micro_batches / count, shape.micro_batches % count);
    (0..count).map(move |round| length + usize::from(round < rest))
}

/// Returns the length of the first round; no round is longer.
fn first_round(shape: Shape) -> usize {
    rounds(shape).next().unwrap_or(0)
}
