//! Cost of materializing random parameters.
//!
//! `cargo bench --workspace --bench materialize` prints one figure per line. The compared operations alternate in one
//! run, and each figure is computed from medians. The measurement covers the full cost for a user: a model
//! with one parameter of 256 MiB is materialized from a seed, including its memory. That memory is new to the
//! process, except for the *again* figures, which are of a second such model, materialized after the first
//! was freed.
//!
//! - *eager* is `Tensor::random` of plain Burn on the same device, with the same shape and distribution.
//! - *fill* writes a constant to fresh memory of the same size on all cores, in small and in large pages that
//!   the system populates on write; the faster result is reported.
//! - *kernel* is the GPU kernel on CubeCL's CPU runtime, with the feature `cpu`, for information.
//! - *inner* is the arithmetic alone: one thread, repeatedly into the same 64 KiB.

mod weight;

use std::hint::black_box;
use std::time::Instant;

use burn::tensor::{DType, Device, Distribution};
use rayon::prelude::*;
use tinderbox::Deferred;
use tinderbox::deferred::random::{Domain, Seed, Stream, fill};

use weight::Weight;

/// Enough for a median that is robust against one disturbance.
const RUNS: usize = 9;
const ROWS: usize = 16 << 10;
const COLUMNS: usize = 4 << 10;
const NORMAL: Distribution = Distribution::Normal(0.0, 0.02);
const UNIFORM: Distribution = Distribution::Uniform(-0.02, 0.02);
/// Bytes per task of a fill.
const FILL_TASK: usize = 256 << 10;

fn main() {
    let f32_normal = Weight {
        rows: ROWS,
        columns: COLUMNS,
        distribution: NORMAL,
        dtype: DType::F32,
    };
    let f32_uniform = Weight {
        distribution: UNIFORM,
        ..f32_normal
    };
    let bf16_normal = Weight {
        dtype: DType::BF16,
        ..f32_normal
    };
    let weights = [f32_normal, f32_uniform, bf16_normal];
    let elements = ROWS * COLUMNS;
    let [mut eager, mut initialized, mut again] = [const { [const { Vec::new() }; 3] }; 3];
    let (mut small_pages, mut large_pages) = (Vec::new(), Vec::new());
    let device = Device::flex();
    let kernels = kernel_device();
    let mut of_kernels = [const { Vec::new() }; 3];
    for _ in 0..RUNS {
        for (i, weight) in weights.iter().enumerate() {
            eager[i].push(time(|| weight.eager(&device)));
            tinderbox_memory::release_freed_memory();
            initialized[i].push(time_initializer(weight, &device));
            again[i].push(time_initializer(weight, &device));
            if let Some(device) = &kernels {
                of_kernels[i].push(time_initializer(weight, device));
            }
        }
        small_pages.push(time(|| filled(vec![0; f32_normal.bytes()])));
        large_pages.push(time(|| {
            let mut memory = vec![0; f32_normal.bytes()];
            tinderbox_memory::advise_huge_pages(&mut memory);
            filled(memory)
        }));
    }

    let speed = |seconds: Vec<f64>, weight: &Weight| weight.bytes() as f64 / 1e9 / median(seconds);
    let mut speeds = eager.into_iter().zip(initialized).zip(&weights);
    let mut next = || {
        let ((eager, initialized), weight) = speeds.next().expect("one for each weight");
        (speed(eager, weight), speed(initialized, weight))
    };
    let (normal, uniform, bf16) = (next(), next(), next());
    let small = speed(small_pages, &f32_normal);
    let large = speed(large_pages, &f32_normal);
    let fill = small.max(large);
    println!(
        "{} threads; one parameter of {elements} elements; medians of {RUNS} turns",
        rayon::current_num_threads()
    );
    println!("figure materialize.normal_f32 {:.2} GB/s", normal.1);
    println!("figure materialize.uniform_f32 {:.2} GB/s", uniform.1);
    println!("figure materialize.normal_bf16 {:.2} GB/s", bf16.1);
    println!("figure materialize.eager_normal_f32 {:.2} GB/s", normal.0);
    println!("figure materialize.eager_uniform_f32 {:.2} GB/s", uniform.0);
    println!("figure materialize.eager_normal_bf16 {:.2} GB/s", bf16.0);
    let again = again.into_iter().zip(&weights);
    let mut again = again.map(|(seconds, weight)| speed(seconds, weight));
    for name in ["normal_f32", "uniform_f32", "normal_bf16"] {
        let again = again.next().expect("one for each weight");
        println!("figure materialize.{name}_again {again:.2} GB/s");
    }
    println!(
        "new memory, per thread: {:?}",
        tinderbox_memory::PageChoice::now()
    );
    println!("figure materialize.fill_small_pages {small:.2} GB/s");
    println!("figure materialize.fill_large_pages {large:.2} GB/s");
    for (name, distribution) in [("normal", NORMAL), ("uniform", UNIFORM)] {
        let inner = inner(distribution);
        println!("figure materialize.inner_{name}_f32 {inner:.2} GB/s");
    }
    let names = ["normal_f32", "uniform_f32", "normal_bf16"];
    let initialized = [normal.1, uniform.1, bf16.1];
    let of_kernels = of_kernels
        .into_iter()
        .zip(&weights)
        .zip(names.iter().zip(initialized));
    for ((seconds, weight), (name, simd)) in of_kernels.filter(|_| kernels.is_some()) {
        let speed = speed(seconds, weight);
        println!("figure materialize.kernel_{name} {speed:.2} GB/s");
        println!(
            "figure materialize.kernel_{name}_vs_simd {:.2} ratio",
            speed / simd
        );
    }
    let ratio = |name: &str, value: f64| println!("figure materialize.{name} {value:.2} ratio");
    ratio("normal_f32_vs_eager", normal.1 / normal.0);
    ratio("uniform_f32_vs_eager", uniform.1 / uniform.0);
    ratio("normal_f32_vs_fill", normal.1 / fill);
    ratio("uniform_f32_vs_fill", uniform.1 / fill);
    // An element of bf16 has half the bytes.
    ratio("normal_bf16_vs_f32_elements", 2.0 * bf16.1 / normal.1);
}

