//! The batches of a call, whatever their type, and the weights of their micro-batches in the loss.

use std::sync::Arc;

use tinderbox_deferred::RunContext;
use tinderbox_deferred::random::Seed;
use tinderbox_fake::{DynTensor, Mode};

use crate::error::Result;
use crate::runtime::round::{MicroBatches, MicroInput};
use crate::{BatchError, JointGraph, ListsError, LossOver, PipelineError, ProgramKey, StepError};

/// The batches of a step or an evaluation.
pub(crate) trait Batches: Send + Sync {
    /// Returns the number of samples of each batch.
    fn samples(&self) -> Result<Vec<usize>, BatchError>;

    /// Splits each batch into its number of micro-batches.
    fn split(&self, mode: Mode, counts: &[usize]) -> Result<Vec<MicroBatch<'_>>, BatchError>;
}

/// A part of a batch.
pub(crate) struct MicroBatch<'a> {
    /// The key of its programs.
    pub(crate) key: ProgramKey,
    /// Its tensors.
    pub(crate) inputs: Vec<DynTensor>,
    /// Its number of samples.
    pub(crate) samples: usize,
    /// Checks it, and returns its graph.
    pub(crate) record: Box<Record<'a>>,
}

/// Records the graph of a micro-batch.
type Record<'a> = dyn Fn() -> Result<Arc<JointGraph>, StepError> + 'a;

/// Refuses a batch with more samples than the traced step has.
pub(super) fn check_samples(traced: Option<usize>, found: usize) -> Result<(), StepError> {
    match traced.filter(|planned| found > *planned) {
        Some(planned) => Err(StepError::MoreSamples { planned, found }),
        None => Ok(()),
    }
}

/// Splits each batch of a step into its number of micro-batches, and runs them: into fewer and fewer if a batch has fewer
/// samples than micro-batches, until the schedule can be generated, unless that is for a fixed number of them.
pub(crate) fn split_and_run<T>(
    batches: &dyn Batches,
    (micro_batches, traced, is_written): (usize, Option<usize>, bool),
    mut run: impl FnMut(Vec<MicroBatch<'_>>, Vec<usize>) -> Result<T>,
) -> Result<T> {
    let samples = batches.samples()?;
    let (Some(smallest), Some(largest)) = (samples.iter().min(), samples.iter().max()) else {
        return Err(BatchError::NoBatches.into());
    };
    let (smallest, largest) = (*smallest, *largest);
    check_samples(traced, largest)?;
    let is_short = smallest < micro_batches;
    if is_short && is_written {
        return Err(BatchError::TooFewForSchedule {
            samples: smallest,
            micro_batches,
        }
        .into());
    }
    let most = micro_batches.min(largest);
    let least = if is_short { most.min(1) } else { most };
    let mut first = None;
    for count in (least..=most).rev() {
        let counts: Vec<usize> = samples.iter().map(|of| count.min(*of)).collect();
        match run(batches.split(Mode::Training, &counts)?, counts) {
            // Detected before anything ran.
            Err(error @ PipelineError::Lists(ListsError::Generate(_) | ListsError::Lists(_))) => {
                first.get_or_insert(error);
            }
            result => return result,
        }
    }
    Err(first.unwrap_or(BatchError::NoBatches.into()))
}

/// The micro-batches of a round that this process has, and what each micro-batch of all replicas counts.
pub(crate) type Work = (MicroBatches, Vec<Option<f64>>);

/// The samples of each micro-batch, or what it counts; `None` for sums.
pub(super) fn counts(
    micro_batches: &MicroBatches,
    (seed, step): (Seed, u32),
) -> Result<Vec<Option<f64>>, StepError> {
    let MicroBatches { own, first } = micro_batches;
    let mut counts = Vec::with_capacity(own.len());
    for (micro, micro_batch) in own.iter().zip(*first..) {
        counts.push(match &micro.cut.loss_over {
            LossOver::Sum => None,
            LossOver::Samples => Some(micro.samples as f64),
            LossOver::Count(count) => {
                let context = RunContext {
                    seed,
                    step,
                    micro_batch: micro_batch as u32,
                };
                let count = count.of(&micro.inputs, &context);
                let count = count.map_err(|source| StepError::Count {
                    micro_batch,
                    source: Box::new(source),
                })?;
                if !(count >= 0.0 && count.is_finite()) {
                    return Err(StepError::BadCount { micro_batch, count });
                }
                Some(count)
            }
        });
    }
    let kind = |micro: &MicroInput| std::mem::discriminant(&micro.cut.loss_over);
    if let Some(other) = own.iter().position(|micro| kind(micro) != kind(&own[0])) {
        let micro_batch = first + other;
        return Err(StepError::MixedLosses { micro_batch });
    }
    Ok(counts)
}

/// The weight of each micro-batch of a batch: 1 for a sum, otherwise its fraction of the samples or of the count.
pub(crate) fn weights(counts: Vec<Option<f64>>) -> Result<Vec<f64>, StepError> {
    let total: f64 = counts.iter().flatten().sum();
    if total == 0.0 && counts.iter().any(Option::is_some) {
        return Err(StepError::NothingCounts);
    }
    let weight = |count: Option<f64>| count.map_or(1.0, |count| count / total);
    Ok(counts.into_iter().map(weight).collect())
}
