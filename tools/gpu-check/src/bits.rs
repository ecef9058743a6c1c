//! Compares the output of every kernel with the CPU code, bit by bit.

use anyhow::Result;
use burn::module::Module;
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::{
    Embedding, EmbeddingConfig, Initializer, LayerNorm, LayerNormConfig, Linear, LinearConfig,
};
use burn::tensor::{DType, Device, Distribution, Shape, Tensor, activation::gelu};
use tinderbox::deferred::MaterializeOptions;
use tinderbox::deferred::random::{
    DTYPES, Domain, Seed, Stream, generate_on_device, generate_region,
};
use tinderbox::fake::Region;
use tinderbox::{Deferred, Machine, Outputs, Traceable};

use crate::bench::Bench;
use crate::report::Part;

fn distributions(dtype: DType) -> [Distribution; 3] {
    let (uniform, normal) = match dtype.is_float() {
        true => ((-1.5, 2.7), (0.1, 1.9)),
        false => ((3.0, 101.0), (50.0, 40.0)),
    };
    [
        Distribution::Uniform(uniform.0, uniform.1),
        Distribution::Normal(normal.0, normal.1),
        Distribution::Bernoulli(0.3),
    ]
}

pub fn run(bench: &Bench, part: &mut Part) -> Result<()> {
    whole_tensors(bench, part);
    regions(bench, part)?;
    stages(bench, part)
}

fn stream() -> Stream {
    Stream::new(Seed::new(42), Domain::Init, "model.layers.0.weight", 1).at(7, 3)
}

/// Generates one tensor of each kind with one kernel.
fn whole_tensors(bench: &Bench, part: &mut Part) {
    let elements = bench.size.bits_elements;
    for dtype in DTYPES {
        let wrong = distributions(dtype).into_iter().filter_map(|distribution| {
            // A failure does not affect the checks of the others.
            let found = whole_tensor(bench, distribution, dtype);
            let wrong = found.unwrap_or_else(|error| Some(format!("{error:#}")))?;
            Some(format!("{distribution:?}: {wrong}"))
        });
        let wrong: Vec<String> = wrong.collect();
        let asked = format!(
            "{dtype:?}: uniform, normal and bernoulli, {elements} elements each, match the CPU"
        );
        part.check_bits(asked, &wrong.join("; "));
    }
}

/// Returns a description of the first difference, if there is one.
fn whole_tensor(bench: &Bench, distribution: Distribution, dtype: DType) -> Result<Option<String>> {
    // The host generates one piece at a time, so a check needs no second tensor on the host.
    const PIECE: usize = 1 << 24;
    let elements = bench.size.bits_elements;
    let (whole, region) = (Shape::from([elements]), Region::of_shape(&[elements]));
    let device = &bench.device;
    let made = generate_on_device(device, &stream(), distribution, &whole, &region, dtype)?;
    let made = made.to_data()?;
    let bytes = made.as_bytes();
    for start in (0..elements).step_by(PIECE) {
        let size = PIECE.min(elements - start);
        let region = Region::new(vec![start as u64], vec![size as u64])?;
        let expected = generate_region(&stream(), distribution, &whole, &region, dtype)?;
        let begin = start * dtype.size();
        let made = &bytes[begin..begin + size * dtype.size()];
        // Compared as a whole first, which is fast.
        if made != expected.as_bytes() {
            let mut pairs = made.iter().zip(expected.as_bytes());
            let at = pairs.position(|(one, other)| one != other);
            let element = (begin + at.unwrap_or(0)) / dtype.size();
            return Ok(Some(format!("differs at element {element}")));
        }
    }
    Ok(None)
}

/// Returns a deterministic pseudorandom sequence.
fn numbers() -> impl FnMut(u64) -> u64 {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    move |below| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below.max(1)
    }
}

