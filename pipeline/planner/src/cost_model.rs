//! The cost model of [`chain`](crate::chain): the time of a step from the slowest stage and a sum over stages.
//!
//! # The model
//!
//! A stage runs four kinds of programs for a micro-batch: the forward `F`, and either the whole backward `B` or its two halves.
//! The half `I` computes the values for other stages, and the half `W` the gradients of the stage's own parameters. The
//! letters also mean the times of the programs. With `v` stages per rank, `p` ranks, `m` micro-batches and stages `k`,
//!
//! ```text
//! T = max over k of (n · period(k) - head(k))  +  (sum over k of head(k) + links(k)) / v
//! ```
//!
//! - `n = v · m` is the number of periods. For schedules with whole backwards where `m < p`, it is larger by
//!   `(v - 1)(p - m)`: the first rank waits between rounds of fewer micro-batches than ranks.
//! - `period` is the time of a stage per micro-batch in the steady state.
//! - `head` is the contribution of a stage to the path of the first and of the last micro-batch.
//! - `links` is the time of the messages between a stage and the stage before it, for one micro-batch.
//!
//! A link may take longer for the messages of a micro-batch than the stage. Then the link replaces the stage in the maximum.
//!
//! With `period = head = F + B` and one stage per rank, `T` is `(m - 1) · max + sum` (Alpa, arXiv 2201.12023). The heads of the
//! other schedules follow from the formulas of their bubbles, documented at [`ScheduleKind`]. Where the last rank ends later
//! than the first, the path of the first forward is added:
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
//! With fewer micro-batches than a warm-up can hold, fewer weight gradients fill the warm-up. So less of `W` is subtracted in
//! the heads of ZB-H1 and ZB-H2.
//!
//! For equal stages, the formulas are exact where the formulas of the literature are exact. For different stages, the tests of
//! `chain` record the deviation from the simulator.
//!
//! The times of the programs include the overhead of each action, and of up to two messages per direction. The reduce and the
//! update at the end of a step are two more actions. Their overhead is added to `T`.
//!
//! A stage that recomputes its activations runs its forward again in `B` and in `I`. Some heads decrease as `I` grows. To
//! prevent that recomputation counts as a gain, the head of such a stage is at least its head without recomputation.

use tinderbox_schedule::arithmetic::{narrow, scaled};
use tinderbox_schedule::{Action, Compute, LinkCosts, Schedule, ScheduleKind};

use crate::Step;

/// The maximum time of a program of a stage, nineteen hours, so that no sum overflows.
pub(crate) const LONGEST_NS: u64 = 1 << 46;

/// The times of a stage's programs `F`, `B`, `I` and `W` on its rank, in nanoseconds, including overheads of actions and
/// messages.
pub(crate) type Programs = [u64; 4];

/// The time of a step under one schedule.
#[derive(Debug, Clone)]
pub struct StepModel {
    /// The schedule; `None` for the lists of a search.
    kind: Option<ScheduleKind>,
    /// The number of stages per rank.
    pub(crate) chunks: u64,
    /// The number of periods that the slowest stage runs.
    periods: u64,
    /// The number of backwards of all stages that run whole.
    whole: u64,
    /// The number of backwards of all stages that are split.
    split: u64,
    /// The number of weight gradients that fill the warm-up of a zero bubble schedule, per rank after the first: numerator and
    /// denominator. With enough micro-batches, it is 1, or 2 for ZB-H2.
    warm_up: (u64, u64),
}

impl StepModel {
    /// Creates the model of a step on this number of ranks, with `chunks` stages on each.
    ///
    /// `lists` are the lists of a named schedule, as [`Step::lists`] returns them. They are `None` for the lists of a search,
    /// which the model approximates by 1F1B. Cost: linear in the actions of the lists.
    pub fn new(step: &Step, ranks: usize, chunks: usize, lists: Option<&Schedule>) -> Self {
        // With a maximum, so that products of two counts do not overflow.
        let [ranks, chunks, micro_batches] =
            [ranks, chunks, step.per_replica()].map(|count| (count as u64).min(1 << 26));
        let mut kind = lists.map(|_| step.schedule);
        // DualPipeV has the lists of ZBV for so few micro-batches.
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
        let in_warm_up = micro_batches.saturating_sub(1).min(longest);
        Self {
            kind,
            chunks: chunks.max(1),
            periods: periods.min(1 << 40),
            whole,
            split,
            warm_up: (in_warm_up, others.max(1)),
        }
    }

