//! How close the matrix products of a program come to what a core can multiply.

use std::hint::black_box;
use std::time::Instant;

use burn::nn::{Linear, LinearConfig};
use burn::tensor::{Device, Tensor};
use fearless_simd::prelude::*;
use fearless_simd::{Level, dispatch};
use tinderbox::{Deferred, Machine, Outputs, Pipeline, Traceable};
use tinderbox_benches::figures::median;

use crate::BENCH;

const ROWS: usize = 256;
const WIDTH: usize = 1024;
const LAYERS: usize = 8;

/// Prints the speed of products of [256, 1024] and [1024, 1024] in the forward of a pipeline of one rank with one thread, and
/// what it is of the fused multiply-adds of the machine's widest vectors.
pub fn figures() {
    let model = Deferred::new(|device: &Device| -> Vec<Linear> {
        let config = LinearConfig::new(WIDTH, WIDTH).with_bias(false);
        (0..LAYERS).map(|_| config.init(device)).collect()
    })
    .unwrap();
    let x = || Tensor::<2>::ones([ROWS, WIDTH], &Device::flex());
    let trace = model.trace(&x(), 1, |layers: &Vec<Linear>, x| {
        Outputs::loss(layers.iter().fold(x, |x, layer| layer.forward(x)).mean())
    });
    let trace = trace.unwrap();
    let plan = trace.plan(&Machine::local(1).unwrap()).unwrap();
    let builder = Pipeline::builder(&model, &trace, &plan);
    let mut pipeline = builder.threads_per_rank(1).start().unwrap();
    pipeline.evaluate(x()).unwrap();
    let (mut speeds, mut ratios) = (Vec::new(), Vec::new());
    for _ in 0..BENCH.turns() {
        let peak = peak_gflops();
        let started = Instant::now();
        pipeline.evaluate(x()).unwrap();
        let seconds = started.elapsed().as_secs_f64();
        let speed = (2 * ROWS * WIDTH * WIDTH * LAYERS) as f64 / seconds / 1e9;
        speeds.push(speed);
        ratios.push(speed / peak);
    }
    BENCH.figure("products_gflops", median(speeds), "GFLOP/s");
    BENCH.figure("products_vs_fma_peak", median(ratios), "ratio");
}

/// Measures fused multiply-adds that do not wait for each other and use no memory.
fn peak_gflops() -> f64 {
    let level = Level::new();
    dispatch!(level, simd => chained(simd))
}

#[inline(always)]
fn chained<S: Simd>(simd: S) -> f64 {
    // Two units with a latency of four cycles are busy with eight; more hide what the loop costs.
    const CHAINS: usize = 16;
    const ROUNDS: usize = 4 << 20;
    let splat = |value: f32| S::f32s::splat(simd, black_box(value));
    let (factor, term) = (splat(0.999), splat(1e-3));
    let mut sums = [splat(1.0); CHAINS];
    let started = Instant::now();
    for _ in 0..ROUNDS {
        for sum in &mut sums {
            *sum = sum.mul_add_precise(factor, term);
        }
    }
    let seconds = started.elapsed().as_secs_f64();
    let lanes = sums[0].as_slice().len();
    for sum in sums {
        black_box(sum.as_slice());
    }
    (2 * CHAINS * ROUNDS * lanes) as f64 / seconds / 1e9
}
