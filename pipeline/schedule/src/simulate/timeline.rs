//! The times of each action of a step: predicted by the simulator or measured in a run.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use tinderbox_ids::RankIndex;

use crate::action::{Action, Message};
use crate::arithmetic::sum;

/// The unit of a timeline's times.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TimeUnit {
    /// The unit of the costs.
    Ticks,
    /// Measured times.
    Nanoseconds,
}

/// One action with its times.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Span {
    /// The action.
    pub action: Action,
    /// The time of its begin, since the beginning of the step.
    pub start: u64,
    /// The time of its end.
    pub end: u64,
}

impl Span {
    /// Returns the duration of the action. The duration of a receive is the time for which the rank waited.
    pub const fn duration(&self) -> u64 {
        self.end.saturating_sub(self.start)
    }

    /// Returns whether the rank waited for other ranks. The additions of a sum and the copies of a gather are
    /// short compared with the wait.
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
    /// Pairs of a time and the bytes held from then on, sorted by time. In a measured step, the bytes do not include the
    /// state of the optimizer and the temporary memory of programs.
    pub bytes: Vec<(u64, u64)>,
    /// The time of the programs within its actions; the rest is overhead. Zero in predicted steps.
    #[serde(default)]
    pub program_time: u64,
}

impl RankTimeline {
    /// Returns the time in which the rank was not idle.
    pub fn busy(&self) -> u64 {
        let work = self.spans.iter().filter(|span| !span.is_wait());
        sum(work.map(Span::duration))
    }

    /// Returns the start of the rank's first action that is not a wait.
    pub fn start(&self) -> u64 {
        let first = self.spans.iter().find(|span| !span.is_wait());
        first.map_or(0, |span| span.start)
    }

    /// Returns the end of the rank's last action.
    pub fn end(&self) -> u64 {
        self.spans.last().map_or(0, |span| span.end)
    }

    /// Returns the bubble: the idle time between the first start and the last end.
    pub fn bubble(&self) -> u64 {
        let span = self.end().saturating_sub(self.start());
        span.saturating_sub(self.busy())
    }

    /// Returns the most bytes that the rank held at a time.
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
    pub fn micro_batches(&self) -> usize {
        let spans = self.ranks.iter().flat_map(|rank| &rank.spans);
        let tasks = spans.flat_map(|span| span.action.tasks());
        let last = tasks.map(|task| task.micro_batch.index()).max();
        last.map_or(0, |last| last.saturating_add(1))
    }

    /// Returns the time from the beginning of the step to the end of its last action.
    pub fn makespan(&self) -> u64 {
        self.ranks.iter().map(RankTimeline::end).max().unwrap_or(0)
    }

    /// Returns the times from the end of each send to the end of its receive, where the receiver was already waiting.
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
    pub fn largest_bubble(&self) -> u64 {
        let bubbles = self.ranks.iter().map(RankTimeline::bubble);
        bubbles.max().unwrap_or(0)
    }

    /// Returns the fraction of all ranks' time in which they were idle, from 0 to 1.
    pub fn idle_share(&self) -> f64 {
        let whole = self.makespan() as f64 * self.ranks.len() as f64;
        let busy: f64 = self.ranks.iter().map(|rank| rank.busy() as f64).sum();
        if whole > 0.0 { 1.0 - busy / whole } else { 0.0 }
    }
}
