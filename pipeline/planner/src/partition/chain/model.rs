//! The time of a step by the slowest stage and a sum over stages.
//!
//! # The model
//!
//! With `v` stages per rank, `p` ranks, `m` micro-batches and stages `k`,
//!
//! ```text
//! T = max over k of (n · period(k) - head(k))  +  (sum over k of head(k) + links(k)) / v
//! ```
//!
//! where `n = v · m`, plus `(v - 1)(p - m)` for schedules with whole backwards where `m < p`: the first
//! rank waits between rounds of fewer micro-batches than ranks. `period` is the time of a stage per
//! micro-batch in the steady state, and `head` its contribution to the path of the first and of the
//! last micro-batch. A link on which a stage's messages of a micro-batch take longer than the stage
//! replaces it in the maximum. With `period = head = F + B` and one stage per rank this is
//! `(m - 1) · max + sum` (Alpa, arXiv 2201.12023). The heads of the other schedules are the formulas of their
//! bubbles, documented at [`ScheduleKind`], plus the path of the first forward where the last rank ends
//! later than the first:
//!
//! | schedule | period | head |
//! |---|---|---|
//! | GPipe, 1F1B, looped, interleaved | `F + B` | `F + B` |
//! | ZB-H1, interleaved ZB | `F + I + W` | `max(F + I - W, I, F)` |
//! | ZB-H2 | `F + I + W` | `max(F + I - 2W, I - F, F)` |
//! | ZBV | `F + I + W` | `max(F, I, W, 2(I - W), 2F - I)` |
//! | DualPipeV | `F + B` | `max(2F, F + 2I - W)` |
//! | V-Half | `max(F + I + W, 2F + W, 2I + W / 2)` | `period` |
//! | V-Min | `max(F + I + W, 3F, 3I)` | `4/3 period` |
//!
//! With fewer micro-batches than a warm-up holds, the warm-up has fewer weight gradients, so their part
//! in the head of ZB-H1 and ZB-H2 is smaller. For equal stages the formulas are exact where the formulas of
//! the literature are exact. The tests of this module record the deviation from the simulator where stages
//! differ.
//!
//! An action has an overhead, and a stage has up to two messages per direction; both are part of the
//! programs' times.

use tinderbox_schedule::arithmetic::{narrow, scaled};
use tinderbox_schedule::{Action, Compute, LinkCosts, Schedule, ScheduleKind};

use crate::Step;

/// The maximum time of a program of a stage, nineteen hours, so that no sum overflows.
pub(super) const LONGEST_NS: u64 = 1 << 46;

/// Nanoseconds of a stage's `F`, `B`, `I` and `W` on its rank, including overheads of actions and messages.
pub(super) type Programs = [u64; 4];

/// The time of a step under one schedule.
#[derive(Debug, Clone)]
pub(super) struct StepModel {
    kind: Option<ScheduleKind>,
    /// Stages per rank.
    pub(super) chunks: u64,
    /// The number of periods that the slowest stage runs.
    periods: u64,
    /// Whole and split backwards of all stages.
    whole: u64,
    split: u64,
    /// Weight gradients in the warm-up of zero bubble schedules, as a fraction of a rank: numerator and
    /// denominator.
    warm: (u64, u64),
}

impl StepModel {
    /// The model of a step. Without a named schedule's lists, the lists of 1F1B approximate the lists of a
    /// search.
    pub(super) fn new(step: &Step, ranks: usize, chunks: usize, lists: Option<&Schedule>) -> Self {
        let [ranks, chunks, micro_batches] =
            [ranks, chunks, step.per_replica()].map(|count| (count as u64).min(1 << 26));
        let mut kind = lists.map(|_| step.schedule);
        if kind == Some(ScheduleKind::DualPipeV) && micro_batches < 2 * ranks {
            kind = Some(ScheduleKind::Zbv);
        }
        let (mut whole, mut split) = (0, 0);
        let all = lists.into_iter().flat_map(|lists| &lists.ranks);
        for task in all.flatten().flat_map(Action::tasks) {
            whole += u64::from(task.compute == Compute::Backward);
            split += u64::from(task.compute == Compute::InputGradient);
        }
        if whole + split == 0 {
            whole = 1;
        }
        let mut periods = chunks.saturating_mul(micro_batches);
        if split == 0 && lists.is_some() {
            let short = ranks.saturating_sub(micro_batches);
            periods = periods.saturating_add((chunks.saturating_sub(1)).saturating_mul(short));
        }
        let others = ranks.saturating_sub(1);
        let is_long = kind == Some(ScheduleKind::ZbH2);
        let longest = if is_long { 2 * others } else { others };
        let warm = micro_batches.saturating_sub(1).min(longest);
        Self {
            kind,
            chunks: chunks.max(1),
            periods: periods.min(1 << 40),
            whole,
            split,
            warm: (warm, others.max(1)),
        }
    }

