//! The times of each action of a step: predicted by the simulator or measured in a run.

use std::collections::BTreeMap;
use std::num::NonZeroU64;

use serde::{Deserialize, Serialize};

use crate::action::{Action, Message};
use crate::arithmetic::{scaled, sum};
use crate::index::RankIndex;

/// The unit of a timeline's times.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TimeUnit {
    /// The unit of the costs, whatever it is.
    Ticks,
    /// Measured times.
    Nanoseconds,
}

/// One action with its times.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Span {
    /// The action.
    pub action: Action,
    /// When it began, since the beginning of the step.
    pub start: u64,
    /// When it ended.
    pub end: u64,
}

impl Span {
    /// Returns the duration of the action; of a receive, how long the rank waited.
    #[must_use]
    pub const fn duration(&self) -> u64 {
        self.end.saturating_sub(self.start)
    }

    /// Returns whether the rank waited for other ranks. The additions of a sum and the copies of a gather are
    /// short beside the wait.
    pub const fn is_wait(&self) -> bool {
        matches!(
            self.action,
            Action::Receive(_) | Action::Sum { .. } | Action::Gather { .. }
        )
    }
}

/// The actions of one rank in a step, with their times.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct RankTimeline {
    /// Its actions in order.
    pub spans: Vec<Span>,
    /// Pairs of a time and the bytes held from then on, sorted by time.
    pub bytes: Vec<(u64, u64)>,
    /// The time of the programs within its actions; the rest is overhead. Only
    /// known for measured steps.
    #[serde(default)]
    pub program_time: u64,
}

impl RankTimeline {
    /// Returns the time in which the rank was not idle.
    #[must_use]
    pub fn busy(&self) -> u64 {
        let work = self.spans.iter().filter(|span| !span.is_wait());
        sum(work.map(Span::duration))
    }

    /// Returns when the rank began its first action that is more than waiting.
    pub fn start(&self) -> u64 {
        let first = self.spans.iter().find(|span| !span.is_wait());
        first.map_or(0, |span| span.start)
    }

    /// Returns when the rank ended its last action.
    pub fn end(&self) -> u64 {
        self.spans.last().map_or(0, |span| span.end)
    }

    /// Returns the bubble: the idle time between the first start and the last end.
    #[must_use]
    pub fn bubble(&self) -> u64 {
        let span = self.end().saturating_sub(self.start());
        span.saturating_sub(self.busy())
    }

    /// Returns the most bytes that the rank held at a time.
    #[must_use]
    pub fn peak_bytes(&self) -> u64 {
        let bytes = self.bytes.iter().map(|(_, bytes)| *bytes);
        bytes.max().unwrap_or(0)
    }
}

/// The times of each action of a step, on every rank.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Timeline {
    /// The name of the schedule.
    pub name: String,
    /// The unit of all times.
    pub unit: TimeUnit,
    /// The rank that runs each stage.
    pub stage_to_rank: Vec<RankIndex>,
    /// The timeline of each rank.
    pub ranks: Vec<RankTimeline>,
}

impl Timeline {
    /// Returns the number of micro-batches of the actions.
    #[must_use]
    pub fn micro_batches(&self) -> usize {
        let spans = self.ranks.iter().flat_map(|rank| &rank.spans);
        let tasks = spans.flat_map(|span| span.action.tasks());
        let last = tasks.map(|task| task.micro_batch.index()).max();
        last.map_or(0, |last| last.saturating_add(1))
    }

    /// Returns the time from the beginning of the step to the end of its last action.
    #[must_use]
    pub fn makespan(&self) -> u64 {
        self.ranks.iter().map(RankTimeline::end).max().unwrap_or(0)
    }

    /// Returns the times from the end of each send to the end of its receive, where the receiver was already waiting.
    #[must_use]
    pub fn latencies(&self) -> Vec<u64> {
        let spans = || self.ranks.iter().flat_map(|rank| &rank.spans);
        let sent = spans().filter_map(|span| match span.action {
            Action::Send(message) => Some((message, span.end)),
            _ => None,
        });
        let sent: BTreeMap<Message, u64> = sent.collect();
        let waited = spans().filter_map(|span| {
            let Action::Receive(message) = span.action else {
                return None;
            };
            let sent = sent.get(&message)?;
            (span.start < *sent).then(|| span.end.saturating_sub(*sent))
        });
        waited.collect()
    }

    /// Returns the largest bubble of a rank.
    #[must_use]
    pub fn largest_bubble(&self) -> u64 {
        let bubbles = self.ranks.iter().map(RankTimeline::bubble);
        bubbles.max().unwrap_or(0)
    }

    /// Returns the fraction of all ranks' time in which they were idle, from 0 to 1.
    #[must_use]
    pub fn idle_share(&self) -> f64 {
        let whole = self.makespan() as f64 * self.ranks.len() as f64;
        let busy: f64 = self.ranks.iter().map(|rank| rank.busy() as f64).sum();
        if whole > 0.0 { 1.0 - busy / whole } else { 0.0 }
    }

    /// Returns the step in another unit: every time is multiplied by `numerator` and divided by
    /// `denominator`, rounded down, so times keep their order. Bytes do not change.
    ///
    /// Used to compare a predicted step with a measured one: a tick of costs in nanoseconds is one
    /// nanosecond, and other ticks are scaled by the measured makespan over the predicted one.
    #[must_use]
    pub fn scaled(&self, numerator: u64, denominator: NonZeroU64, unit: TimeUnit) -> Self {
        let scale = |time: u64| scaled(time, numerator, denominator.get());
        let mut step = self.clone();
        step.unit = unit;
        for rank in &mut step.ranks {
            for span in &mut rank.spans {
                (span.start, span.end) = (scale(span.start), scale(span.end));
            }
            for (time, _) in &mut rank.bytes {
                *time = scale(*time);
            }
            rank.program_time = scale(rank.program_time);
        }
        step
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scaled_step_has_other_times_and_the_same_bytes() {
        let action = "0F0".parse().unwrap();
        let timeline = Timeline {
            name: "one".to_owned(),
            unit: TimeUnit::Ticks,
            stage_to_rank: vec![RankIndex::new(0)],
            ranks: vec![RankTimeline {
                spans: vec![Span {
                    action,
                    start: 3,
                    end: u64::MAX,
                }],
                bytes: vec![(3, 7)],
                program_time: 0,
            }],
        };
        let scaled = timeline.scaled(7, NonZeroU64::new(2).unwrap(), TimeUnit::Nanoseconds);
        assert_eq!(scaled.unit, TimeUnit::Nanoseconds);
        let span = scaled.ranks[0].spans[0];
        // 3 * 7 / 2 is rounded down; times that overflow are saturated.
        assert_eq!((span.start, span.end), (10, u64::MAX));
        assert_eq!(scaled.ranks[0].bytes, [(10, 7)]);
        let one = NonZeroU64::MIN;
        assert_eq!(timeline.scaled(1, one, TimeUnit::Ticks), timeline);
    }
}