/// Compares regions of tensors of one to four dimensions, at all alignments.
fn regions(bench: &Bench, part: &mut Part) -> Result<()> {
    let mut below = numbers();
    let mut wrong = Vec::new();
    let count = bench.size.bits_regions;
    for number in 0..count {
        let dtype = DTYPES[number % DTYPES.len()];
        let distribution = distributions(dtype)[below(3) as usize];
        let whole: Vec<usize> = (0..1 + below(4)).map(|_| 1 + below(40) as usize).collect();
        let offset: Vec<u64> = whole.iter().map(|size| below(*size as u64)).collect();
        let rest = whole
            .iter()
            .zip(&offset)
            .map(|(size, at)| *size as u64 - at);
        let size = rest.map(|rest| 1 + below(rest)).collect();
        let region = Region::new(offset, size)?;
        let shape = Shape::from(whole.clone());
        let (device, stream) = (&bench.device, stream());
        let made = generate_on_device(device, &stream, distribution, &shape, &region, dtype)?;
        let expected = generate_region(&stream, distribution, &shape, &region, dtype)?;
        if made.to_data()?.as_bytes() != expected.as_bytes() {
            let text = format!("{dtype:?} {distribution:?}, {region:?} of {whole:?}");
            wrong.push(text);
        }
    }
    let asked = format!("{count} regions of tensors match the CPU");
    let found = wrong
        .first()
        .map(|first| format!("{} differ, the first is {first}", wrong.len()));
    part.check_bits(asked, &found.unwrap_or_default());
    Ok(())
}

/// A module with all kinds of random values that Burn's modules draw, constants, and computed values.
#[derive(Module, Debug)]
struct Net {
    tokens: Embedding,
    layers: Vec<Linear>,
    normal: Linear,
    norm: LayerNorm,
    conv: Conv2d,
}

impl Net {
    fn new(device: &Device) -> Self {
        let layer = LinearConfig::new(96, 96);
        let normal = Initializer::XavierNormal { gain: 0.5 };
        Self {
            tokens: EmbeddingConfig::new(1001, 96).init(device),
            layers: (0..6).map(|_| layer.init(device)).collect(),
            normal: layer.clone().with_initializer(normal).init(device),
            norm: LayerNormConfig::new(96).init(device),
            conv: Conv2dConfig::new([1, 5], [3, 3]).init(device),
        }
    }

    fn forward(&self, tokens: Tensor<2, burn::tensor::Int>) -> Tensor<1> {
        let x = self.tokens.forward(tokens);
        let layers = self.layers.iter();
        let x = layers.fold(x, |x, layer| gelu(layer.forward(x)));
        let x = self.norm.forward(self.normal.forward(x));
        self.conv.forward(x.unsqueeze_dim::<4>(1)).mean()
    }
}

/// Materializes each stage of a model on the device alone.
fn stages(bench: &Bench, part: &mut Part) -> Result<()> {
    const STAGES: usize = 4;
    let model = Deferred::new(Net::new)?;
    let example = Tensor::<2, burn::tensor::Int>::zeros([2, 8], &Device::flex());
    let forward = |net: &Net, tokens| Outputs::loss(net.forward(tokens));
    let trace = model.trace(&example, 1, forward)?;
    let plan = trace.plan(&Machine::local(STAGES)?)?;
    let source = model.initializer(Seed::new(42));
    let (mut parameters, mut wrong) = (0, Vec::new());
    for stage in &plan.stages {
        let on = |device: &Device| {
            let of_stage = MaterializeOptions::on(device);
            let of_stage = of_stage.only(|p| stage.parameters.contains(&p.path));
            model.materialize_parameters(of_stage, &source)
        };
        let (made, expected) = (on(&bench.device)?, on(&Device::flex())?);
        for ((path, made), (_, expected)) in made.values().zip(expected.values()) {
            parameters += 1;
            if made.to_data()? != expected.to_data()? {
                wrong.push(path.to_string());
            }
        }
    }
    let asked =
        format!("{parameters} parameters of {STAGES} stages match those materialized on the CPU");
    let found = match parameters > 0 && wrong.is_empty() {
        true => String::new(),
        false => format!("different bits: {}", wrong.join(", ")),
    };
    part.check_bits(asked, &found);
    Ok(())
}
