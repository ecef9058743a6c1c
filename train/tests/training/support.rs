//! A model with its data, and its training under burn-train.

use std::path::Path;
use std::sync::Arc;

use burn::data::dataloader::batcher::Batcher;
use burn::data::dataloader::{DataLoader, DataLoaderBuilder};
use burn::data::dataset::{Dataset, DatasetError, InMemDataset};
use burn::module::Module;
use burn::nn::loss::CrossEntropyLossConfig;
use burn::nn::{BatchNorm, BatchNormConfig, Linear, LinearConfig};
use burn::optim::AdamWConfig;
use burn::optim::lr_scheduler::cosine::CosineAnnealingLrSchedulerConfig;
use burn::optim::lr_scheduler::module_lr_scheduler::ModuleLrScheduler;
use burn::tensor::{Device, Int, Tensor, TensorData, activation::relu};
use burn_train::{ClassificationOutput, InferenceStep, SupervisedTraining, TrainOutput, TrainStep};
use tinderbox::deferred::{Values, parameter_values};
use tinderbox::{Batch, Deferred, Machine, Outputs, ParameterPath, Pipeline, Planner, Traceable};
use tinderbox_train::StepItem;

pub const WIDTH: usize = 6;
pub const CLASSES: usize = 3;
pub const SEED: u64 = 7;
pub const EPOCHS: usize = 4;
/// Not a multiple of the batch size.
const TRAIN: usize = 22;
const VALID: usize = 9;
const BATCH: usize = 4;

#[derive(Module, Debug)]
pub struct Net {
    first: Linear,
    norm: BatchNorm,
    second: Linear,
}

impl Net {
    pub fn new(device: &Device) -> Self {
        Self {
            first: LinearConfig::new(WIDTH, 8).init(device),
            norm: BatchNormConfig::new(8).init(device),
            second: LinearConfig::new(8, CLASSES).init(device),
        }
    }

    pub fn classify(&self, batch: Points) -> ClassificationOutput {
        let x = relu(self.norm.forward(self.first.forward(batch.points)));
        let output = self.second.forward(x);
        let loss = CrossEntropyLossConfig::new()
            .init(&output.device())
            .forward(output.clone(), batch.classes.clone());
        ClassificationOutput::new(loss, output, batch.classes)
    }
}

impl TrainStep for Net {
    type Input = Points;
    type Output = ClassificationOutput;

    fn step(&self, batch: Points) -> TrainOutput<ClassificationOutput> {
        let item = self.classify(batch);
        TrainOutput::new(self, item.loss.backward(), item)
    }
}

impl InferenceStep for Net {
    type Input = Points;
    type Output = ClassificationOutput;

    fn step(&self, batch: Points) -> ClassificationOutput {
        self.classify(batch)
    }
}

#[derive(Clone, Debug, Batch)]
pub struct Points {
    pub points: Tensor<2>,
    pub classes: Tensor<1, Int>,
}

struct PointBatcher;

impl Batcher<usize, Points> for PointBatcher {
    fn batch(&self, items: Vec<usize>, device: &Device) -> Points {
        // Any numbers.
        let point = |item: usize| (0..WIDTH).map(move |k| ((item * 7 + k * k) as f32).sin());
        let points: Vec<f32> = items.iter().copied().flat_map(point).collect();
        let classes: Vec<i64> = items.iter().map(|item| (item % CLASSES) as i64).collect();
        let count = items.len();
        Points {
            points: Tensor::from_data(TensorData::new(points, [count, WIDTH]), device),
            classes: Tensor::from_data(TensorData::new(classes, [count]), device),
        }
    }
}

pub type Loader = Arc<dyn DataLoader<Points>>;

fn loader(items: std::ops::Range<usize>, seed: u64) -> Loader {
    loader_of(InMemDataset::new(items.collect()), seed)
}

fn loader_of(data: impl Dataset<usize> + 'static, seed: u64) -> Loader {
    DataLoaderBuilder::new(PointBatcher)
        .batch_size(BATCH)
        .shuffle(seed)
        .build(data)
}

/// The data for training, with one item that can't be read.
struct Damaged(usize);

impl Dataset<usize> for Damaged {
    fn get(&self, index: usize) -> Result<usize, DatasetError> {
        match index == self.0 {
            true => Err(DatasetError::new(std::io::Error::other("unreadable"))),
            false => Ok(index),
        }
    }

    fn len(&self) -> usize {
        TRAIN
    }
}

/// The training of a directory in which an item can't be read.
pub fn damaged(dir: &Path) -> SupervisedTraining<Net> {
    with_loaders(
        dir,
        loader_of(Damaged(5), 1),
        loader(TRAIN..TRAIN + VALID, 2),
    )
}

pub fn train_loader() -> Loader {
    loader(0..TRAIN, 1)
}

/// The training of a directory, with the loaders of every run.
pub fn training(dir: &Path) -> SupervisedTraining<Net> {
    with_loaders(dir, train_loader(), loader(TRAIN..TRAIN + VALID, 2))
}

fn with_loaders(dir: &Path, train: Loader, valid: Loader) -> SupervisedTraining<Net> {
    SupervisedTraining::new(dir, train, valid)
        .num_epochs(EPOCHS)
        .with_application_logger(None)
        .renderer(Box::new(burn_train::renderer::CliMetricsRenderer::new()))
}

/// The rate of every run: each step has another.
pub fn scheduler() -> ModuleLrScheduler {
    CosineAnnealingLrSchedulerConfig::new(0.05, 30)
        .init()
        .unwrap()
}

pub fn optimizer() -> AdamWConfig {
    AdamWConfig::new().with_weight_decay(0.01)
}

/// A pipeline that measures its steps.
pub fn pipeline(stages: usize, micro_batches: usize) -> Pipeline<Net, Points> {
    start(stages, micro_batches, SEED, |net, batch| {
        net.classify(batch).into_outputs()
    })
}

pub fn start(
    stages: usize,
    micro_batches: usize,
    seed: u64,
    forward: fn(&Net, Points) -> Outputs,
) -> Pipeline<Net, Points> {
    let machine = Machine::local(stages).unwrap();
    start_on(&machine, micro_batches, seed, forward)
}

pub fn start_on(
    machine: &Machine,
    micro_batches: usize,
    seed: u64,
    forward: fn(&Net, Points) -> Outputs,
) -> Pipeline<Net, Points> {
    let model = Deferred::new(Net::new).unwrap();
    let example = train_loader().iter().next().unwrap().unwrap();
    let trace = model.trace(&example, micro_batches, forward).unwrap();
    let plan = Planner::new(&trace, machine).plan().unwrap();
    Pipeline::builder(&model, &trace, &plan)
        .optimizer(optimizer())
        .seed(seed)
        .measure()
        .start()
        .unwrap()
}

/// The bits of all parameters.
pub fn bits(model: &impl Module) -> Vec<(String, Vec<u8>)> {
    let values = parameter_values(model).into_iter();
    let bits = values.map(|(path, value)| {
        let data = value.without_autodiff().to_data().unwrap();
        (path.to_string(), data.as_bytes().to_vec())
    });
    bits.collect()
}

/// The initial values of a pipeline, under the paths of a model with the net in its field `net`.
pub fn initial() -> Values {
    let net = pipeline(1, 1).gather(&Device::flex()).unwrap();
    let values = parameter_values(&net).into_iter();
    values
        .map(|(path, value)| (ParameterPath::new(format!("net.{path}")), value))
        .collect()
}
