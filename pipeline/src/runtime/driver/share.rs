//! Training steps of which each process has only the samples of its replica.

use std::collections::BTreeMap;
use std::ops::Range;

use serde::{Deserialize, Serialize};
use tinderbox_world::with_causes;

use super::batches::Batches;
use super::driver::Driver;
use super::output::Evaluation;
use super::training::Call;
use crate::error::Result;
use crate::runtime::ranks::{To, digest_of};
use crate::runtime::round::{MicroBatches, MicroInput};
use crate::schedule::RankIndex;
use crate::trace::LossOver;
use crate::{BatchError, PipelineError, StepError};

/// Returns the samples of a micro-batch: the first ones have one more than the others.
fn size(samples: usize, count: usize, micro_batch: usize) -> usize {
    samples / count + usize::from(micro_batch < samples % count)
}

impl Driver {
    /// The samples of a batch of so many that the stages of this process read.
    pub(crate) fn share(&self, samples: usize) -> Range<usize> {
        let count = self.options.micro_batches.min(samples);
        let own = self.own_micro_batches(count);
        let before = |end: usize| (0..end).map(|k| size(samples, count, k)).sum();
        before(own.start)..before(own.end)
    }

    /// The micro-batches of this process.
    fn own_micro_batches(&self, count: usize) -> Range<usize> {
        let replicas = self.settings.replicas;
        let rank = self.ranks.own();
        match rank.map(|rank| rank.index() / self.ranks_of_replica()) {
            None => 0..count,
            // It waits until another process is lost.
            Some(replica) if replica >= replicas => 0..0,
            Some(replica) => self.programs.groups(count).of_replica(replica, replicas),
        }
    }

    /// Runs a training step over the own share of a batch of so many samples.
    pub(super) fn run_share(
        &mut self,
        call: &Call<'_>,
        share: &dyn Batches,
        samples: usize,
    ) -> Result<Evaluation> {
        if samples == 0 {
            return Err(PipelineError::from(BatchError::Empty));
        }
        self.random_step()?;
        let count = self.options.micro_batches.min(samples);
        let own = self.own_micro_batches(count);
        let first = own.start;
        // Before this process waits for what the others count.
        self.announce(call, &[], Some(samples))?;
        let own = match own.len() {
            0 => Ok((Vec::new(), Vec::new())),
            count => self.prepare_share(call, share, samples, count, first),
        };
        let (own, counts) = self.counts_of_all(own, first, count)?;
        self.run(call, (MicroBatches { own, first }, counts), false, None)
    }

    /// Splits a share into the micro-batches of this process, and loads their programs.
    fn prepare_share(
        &mut self,
        call: &Call<'_>,
        share: &dyn Batches,
        samples: usize,
        count: usize,
        first: usize,
    ) -> Result<(Vec<MicroInput>, Vec<Option<f64>>)> {
        let (expected, found) = (self.share(samples).len(), share.samples()?[0]);
        if expected != found {
            return Err(PipelineError::from(BatchError::Share { expected, found }));
        }
        let parts = share.split(call.mode, &[count])?;
        self.prepare(parts, first)
    }

    /// Sends to the other processes what the micro-batches of this one count, or that its share can't be used, and returns what
    /// all count.
    fn counts_of_all(
        &mut self,
        own: Result<(Vec<MicroInput>, Vec<Option<f64>>)>,
        first: usize,
        count: usize,
    ) -> Result<(Vec<MicroInput>, Vec<Option<f64>>)> {
        let values = self.options.checks_batches;
        let own = own.and_then(|(micro_batches, counts)| {
            let digest = digest_of(&micro_batches, values);
            let digest = digest.map_err(|source| BatchError::Unread { source })?;
            let over = micro_batches.first();
            let report = ShareReport {
                first,
                counts,
                over: over.map(|micro| kind(&micro.cut.loss_over)),
                digest,
            };
            Ok((micro_batches, report))
        });
        let report = own.as_ref().map(|(_, report)| report.clone());
        let report = report.map_err(|error| with_causes(error));
        let all = self.ranks.exchange(To::All, report, Vec::new())?;
        let (micro_batches, own) = own?;
        let mut known: BTreeMap<usize, u64> = BTreeMap::new();
        let mut over = own.over;
        let mut counts = vec![None; count];
        for (rank, (report, _)) in all.into_iter().enumerate() {
            let rank = RankIndex::new(rank);
            let report = report.map_err(|reason| BatchError::ShareElsewhere { rank, reason })?;
            let first = report.first;
            if over.is_some() && report.over.is_some() && over != report.over {
                return Err(StepError::MixedLosses { micro_batch: first }.into());
            }
            over = over.or(report.over);
            if report.counts.is_empty() {
                continue;
            }
            // The ranks of a replica have the same share.
            if *known.entry(first).or_insert(report.digest) != report.digest {
                return Err(PipelineError::from(BatchError::OtherShare { rank }));
            }
            let places = counts.iter_mut().skip(first).zip(report.counts);
            places.for_each(|(place, count)| *place = count);
        }
        Ok((micro_batches, counts))
    }
}

/// What the other processes get of a share.
#[derive(Clone, Serialize, Deserialize)]
struct ShareReport {
    first: usize,
    counts: Vec<Option<f64>>,
    /// What the loss is over; nothing of a share without samples.
    over: Option<u8>,
    digest: u64,
}

fn kind<C>(over: &LossOver<C>) -> u8 {
    match over {
        LossOver::Sum => 0,
        LossOver::Samples => 1,
        LossOver::Count(_) => 2,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::split_samples;

    #[test]
    fn sizes_are_those_of_a_split_batch() {
        for (samples, count) in [(7, 4), (8, 4), (3, 3), (9, 2), (1, 1)] {
            let batch =
                burn::tensor::Tensor::<2>::zeros([samples, 1], &burn::tensor::Device::flex());
            let parts = split_samples(&batch, samples, count).unwrap();
            let expected: Vec<usize> = parts.iter().map(|(_, size)| *size).collect();
            let found: Vec<usize> = (0..count).map(|k| size(samples, count, k)).collect();
            assert_eq!(found, expected);
        }
    }
}
