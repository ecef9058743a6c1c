//! What a forward gives back.

use burn::tensor::{Tensor, kind::Basic};
use tinderbox_fake::DynTensor;

/// The loss and the named outputs of a forward.
#[derive(Clone, Debug, Default)]
pub struct Outputs {
    pub(crate) loss: Option<Tensor<1>>,
    pub(crate) named: Vec<(String, DynTensor)>,
}

impl Outputs {
    /// A forward with a loss of one element: the mean over the samples of the batch.
    pub fn loss(loss: Tensor<1>) -> Self {
        Self {
            loss: Some(loss),
            named: Vec::new(),
        }
    }

    /// A forward without a loss: it can be run forward only.
    pub fn none() -> Self {
        Self::default()
    }

    /// The loss, for use of the same forward outside of a pipeline.
    pub fn into_loss(self) -> Option<Tensor<1>> {
        self.loss
    }

    /// Adds a named output. Names may have dots for nesting. A name used twice keeps the later one.
    #[must_use]
    pub fn with<const D: usize, K: Basic>(
        mut self,
        name: impl Into<String>,
        tensor: Tensor<D, K>,
    ) -> Self {
        let name = name.into();
        self.named.retain(|(known, _)| *known != name);
        self.named.push((name, tensor.into()));
        self
    }
}
