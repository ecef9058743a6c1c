//! The outputs of a forward.

use burn::tensor::Tensor;
use burn::tensor::kind::{Basic, Numeric};
use tinderbox_fake::DynTensor;

use crate::batch::{Batch, leaves};

/// The loss and the named outputs of a forward.
///
/// A pipeline computes the loss of a batch from the losses of its micro-batches, so it needs to know the
/// reduction of the loss:
///
/// | the loss is | write | loss of the batch |
/// |---|---|---|
/// | a mean over the samples | [`Outputs::loss`] | each micro-batch weighted by its fraction of the samples |
/// | a mean over other items (tokens) | [`weighted_by`](Self::weighted_by) | each weighted by its fraction of the count |
/// | a sum | [`Outputs::sum`] | the sum |
///
/// The loss and the gradients of a step then equal the loss and the gradients of the whole batch in plain Burn, up to the
/// order of additions.
///
/// If the loss has several terms, each must be a mean or a sum over the same items. A term that depends on the
/// parameters alone, such as a weight penalty, belongs to a mean, because a sum adds it once for each
/// micro-batch.
///
/// Some losses can't be computed from micro-batches:
///
/// - losses that relate samples of a batch to each other: a contrastive loss over all pairs, a variance over the batch, a
///   ranking loss;
/// - functions of a mean or sum over the batch that are not linear: the root of a mean square, the Dice loss over a
///   batch, the balance of a mixture of experts;
/// - a sum of a mean over the samples and a mean over other items.
///
/// Train such losses with one micro-batch per step, or define them over a micro-batch. That is another
/// loss: the negatives of a sample are then the negatives in its own micro-batch.
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct Outputs {
    pub loss: Option<Tensor<1>>,
    pub over: LossOver,
    /// Whether a sum also has a count.
    pub is_contradictory: bool,
    pub named: Vec<(String, DynTensor)>,
    /// The new values of carried tensors, with their names in the structure that contains them.
    pub carried: Vec<(String, DynTensor)>,
}

/// The items over which a loss is a mean or a sum.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LossOver<V = DynTensor> {
    /// A mean over the samples.
    #[default]
    Samples,
    /// A mean over a number of items, which is this scalar.
    Count(V),
    /// A sum.
    Sum,
}

impl<V> LossOver<V> {
    pub fn try_map<W, E>(self, change: impl FnOnce(V) -> Result<W, E>) -> Result<LossOver<W>, E> {
        Ok(match self {
            Self::Samples => LossOver::Samples,
            Self::Count(count) => LossOver::Count(change(count)?),
            Self::Sum => LossOver::Sum,
        })
    }
}

impl Outputs {
    /// Creates outputs with a loss of one element: the mean over the samples of the batch, or over the
    /// count of [`weighted_by`](Self::weighted_by).
    pub fn loss(loss: Tensor<1>) -> Self {
        Self {
            loss: Some(loss),
            ..Self::default()
        }
    }

    /// Creates outputs with a loss of one element that is a sum over the samples of the batch, or over
    /// parts of the samples.
    pub fn sum(loss: Tensor<1>) -> Self {
        Self {
            over: LossOver::Sum,
            ..Self::loss(loss)
        }
    }

    /// Declares the loss as a mean over `count` items: a scalar tensor of one element, computed only
    /// from the batch, such as the number of tokens that are not padding, or the sum of the class
    /// weights of the targets.
    ///
    /// Before each step the pipeline computes the counts of all micro-batches on the CPU, and weights
    /// each loss by its fraction of their sum. A micro-batch whose count is 0 adds nothing, for any
    /// loss. An int count is exact; a float count must have 32 or 64 bits. A trace fails if a
    /// [`sum`](Self::sum) has a count.
    ///
    /// ```
    /// # use burn::nn::{Linear, loss::CrossEntropyLossConfig};
    /// # use burn::tensor::{Int, Tensor};
    /// # use tinderbox_graph::Outputs;
    /// const PAD: usize = 0;
    ///
    /// fn forward(model: &Linear, (x, targets): (Tensor<2>, Tensor<1, Int>)) -> Outputs {
    ///     let loss = CrossEntropyLossConfig::new()
    ///         .with_pad_tokens(Some(vec![PAD]))
    ///         .init(&x.device());
    ///     let count = targets.clone().not_equal_elem(PAD as i64).int().sum();
    ///     Outputs::loss(loss.forward(model.forward(x), targets)).weighted_by(count)
    /// }
    /// ```
    pub fn weighted_by<K: Numeric>(self, count: Tensor<1, K>) -> Self {
        Self {
            is_contradictory: self.is_contradictory || matches!(self.over, LossOver::Sum),
            over: LossOver::Count(count.into()),
            ..self
        }
    }

    /// Creates outputs without a loss, for forward-only programs.
    pub fn none() -> Self {
        Self::default()
    }

    /// Returns the loss, for use of the same forward outside of a pipeline.
    pub fn into_loss(self) -> Option<Tensor<1>> {
        self.loss
    }

    /// Adds a named output. Names may have dots for nesting. A repeated name replaces the earlier
    /// output.
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

    /// Sets the new values of a [`Carried`](crate::Carried) part of the batch: the same structure, with tensors of
    /// the same shapes and dtypes. A forward calls it once for each such part, in the order of the batch; a trace
    /// fails if a tensor is missing or has another type.
    ///
    /// In mixed precision the new values have the 16-bit dtype, so the batch must have it too.
    pub fn carry(mut self, values: impl Batch) -> Self {
        let values = leaves(&values).into_iter();
        self.carried
            .extend(values.map(|(name, tensor)| (name.name, tensor)));
        self
    }
}
