//! The two networks of a GAN, trained in alternation as two pipelines: the pipeline of the generator contains a frozen
//! copy of the discriminator, which is replaced after each step of the discriminator.

use std::collections::BTreeMap;
use std::ops::Range;

use burn::module::Module;
use burn::nn::{BatchNorm, BatchNormConfig, Linear, LinearConfig};
use burn::optim::{AdamConfig, GradientsAccumulator, GradientsParams};
use burn::tensor::activation::{leaky_relu, softplus, tanh};
use burn::tensor::{Device, Tensor};
use tempfile::TempDir;
use tinderbox::random::Seed;
use tinderbox::{
    Batch, Checkpoints, Deferred, DynTensor, Machine, Outputs, Pipeline, Plan, Traceable,
    parameter_values,
};

use crate::models::{SAMPLES, floats};
use crate::split::split;

const WIDTH: usize = 8;
const STEPS: u64 = 5;
const SAVED_AT: u64 = 2;
const RATE: f64 = 1e-3;

#[derive(Module, Debug)]
struct Generator {
    layers: Vec<Linear>,
    norms: Vec<BatchNorm>,
    last: Linear,
}

#[derive(Module, Debug)]
struct Discriminator {
    layers: Vec<Linear>,
}

/// What the pipeline of the generator trains.
#[derive(Module, Debug)]
struct Adversaries {
    generator: Generator,
    discriminator: Discriminator,
}

fn linear(device: &Device) -> Linear {
    LinearConfig::new(WIDTH, WIDTH).init(device)
}

fn generator(device: &Device) -> Generator {
    Generator {
        layers: (0..3).map(|_| linear(device)).collect(),
        norms: (0..3)
            .map(|_| BatchNormConfig::new(WIDTH).init(device))
            .collect(),
        last: linear(device),
    }
}

fn discriminator(device: &Device) -> Discriminator {
    Discriminator {
        layers: (0..3).map(|_| linear(device)).collect(),
    }
}

impl Generator {
    fn forward(&self, noise: Tensor<2>) -> Tensor<2> {
        let layers = self.layers.iter().zip(&self.norms);
        let x = layers.fold(noise, |x, (layer, norm)| {
            leaky_relu(norm.forward(layer.forward(x)), 0.2)
        });
        tanh(self.last.forward(x))
    }
}

impl Discriminator {
    fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        let layers = self.layers.iter();
        layers.fold(x, |x, layer| leaky_relu(layer.forward(x), 0.2))
    }
}

/// The generator's loss and its images.
fn deceive(
    generator: &Generator,
    against: &Discriminator,
    noise: Tensor<2>,
) -> (Tensor<1>, Tensor<2>) {
    let images = generator.forward(noise);
    let scores = against.forward(images.clone());
    (softplus(scores.neg(), 1.0).mean(), images)
}

/// The discriminator's loss.
fn judge(discriminator: &Discriminator, real: Tensor<2>, images: Tensor<2>) -> Tensor<1> {
    let real = softplus(discriminator.forward(real).neg(), 1.0).mean();
    real + softplus(discriminator.forward(images), 1.0).mean()
}

fn noise(step: u64, device: &Device) -> Tensor<2> {
    floats([SAMPLES, WIDTH], step, device)
}

fn real(step: u64, device: &Device) -> Tensor<2> {
    floats([SAMPLES, WIDTH], step + 1000, device) * 0.5
}

type Values = BTreeMap<String, Vec<u8>>;

fn values<M: Module>(module: &M) -> Values {
    let bytes = |value: DynTensor| value.to_data().unwrap().as_bytes().to_vec();
    let values = parameter_values(module).into_iter();
    values
        .map(|(path, value)| (path.to_string(), bytes(value)))
        .collect()
}

/// Plain Burn: the generator's step, and then the discriminator's on the images of that step.
fn plain(micro_batches: usize) -> [Values; 2] {
    let device = Device::flex().autodiff();
    let models = (
        Deferred::new(generator).unwrap(),
        Deferred::new(discriminator).unwrap(),
    );
    let seed = |seed| Seed::new(seed);
    let replay = models.0.replay(seed(1));
    let mut generator = models.0.materialize(&device, &replay).unwrap();
    let replay = models.1.replay(seed(2));
    let mut discriminator = models.1.materialize(&device, &replay).unwrap();
    let (mut of_generator, mut of_discriminator) =
        (AdamConfig::new().init(), AdamConfig::new().init());
    for step in 0..STEPS {
        let (mut gradients, mut images) = (GradientsAccumulator::new(), Vec::new());
        for (noise, samples) in split(&noise(step, &device), micro_batches) {
            let (loss, made) = deceive(&generator, &discriminator, noise);
            let loss = loss.mul_scalar(samples as f32 / SAMPLES as f32);
            gradients.accumulate(
                &generator,
                GradientsParams::from_grads(loss.backward(), &generator),
            );
            images.push(made.detach());
        }
        generator = of_generator.step(RATE, generator, gradients.grads());
        let mut gradients = GradientsAccumulator::new();
        let real = split(&real(step, &device), micro_batches);
        for ((real, samples), images) in real.into_iter().zip(images) {
            let loss = judge(&discriminator, real, images);
            let loss = loss.mul_scalar(samples as f32 / SAMPLES as f32);
            let found = GradientsParams::from_grads(loss.backward(), &discriminator);
            gradients.accumulate(&discriminator, found);
        }
        discriminator = of_discriminator.step(RATE, discriminator, gradients.grads());
    }
    [values(&generator.valid()), values(&discriminator.valid())]
}

