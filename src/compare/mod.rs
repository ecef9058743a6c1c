//! Comparison of one training step in plain Burn and in a pipeline.

mod report;

use std::collections::BTreeMap;

use burn::module::Module;
use burn::tensor::{Device, Tensor};
use tinderbox_deferred::{ParameterPath, parameter_gradients, random::Domain};
use tinderbox_fake::{DynTensor, FakeError, Mode};
use tinderbox_pipeline::{Batch, LossOver, Outputs, PipelineBuilder, batch_on, split_batch};

pub use report::{Comparison, GradientComparison, LossComparison, ParameterComparison};

use crate::error::CompareError;
use report::Step;

/// Trains one step in the pipeline of a builder and one in plain Burn, from the same initial values, and compares the losses
/// and the gradient of every parameter. Device, seed and source are the builder's. Optimizer, clipping and changes of
/// gradients are not used: the gradients are compared as the backward computes them.
///
/// Plain Burn runs `forward`, which must be the forward of the trace, without recording: so the comparison detects wrong
/// recordings and wrong cuts. It processes the whole batch at once. If the forward updates running states, such as the
/// statistics of batch norm, a micro-batch has other statistics than the whole batch. Plain Burn then processes the pipeline's
/// micro-batches one after the other, and [`Comparison::micro_batches`] has their number. Running states themselves are not
/// compared.
///
/// Random operations, such as dropout, draw different values in plain Burn and in a pipeline. The report
/// contains their number, and a comparison with random operations never [agrees](Comparison::agrees). Trace the model
/// with a probability of 0 to compare it. A trace in [mixed precision](crate::MixedPrecision) is compared
/// with plain Burn in the types of the parameters, and requires a [higher tolerance](Comparison::agrees_within).
///
/// # Errors
///
/// Returns [`CompareError::Processes`] if the builder has a world of processes, and an error if the pipeline can't be started
/// or fails, the model can't be materialized, the forward returns no loss, or a value can't be read.
///
/// # Panics
///
/// Panics if `forward` panics in plain Burn.
///
/// Cost: two training steps, one after the other. Memory: the pipeline's, then parameters, gradients and all activations of the
/// whole batch on one device, and on the host two copies of the gradients.
///
/// ```
/// use burn::nn::{Linear, LinearConfig};
/// use burn::tensor::{Device, Distribution, Tensor};
/// use tinderbox::{Deferred, Machine, Outputs, Pipeline, Traceable, compare_with_burn};
///
/// let model = Deferred::new(|device| LinearConfig::new(8, 8).init(device))?;
/// let forward = |net: &Linear, x: Tensor<2>| Outputs::loss(net.forward(x).powi_scalar(2).mean());
/// let batch = Tensor::<2>::random([8, 8], Distribution::Default, &Device::flex());
/// let trace = model.trace(&batch, 4, forward)?;
/// let plan = trace.plan(&Machine::local(1)?)?;
/// let report = compare_with_burn(Pipeline::builder(&model, &trace, &plan), batch, forward)?;
/// assert!(report.agrees(), "{report}");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn compare_with_burn<M: Module + Sync + 'static, B: Batch>(
    builder: PipelineBuilder<M, B>,
    batch: B,
    forward: impl Fn(&M, B) -> Outputs,
) -> Result<Comparison, CompareError> {
    if builder.has_world() {
        return Err(CompareError::Processes);
    }
    let (model, trace) = (builder.model().clone(), builder.trace().clone());
    let source = builder.initial_values();
    // A pipeline without devices does not start.
    let device = builder.first_device().cloned();
    let device = device.unwrap_or_else(Device::flex).autodiff();
    let (pipeline, micro_batches) = pipeline_step(builder, batch.clone())?;
    let mut parts = split_batch(&batch, micro_batches)?;
    let joint = trace.program(Mode::Training, &parts[0].0)?;
    let random = joint.keys().values();
    let random_operations = random.filter(|key| key.domain == Domain::Forward).count();
    if joint.updates().is_empty() {
        parts = split_batch(&batch, 1)?;
    }
    let micro_batches = parts.len();
    let module = model.materialize(&device, &source)?;
    let plain = plain_step(&module, &device, parts, forward)?;
    Ok(Comparison::new(
        trace.parameters(),
        plain,
        pipeline,
        random_operations,
        micro_batches,
    ))
}