    /// Returns the time of a stage per micro-batch in the steady state. A backward has the mean time of whole and split
    /// backwards.
    fn period(&self, [forward, backward, input, weight]: Programs) -> u64 {
        let halves = input + weight;
        let mean_backward = match (self.whole, self.split) {
            (_, 0) => backward,
            (0, _) => halves,
            (whole, split) => {
                let product = |a, b| u128::from(a) * u128::from(b);
                let sum = product(backward, whole) + product(halves, split);
                narrow(sum / u128::from(whole + split))
            }
        };
        let work = forward + mean_backward;
        match self.kind {
            Some(ScheduleKind::VHalf) => work
                .max(2 * forward + weight)
                .max((4 * input + weight).div_ceil(2)),
            Some(ScheduleKind::VMin) => work.max(3 * forward).max(3 * input),
            _ => work,
        }
    }

    /// Returns the contribution of a stage to the path of the first and of the last micro-batch.
    fn head(&self, [forward, _, input, weight]: Programs, period: u64) -> u64 {
        // A whole multiple needs no division of 128 bits.
        let share = |time: u64, (part, of): (u64, u64)| {
            if part % of == 0 {
                return time * (part / of);
            }
            scaled(time, part, of)
        };
        let round = forward + input;
        // Weight gradients fill a part of the warm-up, which is then not idle.
        let unfilled = || round.saturating_sub(share(weight, self.warm_up));
        match self.kind {
            Some(ScheduleKind::ZbH1 | ScheduleKind::InterleavedZb) => {
                unfilled().max(input).max(forward)
            }
            Some(ScheduleKind::ZbH2) => {
                let (filled, others) = self.warm_up;
                let beyond_h1 = (filled.saturating_sub(others), others);
                let ahead = input.saturating_sub(share(forward, beyond_h1));
                unfilled().max(ahead).max(forward)
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

    /// Returns two terms of a stage: its term of the maximum, and its term of the sum. The term of the maximum grows with each
    /// of the times. The term of the sum is at most the sum of the same terms of its blocks.
    ///
    /// `times` are the nanoseconds of the stage's `F`, `B`, `I` and `W` on its rank, including overheads of actions and
    /// messages.
    ///
    /// # Panics
    ///
    /// Panics in a build with overflow checks if the sums of the times overflow. Sums of times of up to 2^46 ns, nineteen
    /// hours, do not.
    pub fn stage(&self, times: Programs) -> (u64, u64) {
        let period = self.period(times);
        let head = self.head(times, period);
        let most = period.saturating_mul(self.periods);
        (most.saturating_sub(head), head)
    }

    /// Returns a link's term of the maximum in nanoseconds. Each micro-batch occupies the link for `busy` nanoseconds.
    pub fn link(&self, busy: u64) -> u64 {
        busy.saturating_mul(self.periods.saturating_sub(1))
    }

    /// Returns the time of a step in nanoseconds, times the number of stages per rank. This product is an exact integer, so
    /// different times remain different. `most` is the maximum of all stages and links. `sum` is the sum of the heads and of
    /// the times of all messages.
    pub fn scaled(&self, most: u64, sum: u64) -> u64 {
        most.saturating_mul(self.chunks).saturating_add(sum)
    }
}

/// Returns the nanoseconds that a message adds to the sum: 0 without bytes, because there is no message then.
pub(crate) fn message_ns(link: LinkCosts, bytes: u64) -> u64 {
    match bytes {
        0 => 0,
        _ => link.transfer(bytes).min(LONGEST_NS) + link.latency.min(LONGEST_NS),
    }
}