    /// The time of a stage per micro-batch in the steady state.
    fn period(&self, [forward, backward, input, weight]: Programs) -> u64 {
        let halves = input + weight;
        let both = match (self.whole, self.split) {
            (_, 0) => backward,
            (0, _) => halves,
            (whole, split) => {
                let product = |a, b| u128::from(a) * u128::from(b);
                let sum = product(backward, whole) + product(halves, split);
                narrow(sum / u128::from(whole + split))
            }
        };
        let work = forward + both;
        match self.kind {
            Some(ScheduleKind::VHalf) => work
                .max(2 * forward + weight)
                .max((4 * input + weight).div_ceil(2)),
            Some(ScheduleKind::VMin) => work.max(3 * forward).max(3 * input),
            _ => work,
        }
    }

    /// The contribution of a stage to the path of the first and of the last micro-batch.
    fn head(&self, [forward, _, input, weight]: Programs, period: u64) -> u64 {
        let share = |time: u64, (part, of): (u64, u64)| {
            if part % of == 0 {
                return time * (part / of);
            }
            scaled(time, part, of)
        };
        let round = forward + input;
        // With the weight gradients of the warm-up in its gaps.
        let without = || round.saturating_sub(share(weight, self.warm));
        match self.kind {
            Some(ScheduleKind::ZbH1 | ScheduleKind::InterleavedZb) => {
                without().max(input).max(forward)
            }
            Some(ScheduleKind::ZbH2) => {
                let longer = (self.warm.0.saturating_sub(self.warm.1), self.warm.1);
                let ahead = input.saturating_sub(share(forward, longer));
                without().max(ahead).max(forward)
            }
            Some(ScheduleKind::Zbv) => forward
                .max(input)
                .max(weight)
                .max(2 * input.saturating_sub(weight))
                .max((2 * forward).saturating_sub(input)),
            Some(ScheduleKind::DualPipeV) => {
                (2 * forward).max((round + input).saturating_sub(weight))
            }
            Some(ScheduleKind::VMin) => period + period / 3,
            _ => period,
        }
    }

    /// A stage's term of the maximum, which grows with each of the times, and its term of the sum,
    /// which is at most the sum of the same terms of its blocks.
    pub(super) fn stage(&self, times: Programs) -> (u64, u64) {
        let period = self.period(times);
        let head = self.head(times, period);
        let most = period.saturating_mul(self.periods);
        (most.saturating_sub(head), head)
    }

    /// A link's term of the maximum, where a micro-batch occupies it for `busy` nanoseconds.
    pub(super) fn link(&self, busy: u64) -> u64 {
        busy.saturating_mul(self.periods.saturating_sub(1))
    }

    /// The time of a step in nanoseconds times [`StepModel::chunks`]: an integer without rounding, so
    /// that different times remain different.
    pub(super) fn scaled(&self, most: u64, sum: u64) -> u64 {
        most.saturating_mul(self.chunks).saturating_add(sum)
    }
}

/// The nanoseconds that a message adds to the sum; 0 for no bytes.
pub(super) fn message_ns(link: LinkCosts, bytes: u64) -> u64 {
    match bytes {
        0 => 0,
        _ => link.transfer(bytes).min(LONGEST_NS) + link.latency.min(LONGEST_NS),
    }
}
