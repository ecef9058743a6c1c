//! Compares a pipeline with plain Burn on the same device.

use std::collections::BTreeMap;

use anyhow::{Result, ensure};
use burn::module::{Module, ModuleVisitor, Param};
use burn::nn::{LayerNorm, LayerNormConfig, Linear, LinearConfig};
use burn::tensor::{
    Bool, DType, Device, FloatDType, Gradients, Tensor, TensorData, activation::gelu,
};
use tinderbox::deferred::random::Seed;
use tinderbox::deferred::{MaterializeOptions, parameter_values};
use tinderbox::fake::RecordOptions;
use tinderbox::{
    Deferred, DynTensor, Machine, MixedPrecision, Outputs, ParameterPath, Pipeline, Trace,
    Traceable,
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
        let layer = LinearConfig::new(width, width);
        Self {
            layers: (0..4).map(|_| layer.init(device)).collect(),
            norm: LayerNormConfig::new(width).init(device),
        }
    }

    fn loss(&self, (x, y): Batch) -> Tensor<1> {
        let layers = self.layers.iter();
        let x = layers.fold(x, |x, layer| gelu(layer.forward(x)));
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

/// The dtypes, each with the maximum difference: f64 verifies the arithmetic even if a GPU computes products of f32 in TF32.
const BOUNDS: [(FloatDType, &str, f64, &str); 3] = [
    (FloatDType::F32, "f32", 1e-4, "1e-4"),
    (FloatDType::F64, "f64", 1e-9, "1e-9"),
    (FloatDType::BF16, "bf16", 0.1, "0.1"),
];

pub fn run(bench: &Bench, part: &mut Part) -> Result<()> {
    let width = bench.size.parity_width;
    let forward = |net: &Net, batch: Batch| Outputs::loss(net.loss(batch));
    for (float, name, bound, shown) in BOUNDS {
        let is_mixed = float == FloatDType::BF16;
        let is_supported = bench.device.supports_dtype(float);
        if is_mixed && !(bench.flags.computes_bf16() && is_supported) {
            part.note("The runtime does not support bf16, so mixed precision was not run.");
            return Ok(());
        }
        if !is_supported {
            let text = format!("The runtime does not support {name}, so it was not run.");
            part.note(text);
            continue;
        }
        let mut options = RecordOptions::default();
        // In mixed precision, the parameters are in f32.
        options.defaults.float_dtype = if is_mixed { FloatDType::F32 } else { float };
        let dtype = DType::from(options.defaults.float_dtype);
        let model = Deferred::with_options(options, move |device| Net::new(width, device))?;
        let example = batch(width, dtype, &Device::flex());
        let trace = match is_mixed {
            true => MixedPrecision::bf16(&model).trace(&example, MICRO_BATCHES, forward),
            false => model.trace(&example, MICRO_BATCHES, forward),
        }?;
        let expected = plain(bench, &model, DType::from(float))?;
        for stages in [1, 2, 4] {
            let found = pipelined(bench, &model, &trace, dtype, stages)?;
            let difference = compare(&found, &expected);
            let figure = format!("parity.{name}_{stages}_stages");
            part.figure(figure, difference, "ratio");
            let asked = format!(
                "{name}, {stages} stage(s): losses and gradients match plain Burn within {shown}"
            );
            part.check(asked, format!("{difference:.2e}"), difference <= bound);
        }
    }
    part.note(
        "Differences are the maximum over a tensor, relative to its largest element. In bf16, plain Burn runs on a cast \
         module, and its gradients are added in f32, as in the pipeline; the bound is wide, because other kernels may round \
         differently.",
    );
    Ok(())
}

/// Losses of the micro-batches, and the gradient of every parameter.
#[derive(Default)]
struct Computed {
    losses: Vec<f64>,
    gradients: BTreeMap<ParameterPath, Vec<f64>>,
}

fn pipelined(
    bench: &Bench,
    model: &Deferred<Net>,
    trace: &Trace<Batch>,
    dtype: DType,
    stages: usize,
) -> Result<Computed> {
    let plan = trace.plan(&Machine::local(stages)?)?;
    let mut pipeline = Pipeline::builder(model, trace, &plan)
        .optimizer(burn::optim::SgdConfig::new())
        .device(&bench.device)
        .seed(SEED)
        .keep_gradients()
        .start()?;
    let mut computed = Computed::default();
    for _ in 0..bench.size.parity_steps {
        let batch = batch(bench.size.parity_width, dtype, &Device::flex());
        // The parameters are unchanged, so every step is the first.
        let losses = pipeline.step(0.0, batch)?.micro_batch_losses;
        computed.losses.extend(losses);
    }
    let gradients = pipeline.on_ranks(|_, stages| {
        let gradients = stages.iter().flat_map(|stage| stage.gradients());
        let gradients = gradients.map(|(path, value)| (path.clone(), value.clone()));
        gradients.collect::<Vec<_>>()
    })?;
    for (path, gradient) in gradients.into_iter().flatten() {
        let other = computed.gradients.insert(path, numbers(&gradient)?);
        ensure!(other.is_none(), "a parameter has two gradients");
    }
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
            self.1.push(match gradient.dtype() {
                DType::F64 => gradient,
                _ => gradient.cast_float(DType::F32),
            });
        }
    }
}

