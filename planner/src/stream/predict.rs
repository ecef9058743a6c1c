//! The time of a pass.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::{StreamPlan, StreamState, StreamStep};

/// The predicted time and bytes of a pass, in every pass but the first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct StreamPrediction {
    /// The nanoseconds of a pass.
    pub pass_ns: u64,
    /// The nanoseconds of reading.
    pub read_ns: u64,
    /// The nanoseconds of computing.
    pub compute_ns: u64,
    /// The bytes, in memory, of the values that are read.
    pub read_bytes: u64,
    /// The bytes of the values that are not read: they stay in memory from one use to the next.
    pub kept_bytes: u64,
    /// The maximum bytes in memory.
    pub peak_bytes: u64,
}

impl StreamPlan {
    /// Predicts a pass: one value is read at a time, in the order of the visits, while they compute.
    pub fn predict(&self) -> StreamPrediction {
        let count = self.visits.len() as u64;
        let mut prediction = StreamPrediction::default();
        for (index, visit) in self.visits.iter().enumerate() {
            let reads = self.reads(index);
            let sum = |of: &[usize]| -> u64 { of.iter().map(|item| self.items[*item].bytes).sum() };
            let read = sum(&reads);
            prediction.read_bytes += read;
            prediction.kept_bytes += sum(&visit.items) - read;
            let times = reads.iter().map(|item| self.items[*item].read_ns);
            prediction.read_ns += times.sum::<u64>();
            prediction.compute_ns += visit.compute_ns;
        }
        if count == 0 {
            return prediction;
        }
        /// The first pass reads everything, and the second may still wait for it.
        const PASSES: u64 = 4;
        let mut state = StreamState::new(Arc::new(self.clone()), &BTreeSet::new());
        let (mut reader, mut computed) = (0_u64, 0_u64);
        let (mut ready, mut ends) = (VecDeque::new(), Vec::new());
        let mut finished = 0;
        while finished < count * PASSES {
            match state.step() {
                StreamStep::Read { item, .. } => reader += self.items[item].read_ns,
                StreamStep::Ready { .. } => ready.push_back(reader),
                StreamStep::Wait => {
                    let visit = &self.visits[(finished % count) as usize];
                    let used = state.present_bytes() + visit.other_bytes;
                    prediction.peak_bytes = prediction.peak_bytes.max(used);
                    let ready = ready.pop_front();
                    let ready = ready.expect("the values of a visit fit the memory limit");
                    computed = computed.max(ready) + visit.compute_ns;
                    state.finish();
                    // What waited for room begins now.
                    reader = reader.max(computed);
                    finished += 1;
                    if finished % count == 0 {
                        ends.push(computed);
                    }
                }
            }
        }
        if let [.., before, last] = ends[..] {
            prediction.pass_ns = last - before;
        }
        prediction
    }
}
