//! The memory of each rank at its peak, by purpose.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};
use tinderbox_schedule::arithmetic::{add, sum};
use tinderbox_schedule::{Action, Costs, Message, Schedule, Span, Timeline, peak_bytes};

use super::StageBytes;

/// Bytes of a rank at its peak. Each part has its own peak, so the sum is an upper bound.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct RankMemory {
    /// Parameters, copies of other stages' parameters included.
    pub parameters: u64,
    /// Gradients.
    pub gradients: u64,
    /// State of the optimizer.
    pub optimizer: u64,
    /// Values that micro-batches in flight keep for their backwards.
    pub activations: u64,
    /// Values that a program holds while it runs.
    pub transient: u64,
    /// Messages from other ranks that were not read yet.
    pub buffers: u64,
}

/// The number of temporary values in the update of a parameter by one of Burn's optimizers, without the parameter, its
/// gradient and the optimizer's state. With 4, a process that trained with AdamW was a hundredth above its limit.
pub const UPDATE_VALUES: u64 = 6;

/// A part of a rank's memory: its name, and its bytes.
type Part = (&'static str, fn(&RankMemory) -> u64);

impl RankMemory {
    /// Its parts by name.
    pub const PARTS: [Part; 6] = [
        ("parameters", |memory| memory.parameters),
        ("gradients", |memory| memory.gradients),
        ("optimizer", |memory| memory.optimizer),
        ("activations", |memory| memory.activations),
        ("transient", |memory| memory.transient),
        ("buffers", |memory| memory.buffers),
    ];

    /// Returns the sum of all parts.
    pub fn total(&self) -> u64 {
        sum(Self::PARTS.iter().map(|(_, bytes)| bytes(self)))
    }
}

/// The memory of every rank under a schedule. The part of a rank's peak above the given bytes of its stages counts as
/// activations.
pub(crate) fn memory_of_ranks(
    schedule: &Schedule,
    timeline: &Timeline,
    costs: &Costs,
    bytes: &[StageBytes],
) -> Vec<RankMemory> {
    let peaks = peak_bytes(schedule, costs);
    let mut ranks = vec![RankMemory::default(); peaks.len()];
    for (stage, rank) in costs.stages.iter().zip(&schedule.stage_to_rank) {
        let transient = &mut ranks[rank.index()].transient;
        *transient = stage.transient_bytes.max(*transient);
    }
    for (stage, rank) in bytes.iter().zip(&schedule.stage_to_rank) {
        let memory = &mut ranks[rank.index()];
        add(&mut memory.parameters, stage.parameters);
        add(&mut memory.gradients, stage.gradients);
        add(&mut memory.optimizer, stage.optimizer);
    }
    let waiting = waiting_bytes(timeline, costs);
    for ((memory, peak), buffers) in ranks.iter_mut().zip(peaks).zip(waiting) {
        let resident = sum([memory.parameters, memory.gradients, memory.optimizer]);
        memory.activations = peak.saturating_sub(resident);
        memory.buffers = buffers;
    }
    ranks
}

/// The maximum bytes of messages that wait on each rank to be read, while its actions run.
fn waiting_bytes(timeline: &Timeline, costs: &Costs) -> Vec<u64> {
    let mut sent: HashMap<Message, u64> = HashMap::new();
    for span in timeline.ranks.iter().flat_map(|rank| &rank.spans) {
        if let Action::Send(message) = span.action {
            sent.insert(message, span.end);
        }
    }
    let most_of = |spans: &[Span]| {
        let mut events: Vec<(u64, bool, u64)> = Vec::new();
        for span in spans {
            if let Action::Receive(message) = span.action
                && let Some(come) = sent.get(&message)
            {
                let bytes = message.bytes(&costs.message_bytes);
                events.push((*come, true, bytes));
                events.push((span.end.max(*come), false, bytes));
            }
        }
        // Messages that are read at an instant free their memory before others arrive.
        events.sort_unstable();
        let (mut held, mut most) = (0_u64, 0);
        for (_, comes, bytes) in events {
            held = match comes {
                true => held.saturating_add(bytes),
                false => held.saturating_sub(bytes),
            };
            most = most.max(held);
        }
        most
    };
    let ranks = timeline.ranks.iter();
    ranks.map(|rank| most_of(&rank.spans)).collect()
}
