//! Training steps of which each process has only the samples of its replica.

use std::collections::BTreeMap;
use std::ops::Range;

use burn::module::Module;
use burn::optim::lr_scheduler::module_lr_scheduler::ModuleLearningRate;
use serde::{Deserialize, Serialize};
use tinderbox_fake::Mode;
use tinderbox_world::with_causes;

use super::output::StepOutput;
use super::pipeline::Pipeline;
use super::remote::{To, digest_of};
use super::round::MicroInput;
use super::training::Work;
use crate::batch::{Batch, samples_of, split_samples};
use crate::schedule::RankIndex;
use crate::trace::LossOver;
use crate::{BatchError, PipelineError};

/// Returns the samples of a micro-batch: the first ones have one more than the others.
fn size(samples: usize, count: usize, micro_batch: usize) -> usize {
    samples / count + usize::from(micro_batch < samples % count)
}

impl<M: Module + Sync + 'static, B: Batch> Pipeline<M, B> {
    /// Returns the samples, of a batch of all replicas with this many, that the stages of this process read: a range of
    /// positions. Without a [world](crate::PipelineBuilder::world) of processes, or without
    /// [replicas](crate::Plan::replicas), all of them. Empty if the batch has fewer samples than there are replicas, and none
    /// for this one.
    ///
    /// A loader that counts the samples of all replicas, and reads at this position the samples of its share, continues
    /// with the same samples when a run is resumed with another number of replicas.
    pub fn share(&self, samples: usize) -> Range<usize> {
        let count = self.micro_batches.min(samples);
        let own = self.own_micro_batches(count);
        let before = |end: usize| (0..end).map(|k| size(samples, count, k)).sum();
        before(own.start)..before(own.end)
    }

    /// The micro-batches of this process.
    fn own_micro_batches(&self, count: usize) -> Range<usize> {
        match self.crew.own() {
            None => 0..count,
            Some(rank) => {
                let replica = rank.index() / self.plan.ranks().max(1);
                if replica >= self.settings.replicas {
                    // It waits until another process is lost.
                    return 0..0;
                }
                let groups = self.programs.groups(count);
                groups.of_replica(replica, self.settings.replicas)
            }
        }
    }

    /// Runs one training step as [`step`](Self::step) does, over a batch of this many samples of which each process passes only
    /// its [share](Self::share), so that none loads what it does not use. Losses and outputs are the whole batch's.
    ///
    /// The ranks of a replica pass the same share; its shapes are compared, and its values with
    /// [`check_batches`](crate::PipelineBuilder::check_batches). A share without samples may be any batch.
    /// A batch with fewer samples than micro-batches needs a schedule that exists for as many.
    ///
    /// Cost: one more small message to every process, with what the micro-batches count.
    ///
    /// # Errors
    ///
    /// As [`step`](Self::step); [`BatchError::Share`] when the share has another number of samples,
    /// [`BatchError::ShareElsewhere`] when the share of another process can't be used, and [`BatchError::OtherShare`] when ranks
    /// of one replica have different ones: nothing was run then.
    pub fn step_share(
        &mut self,
        lr: impl Into<ModuleLearningRate>,
        share: B,
        samples: usize,
    ) -> Result<StepOutput, PipelineError> {
        if self.recovery.is_some() && self.settings.replicas > 1 {
            return Err(PipelineError::ShareRecovery);
        }
        let lr = self.watched_rates(lr);
        self.training(move |pipeline| pipeline.train_share(&lr, &share, samples))
    }

    fn train_share(
        &mut self,
        lr: &ModuleLearningRate,
        share: &B,
        samples: usize,
    ) -> Result<StepOutput, PipelineError> {
        self.train(lr, |pipeline, lr| {
            if samples == 0 {
                return Err(PipelineError::from(BatchError::Empty));
            }
            let count = pipeline.micro_batches.min(samples);
            let first = pipeline.own_micro_batches(count).start;
            let own = pipeline.split_share(share, samples);
            let sizes = (0..count).map(|k| size(samples, count, k));
            let work = Work {
                first,
                sizes: sizes.collect(),
                of_share: Some(samples),
                own,
            };
            pipeline.run(Mode::Training, lr.clone(), work, None)
        })
    }

    /// Splits a share into the micro-batches of this process.
    fn split_share(&self, share: &B, samples: usize) -> Result<Vec<(B, usize)>, PipelineError> {
        let count = self
            .own_micro_batches(self.micro_batches.min(samples))
            .len();
        if count == 0 {
            return Ok(Vec::new());
        }
        let (expected, found) = (self.share(samples).len(), samples_of(share)?);
        if expected != found {
            return Err(PipelineError::from(BatchError::Share { expected, found }));
        }
        Ok(split_samples(share, found, count)?)
    }

    /// Sends to the other processes what the micro-batches of this one count, or that its share can't be used, and returns what
    /// all count.
    pub(super) fn counts_of_all(
        &mut self,
        own: Result<(Vec<MicroInput>, Vec<Option<f64>>), PipelineError>,
        first: usize,
        count: usize,
    ) -> Result<(Vec<MicroInput>, Vec<Option<f64>>), PipelineError> {
        let values = self.checks_batches;
        let own = own.and_then(|(micro_batches, counts)| {
            let digest = digest_of(&micro_batches, values);
            let digest = digest.map_err(|source| BatchError::Unread { source })?;
            let over = micro_batches
                .first()
                .map(|micro| kind(&micro.cut.loss_over));
            let report = ShareReport {
                first,
                counts,
                over,
                digest,
            };
            Ok((micro_batches, report))
        });
        let report = match &own {
            Ok((_, report)) => Ok(report.clone()),
            Err(error) => Err(with_causes(error)),
        };
        let all = self.crew.exchange(To::All, report, Vec::new())?;
        let (micro_batches, own) = own?;
        let mut known: BTreeMap<usize, u64> = BTreeMap::new();
        let mut over = own.over;
        let mut counts = vec![None; count];
        for (rank, (report, _)) in all.into_iter().enumerate() {
            let rank = RankIndex::new(rank);
            let report = report.map_err(|reason| BatchError::ShareElsewhere { rank, reason })?;
            let first = report.first;
            if over.is_some() && report.over.is_some() && over != report.over {
                return Err(PipelineError::MixedLosses { micro_batch: first });
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
