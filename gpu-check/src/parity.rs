//! A pipeline against plain Burn on the same device.

use anyhow::Result;
use burn::module::{Module, ModuleVisitor, Param};
use burn::nn::{LayerNorm, LayerNormConfig, Linear, LinearConfig};
use burn::tensor::{DType, Device, FloatDType, Gradients, Tensor, TensorData, activation::gelu};
use tinderbox::random::Seed;
use tinderbox::{
    Deferred, DynTensor, Machine, MaterializeOptions, MixedPrecision, Outputs, ParameterPath,
    Pipeline, Plan, Trace, Traceable, parameter_values, split_batch,
};

use crate::Bench;
use crate::report::Part;

const SEED: u64 = 5;
const SAMPLES: usize = 8;
const MICRO_BATCHES: usize = 4;

#[derive(Module, Debug)]
struct Net {
    layers: Vec<Linear>,
    norm: LayerNorm,
}

type Batch = (Tensor<2>, Tensor<2>);

impl Net {
    fn new(width: usize, device: &Device) -> Self {
        Self {
            layers: (0..4)
                .map(|_| LinearConfig::new(width, width).init(device))
                .collect(),
            norm: LayerNormConfig::new(width).init(device),
        }
    }

    fn loss(&self, (x, y): Batch) -> Tensor<1> {
        let x = self
            .layers
            .iter()
            .fold(x, |x, layer| gelu(layer.forward(x)));
        let x = self.norm.forward(x);
        (x.cast(DType::F32) - y.cast(DType::F32))
            .powf_scalar(2.0)
            .mean()
    }
}

fn batch(width: usize, device: &Device) -> Batch {
    let values = |shift: usize| {
        let values = (0..SAMPLES * width).map(|i| ((i + shift) as f32 * 0.731).sin());
        let data = TensorData::new(values.collect::<Vec<f32>>(), [SAMPLES, width]);
        Tensor::from_data(data, device)
    };
    (values(0), values(17))
}

pub fn run(bench: &Bench, part: &mut Part) -> Result<()> {
    let width = bench.size.parity_width;
    let model = Deferred::new(move |device| Net::new(width, device))?;
    let example = batch(width, &Device::flex());
    let forward = |net: &Net, batch: Batch| Outputs::loss(net.loss(batch));
    let trace = model.trace(&example, forward)?;
    let expected = plain(bench, &model, DType::F32)?;
    for stages in [1, 2, 4] {
        let found = pipelined(bench, &model, &trace, stages)?;
        let difference = compare(&found, &expected);
        part.figure(format!("parity.f32_{stages}_stages"), difference, "ratio");
        let asked =
            format!("f32, {stages} stage(s): losses and gradients are plain Burn's within 1e-4");
        part.check(asked, format!("{difference:.2e}"), difference <= 1e-4);
    }
    if !bench.size.computes_bf16 || !bench.device.supports_dtype(FloatDType::BF16) {
        part.note("The runtime does not compute in bf16, so mixed precision was not run.");
        return Ok(());
    }
    let trace = MixedPrecision::bf16(&model).trace(&example, forward)?;
    let expected = plain(bench, &model, DType::BF16)?;
    for stages in [1, 2, 4] {
        let found = pipelined(bench, &model, &trace, stages)?;
        let difference = compare(&found, &expected);
        part.figure(format!("parity.bf16_{stages}_stages"), difference, "ratio");
        let asked =
            format!("bf16, {stages} stage(s): losses and gradients are plain Burn's within 0.1");
        part.check(asked, format!("{difference:.2e}"), difference <= 0.1);
    }
    part.note(
        "Differences are the largest of a tensor, relative to its largest element. In bf16, plain Burn runs on a module \
         that is cast, and its gradients are added in f32, as the pipeline does it; the bound \
         is wide, since other kernels may round otherwise.",
    );
    Ok(())
}

/// Losses of the micro-batches, and the gradient of every parameter.
#[derive(Default)]
struct Computed {
    losses: Vec<f64>,
    gradients: Vec<(ParameterPath, Vec<f32>)>,
}

fn pipelined(
    bench: &Bench,
    model: &Deferred<Net>,
    trace: &Trace<Batch>,
    stages: usize,
) -> Result<Computed> {
    let plan = Plan::auto(trace, &Machine::local(stages)?)?;
    let mut pipeline = Pipeline::new(model, trace, &plan)
        .optimizer(burn::optim::SgdConfig::new().build())
        .micro_batches(MICRO_BATCHES)
        .device(&bench.device)
        .seed(SEED)
        .keep_gradients()
        .start()?;
    let mut computed = Computed::default();
    for _ in 0..bench.size.parity_steps {
        let batch = batch(bench.size.parity_width, &Device::flex());
        // The parameters stay: every step is the first.
        computed
            .losses
            .extend(pipeline.step(0.0, batch)?.micro_batch_losses);
    }
    let gradients = pipeline.on_ranks(|_, stages| {
        let gradients = stages.iter().flat_map(|stage| stage.gradients());
        gradients
            .map(|(path, value)| (path.clone(), value.clone()))
            .collect::<Vec<_>>()
    })?;
    for (path, gradient) in gradients.into_iter().flatten() {
        computed.gradients.push((path, numbers(&gradient)?));
    }
    computed.gradients.sort_by(|one, other| one.0.cmp(&other.0));
    Ok(computed)
}

