//! The two networks of a GAN, trained in alternation as two pipelines: the pipeline of the generator contains a frozen
//! copy of the discriminator, which is replaced after each step of the discriminator.

use std::collections::BTreeMap;
use std::ops::Range;

use burn::module::Module;
use burn::nn::{BatchNorm, BatchNormConfig, Linear, LinearConfig};
use burn::optim::AdamConfig;
use burn::tensor::activation::{leaky_relu, softplus, tanh};
use burn::tensor::{Device, Tensor};
use tempfile::TempDir;
use tinderbox::deferred::parameter_values;
use tinderbox::deferred::random::Seed;
use tinderbox::{Batch, Checkpoints, Deferred, DynTensor, Machine, Outputs, Pipeline, Traceable};

use super::entry::SAMPLES;
use crate::plain::{gradients, parameters, weighted};
use crate::split::split;
use crate::values::floats;

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

/// The model of the generator's pipeline.
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

/// Returns the loss and the images of the generator.
fn generator_loss(
    generator: &Generator,
    against: &Discriminator,
    noise: Tensor<2>,
) -> (Tensor<1>, Tensor<2>) {
    let images = generator.forward(noise);
    let scores = against.forward(images.clone());
    (softplus(scores.neg(), 1.0).mean(), images)
}

/// Returns the loss of the discriminator.
fn discriminator_loss(net: &Discriminator, real: Tensor<2>, images: Tensor<2>) -> Tensor<1> {
    let real = softplus(net.forward(real).neg(), 1.0).mean();
    real + softplus(net.forward(images), 1.0).mean()
}

fn noise(step: u64, device: &Device) -> Tensor<2> {
    floats([SAMPLES, WIDTH], step, device)
}

fn real(step: u64, device: &Device) -> Tensor<2> {
    floats([SAMPLES, WIDTH], step + 1000, device) * 0.5
}

type Values = BTreeMap<String, Vec<u8>>;

/// Returns a network with the initial values of a seed.
fn materialized<M: Module + Sync + 'static>(
    init: fn(&Device) -> M,
    seed: u64,
    device: &Device,
) -> M {
    let model = Deferred::new(init).expect("it is recorded");
    let initializer = model.initializer(Seed::new(seed));
    model
        .materialize(device, &initializer)
        .expect("it is materialized")
}

/// Trains in plain Burn: each step of the generator is followed by a step of the discriminator on the same images.
fn plain(micro_batches: usize) -> [Values; 2] {
    let device = Device::flex().autodiff();
    let mut generator = materialized(generator, 1, &device);
    let mut discriminator = materialized(discriminator, 2, &device);
    let (mut of_generator, mut of_discriminator) =
        (AdamConfig::new().init(), AdamConfig::new().init());
    for step in 0..STEPS {
        let parts = split(&noise(step, &device), micro_batches);
        let mut images = Vec::new();
        let summed = gradients(&generator, weighted(parts, SAMPLES), |noise| {
            let (loss, made) = generator_loss(&generator, &discriminator, noise);
            images.push(made.detach());
            loss
        });
        generator = of_generator.step(RATE, generator, summed);
        let parts = split(&real(step, &device), micro_batches);
        let mut images = images.into_iter();
        let summed = gradients(&discriminator, weighted(parts, SAMPLES), |real| {
            let images = images.next().expect("as many images as parts");
            discriminator_loss(&discriminator, real, images)
        });
        discriminator = of_discriminator.step(RATE, discriminator, summed);
    }
    let trained = (generator.valid(), discriminator.valid());
    [parameters(&trained.0), parameters(&trained.1)]
}

fn start<M: Module + Sync + 'static, B: Batch>(
    model: &Deferred<M>,
    batch: &B,
    forward: fn(&M, B) -> Outputs,
    (stages, micro_batches, seed): (usize, usize, u64),
) -> Pipeline<M, B> {
    let trace = model
        .trace(batch, micro_batches, forward)
        .expect("it is traced");
    let machine = Machine::local(stages).expect("there are stages");
    let plan = trace.plan(&machine).expect("it is planned");
    Pipeline::builder(model, &trace, &plan)
        .optimizer(AdamConfig::new())
        .seed(seed)
        .start()
        .expect("it starts")
}

/// The pipeline of the generator, and the pipeline of the discriminator.
struct Pair {
    generator: Pipeline<Adversaries, Tensor<2>>,
    discriminator: Pipeline<Discriminator, (Tensor<2>, Tensor<2>)>,
}

/// Returns the values of a module, with the name of a field before each path.
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
        // The initial values in plain Burn, where the generator is a model of its own.
        let initial = prefixed("generator", &materialized(generator, 1, &device));
        let setting = |seed| (stages, micro_batches, seed);
        let mut generator = start(
            &adversaries.expect("it is recorded"),
            &noise(0, &device),
            |both: &Adversaries, noise| {
                let (loss, images) = generator_loss(&both.generator, &both.discriminator, noise);
                Outputs::loss(loss).with("images", images)
            },
            setting(1),
        );
        let discriminator = start(
            &Deferred::new(discriminator).expect("it is recorded"),
            &(real(0, &device), real(1, &device)),
            |net, (real, images)| Outputs::loss(discriminator_loss(net, real, images)),
            setting(2),
        );
        let replaced = generator.set_parameters(initial);
        replaced.expect("they are the generator's");
        Self {
            generator,
            discriminator,
        }
    }

    fn train(&mut self, steps: Range<u64>) {
        let device = Device::flex();
        for step in steps {
            let current = self.discriminator.gather(&device).expect("it is gathered");
            let replaced = self
                .generator
                .set_parameters(prefixed("discriminator", &current));
            replaced.expect("they are the discriminator's");
            let output = self.generator.step(RATE, noise(step, &device));
            let images = output.expect("it steps").tensor::<2>("images");
            let batch = (real(step, &device), images.expect("it is an output"));
            self.discriminator.step(RATE, batch).expect("it steps");
        }
    }

    fn values(&mut self) -> [Values; 2] {
        let device = Device::flex();
        let both = self.generator.gather(&device).expect("it is gathered");
        let other = self.discriminator.gather(&device).expect("it is gathered");
        [parameters(&both.generator), parameters(&other)]
    }
}

/// Trains two pipelines in one run, and in a run that is saved and resumed with another number of stages.
fn pipelined(stages: usize, others: usize, micro_batches: usize) -> [[Values; 2]; 2] {
    let dirs = [(); 2].map(|()| tempfile::tempdir().expect("a directory"));
    let [of_generator, of_discriminator] = [0, 1].map(|at| {
        let dir: &TempDir = &dirs[at];
        let saves = Checkpoints::open(dir.path()).expect("it is empty");
        saves.every(SAVED_AT)
    });
    let mut first = Pair::new(stages, micro_batches);
    first.train(0..SAVED_AT);
    for saved in [
        of_generator.after_step(&mut first.generator, 0),
        of_discriminator.after_step(&mut first.discriminator, 0),
    ] {
        saved.expect("it is saved").expect("a save is due");
    }
    first.train(SAVED_AT..STEPS);
    let mut second = Pair::new(others, micro_batches);
    for resumed in [
        of_generator.resume(&mut second.generator),
        of_discriminator.resume(&mut second.discriminator),
    ] {
        let resumed = resumed.expect("it is resumed");
        resumed.expect("there is a checkpoint");
    }
    second.train(SAVED_AT..STEPS);
    [first.values(), second.values()]
}

/// Returns the settings in which two pipelines differ from plain Burn.
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
