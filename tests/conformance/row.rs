//! A row: a module, its execution, and the expected result.

use std::any::type_name;
use std::sync::Arc;

use burn::module::{Module, ModuleDisplay};
use burn::tensor::{Device, Tensor, TensorData};
use tinderbox::deferred::ParameterTable;
use tinderbox::deferred::random::Seed;
use tinderbox::error::{DeferredError, TraceError};
use tinderbox::fake::Mode;
use tinderbox::pipeline::batch_tensors;
use tinderbox::{Deferred, DynTensor, Outputs, Rng, Traceable};
use tinderbox_pipeline::JointGraph;

use crate::eager::{self, Eager};
use crate::inputs::Inputs;
use crate::probe::Probe;

/// Seed of the initialization.
const SEED: u64 = 7;
/// Seed of a forward that draws random values.
pub const FORWARD_SEED: u64 = 11;

/// The results of a forward: its float tensors, flat, with their shapes.
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

    /// Returns name and value of every tensor; the name contains its position and shape.
    pub fn named(&self) -> impl Iterator<Item = (String, Tensor<1>)> {
        let tensors = self.tensors.iter().enumerate();
        tensors
            .map(|(index, (shape, tensor))| (format!("output {index} {shape:?}"), tensor.clone()))
    }

    /// Returns the weighted mean of squares, so that every element of every output has a distinct gradient.
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

    /// The return value of a traced forward.
    fn into_outputs(self) -> Outputs {
        self.named()
            .fold(Outputs::loss(self.loss()), |outputs, (name, tensor)| {
                outputs.with(name, tensor)
            })
    }
}

/// The expected result for the trace of a module's forward.
#[derive(Clone, Copy)]
pub enum Tracing {
    /// Forward and gradients equal plain Burn's, in inference and in training.
    Equal,
    /// As `Equal`. In training the module draws random values, for which the executor has its own generator:
    /// the recorded graph is compared as run by Burn's interpreter, with the backend's generator.
    DrawsInTraining,
    /// Inference as `Equal`; training can't be compared, for this reason.
    InferenceOnly(&'static str),
    /// Both traces are rejected with this error.
    Refused(&'static str),
}

/// A module in one configuration.
pub struct Row<M, I> {
    case: &'static str,
    init: fn(&Device) -> M,
    inputs: fn(&Device) -> I,
    forward: fn(&M, I) -> Outcome,
    tracing: Tracing,
}

/// Creates a row whose trace must equal plain Burn.
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

/// The operations of a row.
pub trait Subject {
    /// Returns the path of the module's type, such as `burn_nn::modules::linear::Linear`.
    fn module(&self) -> String;

    /// Returns the configuration of the module.
    fn case(&self) -> &'static str;

    /// Returns the expected result for its trace.
    fn tracing(&self) -> Tracing;

    /// Returns the inputs, in order.
    fn inputs(&self) -> Vec<DynTensor>;

    /// Runs plain Burn: seeds the device, constructs the model, visits its parameters in order, and runs it.
    fn eager(&self, device: &Device) -> Eager;

    /// Defers the model, materializes it with the backend's generator, and runs it.
    fn materialized(&self, device: &Device) -> Result<Eager, String>;

    /// Returns the program of the model's trace.
    fn traced(&self, mode: Mode) -> Result<(Arc<JointGraph>, Arc<ParameterTable>), TraceError>;
}

impl<M: Module + ModuleDisplay + Sync + 'static, I: Inputs> Row<M, I> {
    /// Constructs the model.
    fn constructor(&self) -> impl Fn(&Device) -> Probe<M> + Send + Sync + 'static {
        let sizes = (self.inputs)(&Device::flex()).float_sizes();
        let init = self.init;
        move |device: &Device| Probe::new(init(device), &sizes, device)
    }

    fn run(&self, probe: &Probe<M>, device: &Device) -> Eager {
        eager::run(probe, device, || {
            device.seed(FORWARD_SEED);
            (self.forward)(&probe.module, probe.shift((self.inputs)(device)))
        })
    }

    fn deferred(&self) -> Result<Deferred<Probe<M>>, DeferredError> {
        Deferred::new(self.constructor())
    }
}

impl<M: Module + ModuleDisplay + Sync + 'static, I: Inputs> Subject for Row<M, I> {
    fn module(&self) -> String {
        type_name::<M>().to_owned()
    }

    fn case(&self) -> &'static str {
        self.case
    }

    fn tracing(&self) -> Tracing {
        self.tracing
    }

    fn inputs(&self) -> Vec<DynTensor> {
        batch_tensors(&(self.inputs)(&Device::flex()))
    }

    fn eager(&self, device: &Device) -> Eager {
        device.seed(SEED);
        let probe = self.constructor()(device);
        self.run(&probe, device)
    }

    fn materialized(&self, device: &Device) -> Result<Eager, String> {
        let model = self.deferred().map_err(|error| format!("{error:?}"))?;
        let source = model.initializer(Seed::new(SEED)).with_rng(Rng::Backend);
        let probe = model.materialize(device, &source);
        let probe = probe.map_err(|error| format!("{error:?}"))?;
        Ok(self.run(&probe, device))
    }

    fn traced(&self, mode: Mode) -> Result<(Arc<JointGraph>, Arc<ParameterTable>), TraceError> {
        let model = self.deferred().expect("it was materialized");
        let forward = self.forward;
        let forward = move |probe: &Probe<M>, inputs| {
            forward(&probe.module, probe.shift(inputs)).into_outputs()
        };
        let example = (self.inputs)(&Device::flex());
        let trace = match mode {
            Mode::Inference => model.trace_forward(&example, forward)?,
            Mode::Training => model.trace(&example, 1, forward)?,
        };
        Ok((trace.example_program()?, trace.parameters().clone()))
    }
}
