//! One row: a module, how it is run, and what must hold for it.

use std::fmt;

use burn::tensor::{Device, Tensor, TensorData};
use tinderbox::Outputs;

/// What a forward gave: its float tensors, flat, with their shapes.
#[derive(Default)]
pub struct Outcome {
    tensors: Vec<(Vec<usize>, Tensor<1>)>,
}

impl Outcome {
    pub fn of<const D: usize>(tensor: Tensor<D>) -> Self {
        Self::default().and(tensor)
    }

    #[must_use]
    pub fn and<const D: usize>(mut self, tensor: Tensor<D>) -> Self {
        let shape = tensor.dims().to_vec();
        let elements = shape.iter().product::<usize>();
        self.tensors.push((shape, tensor.reshape([elements])));
        self
    }

    /// Name and value of every tensor; the name tells its position and shape.
    pub fn named(&self) -> impl Iterator<Item = (String, Tensor<1>)> {
        let tensors = self.tensors.iter().enumerate();
        tensors.map(|(index, (shape, tensor))| (format!("output {index} {shape:?}"), tensor.clone()))
    }

    /// The weighted mean of squares: every element of every output gets a gradient of its own.
    pub fn loss(&self) -> Tensor<1> {
        let losses = self.tensors.iter().map(|(_, tensor)| {
            let elements = tensor.dims()[0];
            let weights: Vec<f32> = (0..elements).map(|i| 0.5 + (i % 13) as f32 / 8.0).collect();
            let weights =
                Tensor::<1>::from_data(TensorData::new(weights, [elements]), &tensor.device());
            (tensor.clone() * tensor.clone() * weights).mean()
        });
        losses
            .reduce(|sum, loss| sum + loss)
            .expect("a forward gives a tensor")
    }

    /// What a traced forward returns.
    pub fn outputs(self) -> Outputs {
        self.named().fold(Outputs::loss(self.loss()), |outputs, (name, tensor)| {
            outputs.with(name, tensor)
        })
    }
}

/// What must hold for the trace of a module's forward.
#[derive(Clone, Copy)]
pub enum Tracing {
    /// Forward and gradients equal plain Burn's, in inference and in training.
    Equal,
    /// As `Equal`. In training the module draws random values, which the executor makes by its own
    /// generator: the recorded graph is compared as Burn's interpreter runs it, with the backend's.
    DrawsInTraining,
    /// Inference as `Equal`; a training trace is refused with this error.
    TrainingRefused(&'static str),
    /// Both traces are refused with this error.
    Refused(&'static str),
}

/// A module in one setting.
pub struct Row<M, I> {
    pub case: &'static str,
    pub init: fn(&Device) -> M,
    pub inputs: fn(&Device) -> I,
    pub forward: fn(&M, I) -> Outcome,
    pub tracing: Tracing,
}

/// A row whose trace must equal plain Burn.
pub fn row<M, I>(
    case: &'static str,
    init: fn(&Device) -> M,
    inputs: fn(&Device) -> I,
    forward: fn(&M, I) -> Outcome,
) -> Row<M, I> {
    Row {
        case,
        init,
        inputs,
        forward,
        tracing: Tracing::Equal,
    }
}

impl<M, I> Row<M, I> {
    pub fn tracing(self, tracing: Tracing) -> Self {
        Self { tracing, ..self }
    }
}

/// What was compared, and how it came out.
#[derive(Clone)]
pub enum Verdict {
    /// So many tensors were compared, and are equal bit for bit.
    Equal(usize),
    /// The same, where Burn's interpreter drew the random values.
    EqualWithBackendDraws(usize),
    /// The exact error was found.
    Refused,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Equal(count) => write!(f, "{count} equal"),
            Self::EqualWithBackendDraws(count) => write!(f, "{count} equal, backend draws"),
            Self::Refused => write!(f, "exact error"),
        }
    }
}

/// A row's verdicts.
pub struct Report {
    /// Parameters and forward, materialized.
    pub materialized: Verdict,
    /// The traced forward in inference.
    pub inference: Verdict,
    /// The traced forward in training.
    pub training: Verdict,
    /// The gradients of the joint graph.
    pub gradients: Verdict,
}

/// A row of any module.
pub trait Conforms {
    /// Path of the module's type, such as `burn_nn::modules::linear::Linear`.
    fn module(&self) -> String;
    /// What the module is set up as.
    fn case(&self) -> &'static str;
    /// Compares with plain Burn.
    fn check(&self) -> Result<Report, String>;
}