/// Trains a step in the pipeline, and returns its number of micro-batches.
fn pipeline_step<M: Module + Sync + 'static, B: Batch>(
    builder: PipelineBuilder<M, B>,
    batch: B,
) -> Result<(Step, usize), CompareError> {
    let mut pipeline = builder.gradients_of_backward().start()?;
    let output = pipeline.step(0.0, batch)?;
    let gradients = pipeline.on_ranks(|_, stages| {
        let gradients = stages.iter().flat_map(|stage| stage.gradients());
        let gradients = gradients.map(|(path, gradient)| (path.clone(), gradient.clone()));
        gradients.collect::<Vec<_>>()
    })?;
    // Replicas have the rows of a large gradient.
    let mut parts: BTreeMap<ParameterPath, Vec<DynTensor>> = BTreeMap::new();
    for (path, gradient) in gradients.into_iter().flatten() {
        parts.entry(path).or_default().push(gradient);
    }
    let joined = |(path, parts)| Ok((path, DynTensor::joined(parts).to_data()?));
    let gradients = parts.into_iter().map(joined);
    let step = Step {
        loss: output.loss,
        gradients: gradients.collect::<Result<_, CompareError>>()?,
    };
    Ok((step, output.micro_batch_losses.len()))
}

/// Runs a step in plain Burn over the parts of a batch, one after the other, each with its number of samples.
fn plain_step<M: Module, B: Batch>(
    module: &M,
    device: &Device,
    parts: Vec<(B, usize)>,
    forward: impl Fn(&M, B) -> Outputs,
) -> Result<Step, CompareError> {
    let mut losses = Vec::with_capacity(parts.len());
    for (part, samples) in parts {
        let outputs = forward(module, batch_on(&part, device)?);
        let count = match &outputs.over {
            LossOver::Samples => Some(samples as f64),
            LossOver::Count(count) => Some(number(count.clone())?),
            LossOver::Sum => None,
        };
        losses.push((outputs.into_loss().ok_or(CompareError::NoLoss)?, count));
    }
    let loss = total(losses).ok_or(CompareError::NoLoss)?;
    let value = number(DynTensor::from(loss.clone()))?;
    let gradients = parameter_gradients(module, &loss.backward()).into_iter();
    let read = gradients.map(|(path, gradient)| Ok((path, gradient.to_data()?)));
    Ok(Step {
        loss: value,
        gradients: read.collect::<Result<_, CompareError>>()?,
    })
}

/// Returns the loss of a batch from the losses of its parts; `None` without a part. Each loss has its count, or `None` if it
/// is a sum.
fn total(mut losses: Vec<(Tensor<1>, Option<f64>)>) -> Option<Tensor<1>> {
    if losses.len() == 1 {
        return losses.pop().map(|(loss, _)| loss);
    }
    let all: f64 = losses.iter().filter_map(|(_, count)| *count).sum();
    // A part with a count of 0 adds nothing, even if its loss is NaN.
    losses.retain(|(_, count)| *count != Some(0.0));
    let weighted = losses.into_iter().map(|(loss, count)| match count {
        Some(count) => loss.mul_scalar(count / all),
        None => loss,
    });
    weighted.reduce(|sum, loss| sum + loss)
}

/// Reads the first element of a tensor.
fn number(tensor: DynTensor) -> Result<f64, FakeError> {
    let data = tensor.without_autodiff().to_data()?;
    Ok(data.iter::<f64>().next().unwrap_or(f64::NAN))
}
