//! Evaluations of the model on batches that it is not trained on.

use super::data::NextBatch;

/// The result of an evaluation of several batches.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Validation {
    /// The mean of the losses of the batches, weighted by their samples.
    pub loss: f64,
    /// The number of samples.
    pub samples: u64,
    /// The number of batches.
    pub batches: u64,
}

impl Validation {
    /// Adds the loss of a batch. Before [`mean`](Self::mean), `loss` is the sum over all samples.
    pub(super) fn add(&mut self, loss: f64, samples: u64) {
        self.loss += loss * samples as f64;
        self.samples += samples;
        self.batches += 1;
    }

    /// Divides the sum by the number of samples; returns `None` without a sample.
    pub(super) fn mean(self) -> Option<Self> {
        let loss = self.loss / self.samples as f64;
        (self.samples > 0).then_some(Self { loss, ..self })
    }
}

/// The batches of an evaluation.
pub(super) type ValidationBatches<'a, B> = Box<dyn Iterator<Item = NextBatch<B>> + 'a>;

/// Evaluations at an interval of steps.
pub(super) struct Periodic<'a, B> {
    pub(super) every: u64,
    pub(super) batches: Box<dyn FnMut() -> ValidationBatches<'a, B> + 'a>,
}
