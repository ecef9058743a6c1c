//! Compares a pipeline with plain Burn on the same device.

use anyhow::Result;
use burn::module::{Module, ModuleVisitor, Param};
use burn::nn::{LayerNorm, LayerNormConfig, Linear, LinearConfig};
use burn::tensor::{
    Bool, DType, Device, FloatDType, Gradients, Tensor, TensorData, activation::gelu,
};
use tinderbox::random::Seed;
use tinderbox::{
    Deferred, DynTensor, Machine, MaterializeOptions, MixedPrecision, Outputs, ParameterPath,
    Pipeline, Plan, RecordOptions, Trace, Traceable, parameter_values,
};

use crate::bench::Bench;
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
        // Boolean masks: one that does not depend on the input, and one that differs for every micro-batch.
        let triangle = Tensor::<2, Bool>::tril_mask(x.dims(), 0, &x.device());
        let low = x.clone().lower_elem(-1.5).bool_and(triangle);
        let x = x.mask_fill(low, -1.5);
        let wide = match x.dtype() {
            DType::F64 => DType::F64,
            _ => DType::F32,
        };
        (x.cast(wide) - y.cast(wide)).powf_scalar(2.0).mean()
    }
}

fn batch(width: usize, dtype: DType, device: &Device) -> Batch {
    let values = |shift: usize| {
        let values = (0..SAMPLES * width).map(|i| ((i + shift) as f32 * 0.731).sin());
        let data = TensorData::new(values.collect::<Vec<f32>>(), [SAMPLES, width]);
        Tensor::from_data(data.convert_dtype(dtype), (device, dtype))
    };
    (values(0), values(17))
}

/// The maximum difference for each dtype with a strict comparison: f64 verifies the arithmetic even if a GPU
/// computes products of f32 in TF32.
const BOUNDS: [(FloatDType, &str, f64); 2] = [
    (FloatDType::F32, "f32", 1e-4),
    (FloatDType::F64, "f64", 1e-9),
];

pub fn run(bench: &Bench, part: &mut Part) -> Result<()> {
    let width = bench.size.parity_width;
    let forward = |net: &Net, batch: Batch| Outputs::loss(net.loss(batch));
    for (float, name, bound) in BOUNDS {
        if !bench.device.supports_dtype(float) {
            part.note(format!(
                "The runtime does not support {name}, so it was not run."
            ));
            continue;
        }
        let dtype = DType::from(float);
        let mut options = RecordOptions::default();
        options.defaults.float = float;
        let model = Deferred::with_options(options, move |device| Net::new(width, device))?;
        let trace = model.trace(&batch(width, dtype, &Device::flex()), forward)?;
        let expected = plain(bench, &model, dtype)?;
        for stages in [1, 2, 4] {
            let found = pipelined(bench, &model, &trace, dtype, stages)?;
            let difference = compare(&found, &expected);
            part.figure(
                format!("parity.{name}_{stages}_stages"),
                difference,
                "ratio",
            );
            let asked = format!(
                "{name}, {stages} stage(s): losses and gradients match plain Burn within {bound:e}"
            );
            part.check(asked, format!("{difference:.2e}"), difference <= bound);
        }
    }
    if !bench.size.computes_bf16 || !bench.device.supports_dtype(FloatDType::BF16) {
        part.note("The runtime does not support bf16, so mixed precision was not run.");
        return Ok(());
    }
    let model = Deferred::new(move |device| Net::new(width, device))?;
    let example = batch(width, DType::F32, &Device::flex());
    let trace = MixedPrecision::bf16(&model).trace(&example, forward)?;
    let expected = plain(bench, &model, DType::BF16)?;
    for stages in [1, 2, 4] {
        let found = pipelined(bench, &model, &trace, DType::F32, stages)?;
        let difference = compare(&found, &expected);
        part.figure(format!("parity.bf16_{stages}_stages"), difference, "ratio");
        let asked =
            format!("bf16, {stages} stage(s): losses and gradients match plain Burn within 0.1");
        part.check(asked, format!("{difference:.2e}"), difference <= 0.1);
    }
    part.note(
        "Differences are the maximum over a tensor, relative to its largest element. In bf16, plain Burn runs on a cast module, \
         and its gradients are added in f32, as in the pipeline; the bound \
         is wide, because other kernels may round differently.",
    );
    Ok(())
}

/// Losses of the micro-batches, and the gradient of every parameter.
#[derive(Default)]
struct Computed {
    losses: Vec<f64>,
    gradients: Vec<(ParameterPath, Vec<f64>)>,
}

fn pipelined(
    bench: &Bench,
    model: &Deferred<Net>,
    trace: &Trace<Batch>,
    dtype: DType,
    stages: usize,
) -> Result<Computed> {
    let plan = Plan::auto(trace, &Machine::local(stages)?)?;
    let mut pipeline = Pipeline::new(model, trace, &plan)
        .optimizer(burn::optim::SgdConfig::new())
        .micro_batches(MICRO_BATCHES)
        .device(&bench.device)
        .seed(SEED)
        .keep_gradients()
        .start()?;
    let mut computed = Computed::default();
    for _ in 0..bench.size.parity_steps {
        let batch = batch(bench.size.parity_width, dtype, &Device::flex());
        // The parameters are unchanged, so every step is the first.
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

fn numbers(tensor: &DynTensor) -> Result<Vec<f64>> {
    Ok(tensor.to_data()?.iter::<f64>().collect())
}

/// Collects gradients, converting 16-bit ones to f32.
struct Collect<'a>(&'a Gradients, Vec<DynTensor>);

impl ModuleVisitor for Collect<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if let Some(gradient) = param.val().grad(self.0) {
            let gradient = DynTensor::from(gradient);
            let wide = gradient.dtype() == DType::F64;
            let kept = if wide {
                gradient
            } else {
                gradient.cast_float(DType::F32)
            };
            self.1.push(kept);
        }
    }
}

/// Runs plain Burn with its module in a dtype; 16-bit gradients are added in f32.
fn plain(bench: &Bench, model: &Deferred<Net>, dtype: DType) -> Result<Computed> {
    let device = bench.device.clone().autodiff();
    let options = MaterializeOptions::default().dtype(|_| Some(dtype));
    let net = model.materialize_with(&device, &model.replay(Seed::new(SEED)), options)?;
    let mut computed = Computed::default();
    let mut sums: Vec<DynTensor> = Vec::new();
    for step in 0..bench.size.parity_steps {
        let (x, y) = batch(bench.size.parity_width, DType::F32, &device);
        // Split here, independently of the code under test: equal numbers of samples in each micro-batch.
        for (x, y) in x
            .chunk(MICRO_BATCHES, 0)
            .into_iter()
            .zip(y.chunk(MICRO_BATCHES, 0))
        {
            let loss = net.loss((x.cast(dtype), y.cast(dtype)));
            computed.losses.push(loss.clone().into_scalar::<f64>());
            let weighted = loss.mul_scalar(1.0 / MICRO_BATCHES as f64);
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

/// Returns the maximum difference of a loss or a gradient, relative to the largest element of its tensor;
/// infinite if a gradient exists on one side only, or a value is NaN.
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
        let difference = relative(found, expected);
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

    fn computed(losses: &[f64], gradient: &[f64]) -> Computed {
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