/// Returns the seconds to create a value. The drop is not included.
fn time<T>(make: impl FnOnce() -> T) -> f64 {
    let started = Instant::now();
    let made = black_box(make());
    let seconds = started.elapsed().as_secs_f64();
    drop(made);
    seconds
}

/// Returns the seconds from the recorded model to its materialized parameter.
fn time_initializer(weight: &Weight, device: &Device) -> f64 {
    let weight = *weight;
    let model = Deferred::new(move |device| weight.init(device)).expect("it is recorded");
    let source = model.initializer(Seed::new(42));
    time(|| {
        let made = model.materialize_parameters(device, &source);
        device.sync().expect("the device works");
        made.expect("the parameter is materialized")
    })
}

/// Returns CubeCL's CPU runtime, if the build has it.
fn kernel_device() -> Option<Device> {
    tinderbox::deferred::open_devices("cpu").ok()?.pop()
}

/// Writes a constant to fresh memory on all cores.
fn filled(mut memory: Vec<u8>) -> Vec<u8> {
    memory
        .par_chunks_mut(FILL_TASK)
        .for_each(|chunk| chunk.fill(0x3f));
    memory
}

/// Returns the throughput of the arithmetic alone in GB/s, on one thread.
fn inner(distribution: Distribution) -> f64 {
    const ELEMENTS: usize = 16 << 10;
    const REPEATS: usize = 200;
    let stream = Stream::new(Seed::new(42), Domain::Init, "weight", 0);
    let mut out = vec![0f32; ELEMENTS];
    let seconds = (0..RUNS)
        .map(|_| {
            time(|| {
                for _ in 0..REPEATS {
                    fill(&stream, distribution, 0, black_box(&mut out)).expect("it is valid");
                }
            })
        })
        .collect();
    (REPEATS * ELEMENTS * size_of::<f32>()) as f64 / 1e9 / median(seconds)
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