/// Runs plain Burn with its module in a dtype; 16-bit gradients are added in f32.
fn plain(bench: &Bench, model: &Deferred<Net>, dtype: DType) -> Result<Computed> {
    let device = bench.device.clone().autodiff();
    let options = MaterializeOptions::on(&device).dtype(|_| Some(dtype));
    let net = model.materialize(options, &model.initializer(Seed::new(SEED)))?;
    let mut computed = Computed::default();
    let mut sums: Vec<DynTensor> = Vec::new();
    for step in 0..bench.size.parity_steps {
        let (x, y) = batch(bench.size.parity_width, DType::F32, &device);
        // Split here, independently of the code under test: equal numbers of samples in each micro-batch.
        let (x, y) = (x.chunk(MICRO_BATCHES, 0), y.chunk(MICRO_BATCHES, 0));
        for (x, y) in x.into_iter().zip(y) {
            let loss = net.loss((x.cast(dtype), y.cast(dtype)));
            computed.losses.push(loss.clone().into_scalar::<f64>());
            let weighted = loss.mul_scalar(1.0 / MICRO_BATCHES as f64);
            if step > 0 {
                continue;
            }
            let mut collect = Collect(&weighted.backward(), Vec::new());
            net.visit(&mut collect);
            let pairs = sums.into_iter().zip(collect.1.clone());
            sums = match pairs.len() {
                0 => collect.1,
                _ => pairs.map(|(sum, more)| sum + more).collect(),
            };
        }
    }
    let paths = parameter_values(&net).into_iter().map(|(path, _)| path);
    for (path, sum) in paths.zip(sums) {
        computed.gradients.insert(path, numbers(&sum)?);
    }
    Ok(computed)
}

/// Returns the maximum difference of a loss or a gradient, relative to the largest element of its tensor;
/// infinite if a gradient exists on one side only, or a value is NaN.
fn compare(found: &Computed, expected: &Computed) -> f64 {
    let relative = |found: &[f64], expected: &[f64]| {
        let sizes = expected.iter().map(|x| x.abs());
        let scale = sizes.fold(f64::MIN_POSITIVE, f64::max);
        let pairs = found.iter().zip(expected);
        let differences = pairs.map(|(one, other)| (one - other).abs() / scale);
        let is_whole = found.len() == expected.len() && !expected.is_empty();
        match is_whole && differences.clone().all(f64::is_finite) {
            true => differences.fold(0.0, f64::max),
            false => f64::INFINITY,
        }
    };
    if found.gradients.is_empty() || !found.gradients.keys().eq(expected.gradients.keys()) {
        return f64::INFINITY;
    }
    let pairs = found.gradients.values().zip(expected.gradients.values());
    let differences = pairs.map(|(found, expected)| relative(found, expected));
    differences.fold(relative(&found.losses, &expected.losses), f64::max)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn computed(losses: &[f64], gradient: &[f64]) -> Computed {
        Computed {
            losses: losses.to_vec(),
            gradients: BTreeMap::from([(ParameterPath::new("weight"), gradient.to_vec())]),
        }
    }

    #[test]
    fn differences_are_found() {
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