fn numbers(tensor: &DynTensor) -> Result<Vec<f32>> {
    Ok(tensor.to_data()?.iter::<f32>().collect())
}

struct Collect<'a>(&'a Gradients, Vec<DynTensor>);

impl ModuleVisitor for Collect<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if let Some(gradient) = param.val().grad(self.0) {
            self.1
                .push(DynTensor::from(gradient).cast_float(DType::F32));
        }
    }
}

/// Plain Burn, its module in a type; gradients are added in f32.
fn plain(bench: &Bench, model: &Deferred<Net>, dtype: DType) -> Result<Computed> {
    let device = bench.device.clone().autodiff();
    let options = MaterializeOptions::default().dtype(|_| Some(dtype));
    let net = model.materialize_with(&device, &model.replay(Seed::new(SEED)), options)?;
    let mut computed = Computed::default();
    let mut sums: Vec<DynTensor> = Vec::new();
    for step in 0..bench.size.parity_steps {
        let parts = split_batch(&batch(bench.size.parity_width, &device), MICRO_BATCHES)?;
        for ((x, y), samples) in parts {
            let loss = net.loss((x.cast(dtype), y.cast(dtype)));
            computed
                .losses
                .push(f64::from(loss.clone().into_scalar::<f32>()));
            let weighted = loss.mul_scalar(samples as f32 / SAMPLES as f32);
            if step > 0 {
                continue;
            }
            let mut collect = Collect(&weighted.backward(), Vec::new());
            net.visit(&mut collect);
            sums = match sums.is_empty() {
                true => collect.1,
                false => sums
                    .into_iter()
                    .zip(collect.1)
                    .map(|(sum, more)| sum + more)
                    .collect(),
            };
        }
    }
    let paths = parameter_values(&net).into_iter().map(|(path, _)| path);
    for (path, sum) in paths.zip(sums) {
        computed.gradients.push((path, numbers(&sum)?));
    }
    computed.gradients.sort_by(|one, other| one.0.cmp(&other.0));
    Ok(computed)
}

/// The largest difference of a loss or a gradient, relative to the largest element beside it; infinite where one has what
/// the other has not, or where a number is none.
fn compare(found: &Computed, expected: &Computed) -> f64 {
    let relative = |found: &[f64], expected: &[f64]| {
        let scale = expected
            .iter()
            .fold(f64::MIN_POSITIVE, |largest, x| largest.max(x.abs()));
        let pairs = found.iter().zip(expected);
        let differences = pairs.map(|(one, other)| (one - other).abs() / scale);
        let worst = |worst: f64, x: f64| {
            if x.is_finite() {
                worst.max(x)
            } else {
                f64::INFINITY
            }
        };
        match found.len() == expected.len() && !expected.is_empty() {
            true => differences.fold(0.0, worst),
            false => f64::INFINITY,
        }
    };
    let mut largest = relative(&found.losses, &expected.losses);
    if found.gradients.len() != expected.gradients.len() || found.gradients.is_empty() {
        return f64::INFINITY;
    }
    for ((path, found), (of, expected)) in found.gradients.iter().zip(&expected.gradients) {
        let wide = |numbers: &[f32]| numbers.iter().copied().map(f64::from).collect::<Vec<f64>>();
        let difference = relative(&wide(found), &wide(expected));
        largest = largest.max(if path == of {
            difference
        } else {
            f64::INFINITY
        });
    }
    largest
}

#[cfg(test)]
mod tests {
    use super::*;

    fn computed(losses: &[f64], gradient: &[f32]) -> Computed {
        Computed {
            losses: losses.to_vec(),
            gradients: vec![(ParameterPath::new("weight"), gradient.to_vec())],
        }
    }

    #[test]
    fn what_differs_is_found() {
        let expected = computed(&[1.0, 2.0], &[0.5, -4.0]);
        assert_eq!(compare(&expected, &expected), 0.0);
        assert_eq!(
            compare(&computed(&[1.0, 2.5], &[0.5, -4.0]), &expected),
            0.25
        );
        assert_eq!(
            compare(&computed(&[1.0, 2.0], &[0.5, -3.0]), &expected),
            0.25
        );
        for wrong in [
            computed(&[1.0], &[0.5, -4.0]),
            computed(&[1.0, 2.0], &[0.5]),
            computed(&[1.0, f64::NAN], &[0.5, -4.0]),
        ] {
            assert_eq!(compare(&wrong, &expected), f64::INFINITY);
        }
        assert_eq!(
            compare(&Computed::default(), &Computed::default()),
            f64::INFINITY
        );
    }
}
