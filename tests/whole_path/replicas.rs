//! Checkpoints of replicas: what they share is saved once, and any number of replicas and stages resumes it.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use burn::module::Module;
use burn::nn::{Embedding, EmbeddingConfig, Linear, LinearConfig};
use burn::optim::AdamWConfig;
use burn::tensor::{Device, Int, Tensor, TensorData};
use tinderbox::checkpoint::Run;
use tinderbox::world::WorldOptions;
use tinderbox::{
    Checkpoint, Checkpoints, Clipping, Cut, Deferred, GradientSum, Machine, Outputs, Pipeline,
    Planner, Traceable, World, compare_with_burn,
};
use tinderbox_engines::{Delays, Threads};

use crate::plain::{LR, SEED};

/// The embedding is large enough to be divided between replicas.
#[derive(Module, Debug)]
struct Net {
    words: Embedding,
    hidden: Linear,
    head: Linear,
}

const WORDS: usize = 8_200;
const WIDTH: usize = 512;
const SAMPLES: usize = 8;

type Batch = (Tensor<2, Int>, Tensor<2>);

fn batch(step: u64) -> Batch {
    let device = Device::flex();
    let words = (0..SAMPLES * 3).map(|k| (k as i32 * 997 + step as i32 * 31) % WORDS as i32);
    let words = TensorData::new(words.collect::<Vec<i32>>(), [SAMPLES, 3]);
    let targets = (0..SAMPLES * 4).map(|k| ((k as u64 + step) as f32).sin());
    let targets = TensorData::new(targets.collect::<Vec<f32>>(), [SAMPLES, 4]);
    (
        Tensor::from_data(words, &device),
        Tensor::from_data(targets, &device),
    )
}

fn forward(net: &Net, (words, y): Batch) -> Outputs {
    let x = net.words.forward(words).mean_dim(1).squeeze_dim::<2>(1);
    let x = net.head.forward(net.hidden.forward(x).tanh());
    Outputs::loss((x - y).powf_scalar(2.0).mean())
}

fn model() -> Deferred<Net> {
    Deferred::new(|device| Net {
        words: EmbeddingConfig::new(WORDS, WIDTH).init(device),
        hidden: LinearConfig::new(WIDTH, 16).init(device),
        head: LinearConfig::new(16, 4).init(device),
    })
    .unwrap()
}

fn start(replicas: usize, ranks: usize, world: &World) -> Pipeline<Net, Batch> {
    let model = model();
    let trace = model.trace(&batch(0), 4, forward).unwrap();
    let cuts = [Cut::before("hidden"), Cut::before("head")];
    let machine = Machine::local(replicas * ranks).unwrap();
    let planner = Planner::new(&trace, &machine).cuts(&cuts[..ranks - 1]);
    let plan = planner.replicas(replicas).plan().unwrap();
    Pipeline::builder(&model, &trace, &plan)
        .optimizer(AdamWConfig::new())
        .clip(Clipping::GlobalNorm(0.1))
        .gradient_sum(GradientSum::Tree(8))
        .seed(SEED)
        .threads_per_rank(1)
        .world(world)
        .start()
        .unwrap()
}

/// Trains to a step, and returns the losses and norms.
fn train(pipeline: &mut Pipeline<Net, Batch>, to: u64) -> Vec<f64> {
    let mut seen = Vec::new();
    while pipeline.steps() < to {
        let output = pipeline.step(LR, batch(pipeline.steps())).unwrap();
        seen.extend(output.micro_batch_losses);
        seen.extend(output.gradient_norm);
    }
    seen
}

const SHAPES: [(usize, usize); 6] = [(1, 1), (1, 3), (2, 1), (2, 2), (4, 1), (2, 3)];

/// The names of saved tensors, with the number of files that have parts of them, and all bytes.
fn contents(dir: &Path) -> (BTreeMap<String, usize>, u64) {
    let checkpoint = Checkpoint::open(dir).unwrap();
    let tensors = checkpoint.manifest().tensors.iter();
    let parts = tensors.map(|tensor| (tensor.name.clone(), tensor.chunks.len()));
    let bytes = checkpoint
        .manifest()
        .files
        .iter()
        .map(|file| file.size_bytes)
        .sum();
    (parts.collect(), bytes)
}

#[test]
fn any_number_of_replicas_resumes_what_others_saved() {
    let mut alone = start(1, 1, &World::alone());
    let expected = train(&mut alone, 5);
    let per_step = expected.len() / 5;
    let mut sizes = Vec::new();
    for (replicas, ranks) in SHAPES {
        let dir = tempfile::tempdir().unwrap();
        let saves = Checkpoints::open(dir.path()).unwrap();
        let mut first = start(replicas, ranks, &World::alone());
        assert_eq!(train(&mut first, 3), expected[..3 * per_step]);
        let saved = saves.save(&mut first, 0).unwrap();
        drop(first);
        let (parts, bytes) = contents(&saved);
        sizes.push(bytes);
        let divided: Vec<&str> = parts
            .iter()
            .filter(|(_, count)| **count > 1)
            .map(|(name, _)| name.as_str())
            .collect();
        match replicas {
            1 => assert!(divided.is_empty()),
            _ => assert_eq!(
                divided,
                [
                    "optimizer.words.weight.momentum.moment_1",
                    "optimizer.words.weight.momentum.moment_2"
                ]
            ),
        }
        for (replicas, ranks) in SHAPES {
            let mut again = start(replicas, ranks, &World::alone());
            saves.resume(&mut again).unwrap().unwrap();
            let found = train(&mut again, 5);
            assert_eq!(found, expected[3 * per_step..], "{replicas} x {ranks}");
        }
    }
    // Headers differ, values are saved once.
    let (least, most) = (sizes.iter().min().unwrap(), sizes.iter().max().unwrap());
    assert!(most - least < 64 << 10, "{sizes:?}");
}

#[test]
fn processes_save_and_resume_replicas() {
    let expected = train(&mut start(1, 1, &World::alone()), 3);
    let per_step = expected.len() / 3;
    let dir = tempfile::tempdir().unwrap();
    let mut options = WorldOptions::default();
    options.heartbeat = Duration::from_millis(100);
    let run = |replicas, ranks, to| {
        Threads::run(replicas * ranks, Delays::default(), &options, |world, _| {
            let mut pipeline = start(replicas, ranks, &world);
            let saves = Checkpoints::in_world(Run::local(dir.path()), &world).unwrap();
            saves.resume(&mut pipeline).unwrap();
            let seen = train(&mut pipeline, to);
            saves.save(&mut pipeline, to).unwrap();
            seen
        })
        .unwrap()
    };
    for (step, (replicas, ranks)) in [(2, 2), (4, 1), (2, 1)].into_iter().enumerate() {
        let found = run(replicas, ranks, step as u64 + 1);
        for found in found {
            assert_eq!(found, expected[step * per_step..(step + 1) * per_step]);
        }
    }
}

/// The gradients of replicas, put together, are plain Burn's gradients.
#[test]
fn a_step_of_replicas_agrees_with_plain_burn() {
    let model = model();
    let trace = model.trace(&batch(0), 4, forward).unwrap();
    let machine = Machine::local(4).unwrap();
    let planner = Planner::new(&trace, &machine).cuts(&[Cut::before("head")]);
    let plan = planner.replicas(2).plan().unwrap();
    let builder = Pipeline::builder(&model, &trace, &plan);
    let report = compare_with_burn(builder, batch(3), forward).unwrap();
    assert!(report.agrees(), "{report}");
    assert_eq!(report.parameters.len(), 5);
}
