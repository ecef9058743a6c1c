//! Batches of one type, with the trace that records their graphs.

use tinderbox_fake::Mode;

use crate::BatchError;
use crate::batch::{Batch, samples_of, split_samples};
use crate::runtime::driver::{Batches, MicroBatch};
use crate::trace::Trace;

/// The batches of a call.
pub(super) struct TracedBatches<B> {
    pub(super) trace: Trace<B>,
    pub(super) batches: Vec<B>,
}

impl<B: Batch> Batches for TracedBatches<B> {
    fn samples(&self) -> Result<Vec<usize>, BatchError> {
        self.batches.iter().map(samples_of).collect()
    }

    fn split(&self, mode: Mode, counts: &[usize]) -> Result<Vec<MicroBatch<'_>>, BatchError> {
        let (trace, samples) = (&self.trace, self.samples()?);
        let mut parts = Vec::new();
        for ((batch, samples), count) in self.batches.iter().zip(samples).zip(counts) {
            for (part, samples) in split_samples(batch, samples, *count)? {
                let (key, inputs) = Trace::key(mode, &part);
                parts.push(MicroBatch {
                    key,
                    inputs,
                    samples,
                    record: Box::new(move || {
                        trace.check_batch(&part)?;
                        let joint = trace.program(mode, &part)?;
                        trace.check_skipped(&joint, &part)?;
                        Ok(joint)
                    }),
                });
            }
        }
        Ok(parts)
    }
}
