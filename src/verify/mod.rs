//! Comparison of one training step in plain Burn and in a pipeline.

mod report;

use std::collections::BTreeMap;

use burn::module::Module;
use burn::optim::SgdConfig;
use burn::tensor::Device;
use tinderbox_deferred::{
    Deferred, ParameterPath, parameter_gradients, random::Domain, random::Seed,
};
use tinderbox_fake::{DynTensor, Mode};
use tinderbox_pipeline::{
    Batch, Outputs, Pipeline, Plan, ScheduleChoice, Trace, batch_on, split_batch,
};

pub use report::{GradientComparison, LossComparison, ParameterComparison, Verification};

use crate::VerifyModelError;
use report::Step;

/// Settings of [`verify_with`].
#[derive(Clone, Debug)]
#[must_use]
pub struct VerifyOptions {
    seed: Seed,
    micro_batches: Option<usize>,
    schedule: Option<ScheduleChoice>,
    device: Device,
    tolerance: f64,
}

impl Default for VerifyOptions {
    fn default() -> Self {
        Self {
            seed: Seed::new(0),
            micro_batches: None,
            schedule: None,
            device: Device::flex(),
            tolerance: 1e-4,
        }
    }
}

impl VerifyOptions {
    /// Returns the defaults.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the seed of the initial values. The default is 0.
    pub fn seed(mut self, seed: impl Into<Seed>) -> Self {
        self.seed = seed.into();
        self
    }

    /// Sets the number of micro-batches, limited by the number of samples. The default is the number of the plan; 1 for
    /// a model that updates running states, such as batch norm, whose statistics are per micro-batch.
    pub fn micro_batches(mut self, count: usize) -> Self {
        self.micro_batches = Some(count);
        self
    }

    /// Sets the schedule of the pipeline. The default is the schedule of the plan.
    pub fn schedule(mut self, schedule: impl Into<ScheduleChoice>) -> Self {
        self.schedule = Some(schedule.into());
        self
    }

    /// Sets the device of plain Burn and of every rank. The default is the CPU.
    pub fn device(mut self, device: &Device) -> Self {
        self.device = device.clone().without_autodiff();
        self
    }

    /// Sets the maximum relative difference at which loss and gradients [agree](Verification::agrees). The
    /// default, 1e-4, is for f32: the pipeline adds micro-batches, plain Burn the samples of the whole batch.
    pub fn tolerance(mut self, relative: f64) -> Self {
        self.tolerance = relative;
        self
    }
}

/// Trains one step in plain Burn and one in the pipeline of a plan, from the same initial values, and
/// compares the losses and the gradient of every parameter. The default settings are the defaults of
/// [`VerifyOptions`].
///
/// Plain Burn processes the whole batch at once and runs `forward` without recording, so a wrong recording is
/// detected as well as a wrong cut. `forward` must be the forward of the trace.
///
/// Random operations, such as dropout, draw different values in plain Burn and in a pipeline: the report
/// contains their number, and a comparison with any never [agrees](Verification::agrees). Trace the model
/// with a probability of 0 to compare it. A trace in [mixed precision](crate::MixedPrecision) is compared
/// with plain Burn in the types of the parameters, and requires a higher tolerance.
///
/// # Errors
///
/// Returns an error if the model can't be materialized, the pipeline can't be started or fails, the forward
/// returns no loss, or a value can't be read.
///
/// # Panics
///
/// Panics if `forward` panics in plain Burn.
///
/// Cost: two training steps, with all activations of the whole batch on one device; two copies of parameters
/// and gradients, and another copy of the gradients on the host.
///
/// ```
/// use burn::nn::{Linear, LinearConfig};
/// use burn::tensor::{Device, Distribution, Tensor};
/// use tinderbox::{Deferred, Machine, Outputs, Plan, Traceable, verify};
///
/// let model = Deferred::new(|device| LinearConfig::new(8, 8).init(device))?;
/// let forward = |net: &Linear, x: Tensor<2>| Outputs::loss(net.forward(x).powi_scalar(2).mean());
/// let batch = Tensor::<2>::random([4, 8], Distribution::Default, &Device::flex());
/// let trace = model.trace(&batch, forward)?;
/// let plan = Plan::auto(&trace, &Machine::local(1)?)?;
/// let report = verify(&model, &trace, &plan, batch, forward)?;
/// assert!(report.agrees(), "{report}");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn verify<M: Module + Sync + 'static, B: Batch>(
    model: &Deferred<M>,
    trace: &Trace<B>,
    plan: &Plan,
    batch: B,
    forward: impl Fn(&M, B) -> Outputs,
) -> Result<Verification, VerifyModelError> {
    verify_with(model, trace, plan, batch, forward, &VerifyOptions::new())
}

