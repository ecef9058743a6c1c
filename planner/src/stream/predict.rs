//! The time of a pass.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::{StreamItem, StreamPlan, StreamState, StreamStep, StreamVisit};
use crate::{DiskRate, PlanFile, PlanStage, StreamError};

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
    /// The bytes of values that the pass makes, such as activations, and writes to read them again: they are among those that are
    /// read.
    #[serde(default)]
    pub spilled_bytes: u64,
    /// The maximum bytes in memory.
    pub peak_bytes: u64,
}

impl StreamPlan {
    /// Predicts a pass: one value is read at a time, in the order of the visits, while they compute, which takes as much longer
    /// as the cores are busy with reading. To write a value takes as long as to read it, and the next visit waits for it.
    pub fn predict(&self) -> StreamPrediction {
        let count = self.visits.len() as u64;
        let mut prediction = StreamPrediction::default();
        // What each visit takes in addition to its computation.
        let mut added_ns = Vec::new();
        for (index, visit) in self.visits.iter().enumerate() {
            let items = || visit.items.iter().copied();
            let read = self.sum(self.reads(index));
            let had = self.sum(items().filter(|item| !self.makes(index, *item)));
            let written = self.sum(items().filter(|item| self.writes(index, *item)));
            prediction.read_bytes += read.bytes;
            prediction.kept_bytes += had.bytes - read.bytes;
            prediction.spilled_bytes += written.bytes;
            prediction.read_ns += read.read_ns;
            prediction.compute_ns += visit.compute_ns;
            added_ns.push(self.disk.busy_ns(read.read_ns) + written.read_ns);
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
                    let index = (finished % count) as usize;
                    let visit = &self.visits[index];
                    let used = state.present_bytes() + visit.other_bytes;
                    prediction.peak_bytes = prediction.peak_bytes.max(used);
                    let ready = ready.pop_front();
                    let ready = ready.expect("the values of a visit fit the memory limit");
                    computed = computed.max(ready) + visit.compute_ns + added_ns[index];
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

impl PlanFile {
    /// Predicts a pass over the model, streamed with this plan within so many bytes for parameters and activations, at the rate of
    /// its machine's [disk](crate::Machine::disk): a disk that was not measured takes no time.
    ///
    /// Parameters stay as whole stages, and one of several stages counts for each of them; of a table of which few rows are read, all
    /// bytes count. So a model that is started reads less.
    ///
    /// # Errors
    ///
    /// When the limit is too low for a stage: the error has the least one.
    pub fn streamed(&self, values_bytes: u64) -> Result<StreamPrediction, StreamError> {
        let items = self.stages.iter().map(PlanStage::held_bytes);
        let items = items.map(|bytes| StreamItem {
            bytes,
            ..StreamItem::default()
        });
        let micro_batches = self.step.micro_batches.max(1) as u64;
        let visits = self.stages.iter().enumerate().map(|(index, stage)| {
            let values = [&stage.live_in, &stage.live_out, &stage.bypassing];
            let values = values.into_iter().flatten().map(|value| value.bytes);
            let kept = values.sum::<u64>().saturating_mul(micro_batches);
            StreamVisit {
                items: vec![index],
                other_bytes: kept.saturating_add(stage.costs.transient_bytes),
                compute_ns: 0,
            }
        });
        let plan = StreamPlan::new(items.collect(), visits.collect(), values_bytes)?;
        let disk = self.machine.disk.unwrap_or(DiskRate::new(u64::MAX));
        let forward = |stage: usize| self.stages[stage].costs.forward;
        let plan = plan.with_times(disk, |stage| forward(stage).saturating_mul(micro_batches));
        Ok(plan.predict())
    }
}
