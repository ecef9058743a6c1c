//! Training during a save.

use std::path::Path;
use std::time::Instant;

use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::optim::AdamWConfig;
use burn::tensor::{Device, Tensor};
use tinderbox::{Checkpoints, Deferred, Machine, Outputs, Pipeline, Traceable};

use crate::{RUNS, median, remove, time};

/// Layers of 16 MiB: with two moments each, 1 GiB is saved.
const LAYERS: usize = 21;
const WIDTH: usize = 2048;
const SAMPLES: usize = 64;
const STEPS: usize = 3;

#[derive(Module, Debug)]
struct Tower {
    layers: Vec<Linear>,
}

fn batch() -> Tensor<2> {
    Tensor::ones([SAMPLES, WIDTH], &Device::flex())
}

fn start() -> Pipeline<Tower, Tensor<2>> {
    let linear = LinearConfig::new(WIDTH, WIDTH).with_bias(false);
    let model = Deferred::new(move |device: &Device| Tower {
        layers: (0..LAYERS).map(|_| linear.init(device)).collect(),
    });
    let model = model.unwrap();
    let trace = model.trace(&batch(), 4, |tower: &Tower, x| {
        let y = tower.layers.iter().fold(x, |x, layer| layer.forward(x));
        Outputs::loss(y.mean())
    });
    let trace = trace.unwrap();
    let plan = trace.plan(&Machine::local(2).unwrap()).unwrap();
    let builder = Pipeline::builder(&model, &trace, &plan);
    builder.optimizer(AdamWConfig::new()).start().unwrap()
}

/// Prints the time of training steps from the start of a background save of 1 GiB to the end of the step in
/// which it ends, relative to the same number of steps without a save; and that time itself, because a save
/// with low priority takes longer.
pub fn figures(dir: &Path) {
    let mut pipeline = start();
    pipeline.step(1e-3, batch()).unwrap();
    let (mut ratios, mut alone, mut saves) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..RUNS {
        let mut step = || pipeline.step(1e-3, batch()).map(drop).unwrap();
        let without: Vec<f64> = (0..STEPS).map(|_| time(&mut step)).collect();
        let place = dir.join("run");
        let run = Checkpoints::open(&place).unwrap().in_background();
        let begun = Instant::now();
        let published = run.save(&mut pipeline, 0).unwrap();
        let mut steps = 0;
        while !published.exists() {
            pipeline.step(1e-3, batch()).unwrap();
            steps += 1;
        }
        let with = begun.elapsed().as_secs_f64();
        run.wait().unwrap();
        remove(&place);
        let without = median(without);
        ratios.push(with / (f64::from(steps) * without));
        alone.push(without);
        saves.push(with);
    }
    println!("training: steps of {:.0} ms", median(alone) * 1e3);
    println!("figure checkpoint.train_save_s {:.2} s", median(saves));
    println!(
        "figure checkpoint.train_slowdown {:.3} ratio",
        median(ratios)
    );
}
