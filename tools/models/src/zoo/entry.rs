//! A model of the zoo, and the trait for code that runs on every model.

use burn::module::Module;
use burn::nn::loss::CrossEntropyLossConfig;
use burn::tensor::{Device, Int, Tensor};
use tinderbox::{Batch, Outputs};

use crate::split::Split;

/// The number of samples of every batch.
pub const SAMPLES: usize = 8;

/// A model with batches to train it on.
pub struct Entry<M, B> {
    pub init: fn(&Device) -> M,
    pub forward: fn(&M, B) -> Outputs,
    pub batch: fn(u64, &Device) -> B,
    /// The number of items of a batch over which its loss is a mean; `None` for the number of samples.
    pub count: Option<fn(&B) -> f64>,
}

impl<M, B> Clone for Entry<M, B> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<M, B> Copy for Entry<M, B> {}

/// Code that runs on every model, whatever its types.
pub trait Visit {
    fn visit<M: Module + Sync + 'static, B: Batch + Split>(&mut self, entry: Entry<M, B>);
}

/// Returns the mean cross entropy of logits and classes.
pub fn cross_entropy(logits: Tensor<2>, classes: Tensor<1, Int>) -> Tensor<1> {
    let loss = CrossEntropyLossConfig::new();
    loss.init(&logits.device()).forward(logits, classes)
}
