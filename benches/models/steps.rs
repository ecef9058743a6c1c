//! A training step of a ResNet-18 in one stage and in plain Burn.

use std::time::Instant;

use burn::module::Module;
use burn::optim::AdamWConfig;
use burn::tensor::{Device, Int, Tensor};
use tinderbox::deferred::random::Seed;
use tinderbox::{Deferred, Machine, Outputs, Pipeline, Traceable};
use tinderbox_benches::figures::median;
use tinderbox_models::plain::{gradients, weighted};
use tinderbox_models::split::split;
use tinderbox_models::values::{floats, tokens};
use tinderbox_models::zoo::{cross_entropy, images::ResNet};

use crate::BENCH;

/// The channels of a ResNet-18.
const CHANNELS: [usize; 4] = [64, 128, 256, 512];
const SAMPLES: usize = 16;
const MICRO_BATCHES: usize = 4;
const RATE: f64 = 1e-3;
const SEED: u64 = 1;

type Batch = (Tensor<4>, Tensor<1, Int>);

/// Images of 64 x 64 pixels.
fn batch(number: u64, device: &Device) -> Batch {
    (
        floats([SAMPLES, 3, 64, 64], number, device),
        tokens([SAMPLES], 10, number + 1000, device),
    )
}

fn loss(model: &ResNet, (images, classes): Batch) -> Tensor<1> {
    cross_entropy(model.forward(images), classes)
}

/// Prints the speed of a step in one stage as a multiple of plain Burn's, each with all cores.
pub fn figures() {
    let model = Deferred::new(|device| ResNet::new(CHANNELS, device)).expect("it is recorded");
    let host = Device::flex();
    let trace = model
        .trace(&batch(0, &host), MICRO_BATCHES, |model: &ResNet, batch| {
            Outputs::loss(loss(model, batch))
        })
        .expect("it is traced");
    let machine = Machine::local(1).expect("a machine of one rank");
    let plan = trace.plan(&machine).expect("it is planned");
    let mut pipeline = Pipeline::builder(&model, &trace, &plan)
        .optimizer(AdamWConfig::new())
        .seed(SEED)
        .start()
        .expect("it starts");
    let device = Device::flex().autodiff();
    let initializer = model.initializer(Seed::new(SEED));
    let mut plain = model
        .materialize(&device, &initializer)
        .expect("it materializes");
    let mut optimizer = AdamWConfig::new().init();
    let (mut ratios, mut times) = (Vec::new(), Vec::new());
    for turn in 0..=BENCH.turns() as u64 {
        let started = Instant::now();
        let parts = split(&batch(turn, &device), MICRO_BATCHES);
        // All parts have as many samples.
        let mut total = 0.0;
        let summed = gradients(&plain, weighted(parts, SAMPLES), |part| {
            let loss = loss(&plain, part);
            total += loss.clone().into_scalar::<f32>() / MICRO_BATCHES as f32;
            loss
        });
        plain = optimizer.step(RATE, plain, summed);
        let of_plain = started.elapsed().as_secs_f64();

        let started = Instant::now();
        let output = pipeline.step(RATE, batch(turn, &host)).expect("it steps");
        let of_pipeline = started.elapsed().as_secs_f64();
        let (found, total) = (output.loss, f64::from(total));
        assert!((found - total).abs() < 1e-4, "{found} {total}");
        // The first step loads programs and allocates memory.
        if turn > 0 {
            ratios.push(of_plain / of_pipeline);
            times.push(of_plain);
        }
    }
    assert!(plain.num_params() > 11_000_000);
    BENCH.figure("resnet_plain_step_ms", median(times) * 1e3, "ms");
    BENCH.figure("resnet_step_vs_burn", median(ratios), "ratio");
}