/// As [`verify`], with other settings.
///
/// # Errors
///
/// See [`verify`].
///
/// # Panics
///
/// See [`verify`].
pub fn verify_with<M: Module + Sync + 'static, B: Batch>(
    model: &Deferred<M>,
    trace: &Trace<B>,
    plan: &Plan,
    batch: B,
    forward: impl Fn(&M, B) -> Outputs,
    options: &VerifyOptions,
) -> Result<Verification, VerifyModelError> {
    let planned = plan.file().step.micro_batches.max(1);
    let mut micro_batches = options.micro_batches.unwrap_or(planned);
    if options.micro_batches.is_none() && options.schedule.is_none() && micro_batches > 1 {
        // Batch norm has other statistics in micro-batches than in the whole batch.
        let joint = trace.program(Mode::Training, &batch)?;
        if !joint.updates().is_empty() {
            micro_batches = 1;
        }
    }
    // As in a step, a batch with fewer samples has one micro-batch per sample.
    let samples: usize = split_batch(&batch, 1)?.iter().map(|part| part.1).sum();
    let parts = split_batch(&batch, micro_batches.min(samples))?;
    let first = &parts.first().ok_or(VerifyModelError::EmptyBatch)?.0;
    let joint = trace.program(Mode::Training, first)?;
    let random = joint.keys().values();
    let random_operations = random.filter(|key| key.domain == Domain::Forward).count();
    let plain = plain_step(model, &batch, forward, options)?;
    let pipeline = pipeline_step(model, trace, plan, batch, micro_batches, options)?;
    Ok(Verification::new(
        trace.parameters(),
        plain,
        pipeline,
        random_operations,
        options.tolerance,
    ))
}

fn plain_step<M: Module, B: Batch>(
    model: &Deferred<M>,
    batch: &B,
    forward: impl Fn(&M, B) -> Outputs,
    options: &VerifyOptions,
) -> Result<Step, VerifyModelError> {
    let device = options.device.clone().autodiff();
    let module = model.materialize(&device, &model.replay(options.seed))?;
    let loss = forward(&module, batch_on(batch, &device)?).into_loss();
    let loss = loss.ok_or(VerifyModelError::NoLoss)?;
    let data = DynTensor::from(loss.clone()).without_autodiff().to_data()?;
    let value = data.iter::<f64>().next().ok_or(VerifyModelError::NoLoss)?;
    let gradients = parameter_gradients(&module, &loss.backward()).into_iter();
    let read = gradients.map(|(path, gradient)| Ok((path, gradient.to_data()?)));
    Ok(Step {
        loss: value,
        gradients: read.collect::<Result<_, VerifyModelError>>()?,
    })
}

fn pipeline_step<M: Module + Sync + 'static, B: Batch>(
    model: &Deferred<M>,
    trace: &Trace<B>,
    plan: &Plan,
    batch: B,
    micro_batches: usize,
    options: &VerifyOptions,
) -> Result<Step, VerifyModelError> {
    let mut builder = Pipeline::new(model, trace, plan)
        .optimizer(SgdConfig::new())
        .keep_gradients()
        .device(&options.device)
        .seed(options.seed)
        .micro_batches(micro_batches);
    if let Some(schedule) = &options.schedule {
        builder = builder.schedule(schedule.clone());
    }
    let mut pipeline = builder.start()?;
    let loss = pipeline.step(0.0, batch)?.loss;
    let gradients = pipeline.on_ranks(|_, stages| {
        let gradients = stages.iter().flat_map(|stage| stage.gradients());
        let gradients = gradients.map(|(path, gradient)| (path.clone(), gradient.clone()));
        gradients.collect::<Vec<_>>()
    })?;
    // Replicas have the rows of a large one.
    let mut parts: BTreeMap<ParameterPath, Vec<DynTensor>> = BTreeMap::new();
    for (path, gradient) in gradients.into_iter().flatten() {
        parts.entry(path).or_default().push(gradient);
    }
    let joined = |(path, parts)| Ok((path, DynTensor::joined(parts).to_data()?));
    let gradients = parts.into_iter().map(joined);
    let gradients = gradients.collect::<Result<_, VerifyModelError>>()?;
    Ok(Step { loss, gradients })
}
