//! The output of a step for metrics.

use burn::tensor::Tensor;
use burn_train::{
    ClassificationOutput, MultiLabelClassificationOutput, RegressionOutput, SequenceOutput,
};
use tinderbox::error::OutputError;
use tinderbox::{Evaluation, Outputs};

/// The output of `TrainStep` and `InferenceStep`, from which metrics are computed. The trait converts it to the outputs of a
/// forward, and the result of a pipeline's step back to it.
///
/// The outputs of burn-train implement it. An implementation for a type of your own:
///
/// ```
/// use burn::tensor::Tensor;
/// use tinderbox::error::OutputError;
/// use tinderbox::{Evaluation, Outputs};
/// use tinderbox_train::{StepItem, loss_of};
///
/// struct Distances {
///     loss: Tensor<1>,
///     distances: Tensor<1>,
/// }
///
/// impl StepItem for Distances {
///     fn into_outputs(self) -> Outputs {
///         Outputs::loss(self.loss).with("distances", self.distances)
///     }
///
///     fn from_outputs(step: &Evaluation) -> Result<Self, OutputError> {
///         Ok(Self {
///             loss: loss_of(step),
///             distances: step.tensor("distances")?,
///         })
///     }
/// }
/// ```
pub trait StepItem: Sized {
    /// Returns the outputs of the forward: the loss, and the other tensors with names.
    fn into_outputs(self) -> Outputs;

    /// Returns the item of a step or an evaluation of a whole batch.
    ///
    /// # Errors
    ///
    /// If the forward has returned other outputs.
    fn from_outputs(step: &Evaluation) -> Result<Self, OutputError>;
}

/// Returns the loss of a step as a tensor on the CPU, of shape `[1]`; NaN if the forward has none.
pub fn loss_of(step: &Evaluation) -> Tensor<1> {
    let loss = step.loss.unwrap_or(f64::NAN);
    Tensor::from_floats([loss as f32], &burn::tensor::Device::flex())
}

macro_rules! output_and_targets {
    ($($item:ident),+) => {$(
        impl StepItem for $item {
            fn into_outputs(self) -> Outputs {
                Outputs::loss(self.loss)
                    .with("output", self.output)
                    .with("targets", self.targets)
            }

            fn from_outputs(step: &Evaluation) -> Result<Self, OutputError> {
                Ok(Self {
                    loss: loss_of(step),
                    output: step.tensor_of("output")?,
                    targets: step.tensor_of("targets")?,
                })
            }
        }
    )+};
}

output_and_targets! { ClassificationOutput, MultiLabelClassificationOutput, RegressionOutput }

impl StepItem for SequenceOutput {
    fn into_outputs(self) -> Outputs {
        let outputs = Outputs::loss(self.loss)
            .with("logits", self.logits)
            .with("targets", self.targets);
        match self.predictions {
            Some(predictions) => outputs.with("predictions", predictions),
            None => outputs,
        }
    }

    fn from_outputs(step: &Evaluation) -> Result<Self, OutputError> {
        let predictions = step.output("predictions");
        let predictions = predictions.map(|_| step.tensor_of("predictions"));
        Ok(Self {
            loss: loss_of(step),
            logits: step.tensor("logits")?,
            predictions: predictions.transpose()?,
            targets: step.tensor_of("targets")?,
        })
    }
}
