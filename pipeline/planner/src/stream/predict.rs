//! The time of a pass.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use serde::Serialize;

use super::{StreamItem, StreamPlan, StreamState, StreamStep, StreamVisit};
use crate::{DiskRate, Plan, PlanStage, StreamError};

/// The predicted time and bytes of a pass, in every pass except the first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
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
    /// The bytes of values that the pass computes, such as activations, and writes to read them again. The bytes that are read
    /// include them.
    pub spilled_bytes: u64,
    /// The maximum bytes in memory.
    pub peak_bytes: u64,
}

impl StreamPlan {
    /// Predicts a pass whose visits compute for `compute_ns` each.
    ///
    /// One value is read from the disk at a time, in the order of the visits, while they compute. A computation takes longer by
    /// the time for which reads use its cores. Writing a value takes as long as reading it, and the next visit waits for the
    /// write.
    pub fn predict(&self, disk: DiskRate, compute_ns: impl Fn(usize) -> u64) -> StreamPrediction {
        let count = self.visits.len() as u64;
        let mut prediction = StreamPrediction::default();
        // The time of each visit, with its writes.
        let mut visit_ns = Vec::new();
        for (index, visit) in self.visits.iter().enumerate() {
            let items = || visit.items.iter().copied();
            let read = self.sum(self.reads(index));
            let had = self.sum(items().filter(|item| !self.makes(index, *item)));
            let written = self.sum(items().filter(|item| self.writes(index, *item)));
            let (read_ns, compute_ns) = (disk.read_ns(read), compute_ns(index));
            prediction.read_bytes += read;
            prediction.kept_bytes += had - read;
            prediction.spilled_bytes += written;
            prediction.read_ns += read_ns;
            prediction.compute_ns += compute_ns;
            visit_ns.push(compute_ns + disk.busy_ns(read_ns) + disk.read_ns(written));
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
                StreamStep::Read { item, .. } => reader += disk.read_ns(self.item_bytes(item)),
                StreamStep::Ready { .. } => ready.push_back(reader),
                StreamStep::Wait => {
                    let index = (finished % count) as usize;
                    let used = state.present_bytes() + self.visits[index].other_bytes;
                    prediction.peak_bytes = prediction.peak_bytes.max(used);
                    let ready = ready.pop_front();
                    let ready = ready.expect("the values of a visit fit the memory limit");
                    computed = computed.max(ready) + visit_ns[index];
                    state.finish();
                    // A read that waited for memory begins now.
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

impl Plan {
    /// Predicts a pass over the model, streamed with this plan within `values_bytes` for parameters and activations, at the
    /// rate of its machine's [disk](crate::Machine::disk). A disk that was not measured takes no time.
    ///
    /// Parameters stay as whole stages, a parameter of several stages counts for each of them, and all bytes of a table count
    /// even if few rows are read. A started model therefore reads less.
    ///
    /// # Errors
    ///
    /// When the limit is too low for a stage: the error has the least limit.
    pub fn predict_streamed(&self, values_bytes: u64) -> Result<StreamPrediction, StreamError> {
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
            }
        });
        let plan = StreamPlan::new(items.collect(), visits.collect(), values_bytes)?;
        let disk = self.machine.disk.unwrap_or(DiskRate::new(u64::MAX));
        let forward = |stage: usize| self.stages[stage].costs.forward;
        Ok(plan.predict(disk, |stage| forward(stage).saturating_mul(micro_batches)))
    }
}