fn start<M: Module + Sync + 'static, B: Batch>(
    model: &Deferred<M>,
    example: &B,
    forward: fn(&M, B) -> Outputs,
    (stages, micro_batches, seed): (usize, usize, u64),
) -> Pipeline<M, B> {
    let trace = model.trace(example, forward).unwrap();
    let plan = Plan::auto(&trace, &Machine::local(stages).unwrap()).unwrap();
    Pipeline::new(model, &trace, &plan)
        .optimizer(AdamConfig::new())
        .micro_batches(micro_batches)
        .seed(seed)
        .start()
        .unwrap()
}

/// The pipeline of the generator, and the pipeline of the discriminator.
struct Pair {
    deceiver: Pipeline<Adversaries, Tensor<2>>,
    judging: Pipeline<Discriminator, (Tensor<2>, Tensor<2>)>,
}

/// Values under the name of a field.
fn prefixed(prefix: &str, module: &impl Module) -> Vec<(String, DynTensor)> {
    let values = parameter_values(module).into_iter();
    let named = values.map(|(path, value)| (format!("{prefix}.{path}"), value));
    named.collect()
}

impl Pair {
    fn new(stages: usize, micro_batches: usize) -> Self {
        let device = Device::flex();
        let adversaries = Deferred::new(|device| Adversaries {
            generator: generator(device),
            discriminator: discriminator(device).no_grad(),
        });
        let setting = |seed| (stages, micro_batches, seed);
        let mut deceiver = start(
            &adversaries.unwrap(),
            &noise(0, &device),
            |both: &Adversaries, noise| {
                let (loss, images) = deceive(&both.generator, &both.discriminator, noise);
                Outputs::loss(loss).with("images", images)
            },
            setting(1),
        );
        let judging = start(
            &Deferred::new(discriminator).unwrap(),
            &(real(0, &device), real(1, &device)),
            |net: &Discriminator, (real, images)| Outputs::loss(judge(net, real, images)),
            setting(2),
        );
        // The generator's model as plain Burn constructs it.
        let alone = Deferred::new(generator).unwrap();
        let alone = alone
            .materialize(&device, &alone.replay(Seed::new(1)))
            .unwrap();
        let initial = prefixed("generator", &alone);
        deceiver.set_parameters(initial).unwrap();
        Self { deceiver, judging }
    }

    fn train(&mut self, steps: Range<u64>) {
        let device = Device::flex();
        for step in steps {
            let current = self.judging.gather(&device).unwrap();
            let current = prefixed("discriminator", &current);
            self.deceiver.set_parameters(current).unwrap();
            let output = self.deceiver.step(RATE, noise(step, &device)).unwrap();
            let images = output.tensor::<2>("images").unwrap();
            self.judging
                .step(RATE, (real(step, &device), images))
                .unwrap();
        }
    }

    fn values(&mut self) -> [Values; 2] {
        let device = Device::flex();
        let both = self.deceiver.gather(&device).unwrap();
        [
            values(&both.generator),
            values(&self.judging.gather(&device).unwrap()),
        ]
    }
}

/// Two pipelines, in one run, and saved and resumed with other numbers of stages.
fn pipelined(stages: usize, others: usize, micro_batches: usize) -> [[Values; 2]; 2] {
    let dirs = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let [of_deceiver, of_judging] = [0, 1].map(|at| {
        let dir: &TempDir = &dirs[at];
        Checkpoints::open(dir.path()).unwrap().every(SAVED_AT)
    });
    let mut first = Pair::new(stages, micro_batches);
    first.train(0..SAVED_AT);
    let saved = of_deceiver.after_step(&mut first.deceiver, 0);
    saved.unwrap().unwrap();
    of_judging
        .after_step(&mut first.judging, 0)
        .unwrap()
        .unwrap();
    first.train(SAVED_AT..STEPS);
    let mut second = Pair::new(others, micro_batches);
    of_deceiver.resume(&mut second.deceiver).unwrap().unwrap();
    of_judging.resume(&mut second.judging).unwrap().unwrap();
    second.train(SAVED_AT..STEPS);
    [first.values(), second.values()]
}

/// The settings in which two pipelines differ from plain Burn.
pub fn differences() -> Vec<String> {
    let mut differences = Vec::new();
    for micro_batches in [1, 4] {
        let expected = plain(micro_batches);
        for stages in 1..=4 {
            let others = stages % 4 + 1;
            let runs = pipelined(stages, others, micro_batches);
            for (run, what) in runs.into_iter().zip(["in one run", "resumed"]) {
                if run != expected {
                    differences.push(format!(
                        "{stages} stages (then {others}), {micro_batches} micro-batches, {what}"
                    ));
                }
            }
        }
    }
    differences
}
