//! Measures ranks that are threads.

use std::time::{Duration, Instant};

use burn::nn::{Linear, LinearConfig};
use burn::optim::SgdConfig;
use burn::tensor::{Device, Distribution, Tensor};
use tinderbox_deferred::{Deferred, available_for};
use tinderbox_planner::{Machine, RankModel, Rates};

use crate::profile::Repeated;
use crate::schedule::{LinkCosts, ScheduleKind, Timeline};
use crate::{CalibrateError, Cut, Outputs, Pipeline, Plan, ProfileError, Traceable};

/// Rows and columns of the matrices whose product is timed: 128 MFLOP of f32.
const MATRIX: usize = 400;
/// Elements of the tensors that are added: 64 MiB of f32 each, beyond any cache.
const ELEMENTS: usize = 16 << 20;
/// Micro-batches of the step that is timed.
const MICRO_BATCHES: usize = 128;
/// Repetitions of each measurement, of which the median is used.
pub(super) const TURNS: usize = 7;

/// Measures a machine whose ranks are threads of this process, each with `threads` threads: the compute
/// and memory throughput of each rank while the others run too, the overhead of an action and of a
/// message, and an equal share of the free memory. Takes a few seconds.
///
/// # Errors
///
/// When there are no ranks, threads can't be started, or the timed pipeline fails.
pub fn calibrate(device: &Device, ranks: usize, threads: usize) -> Result<Machine, CalibrateError> {
    // The same allocator settings as in a pipeline.
    tinderbox_pages::keep_freed_blocks();
    let device = device.clone().without_autodiff();
    let memory = available_for(&device, u64::MAX).map(|bytes| bytes / ranks.max(1) as u64);
    let rank = RankModel {
        memory_bytes: memory,
        ..RankModel::default()
    };
    let mut machine = Machine::of_ranks(vec![rank; ranks])?;
    let product = median_time(ranks, threads, || product_time(&device))?;
    let sum = median_time(ranks, threads, || sum_time(&device))?;
    let small = median_time(ranks, threads, || small_time(&device))?;
    let per_second = |amount: usize, time: Duration| -> u64 {
        (amount as f64 / time.as_secs_f64().max(1e-9)) as u64
    };
    machine.rates = Rates {
        flops_per_s: per_second(2 * MATRIX * MATRIX * MATRIX, product),
        // Two tensors are read and one is written.
        bytes_per_s: per_second(3 * 4 * ELEMENTS, sum),
        operation_ns: nanoseconds(small),
    };
    let (action_ns, latency) = action_times(&device)?;
    machine.action_ns = action_ns;
    machine.link = LinkCosts {
        latency,
        // A message between threads is passed without a copy; its reader finds it in memory, not in its
        // cache.
        ticks_per_mib: (1_u64 << 20) * 1_000_000_000 / machine.rates.bytes_per_s.max(1),
        ..LinkCosts::default()
    };
    Ok(machine)
}

pub(super) fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// Returns the median time over all ranks while all run.
fn median_time(
    ranks: usize,
    threads: usize,
    time: impl Fn() -> Duration + Sync,
) -> Result<Duration, ProfileError> {
    let repeated = Repeated {
        ranks,
        threads: threads.max(1),
        warm_up: 1,
        repetitions: TURNS,
    };
    Ok(median(repeated.run(|| Ok(()), |()| Ok(time()))?))
}

/// Returns the time until the device has finished `run`. The timed pipeline reports a device that
/// fails.
fn timed(device: &Device, run: impl FnOnce()) -> Duration {
    device.sync().ok();
    let start = Instant::now();
    run();
    device.sync().ok();
    start.elapsed()
}

fn product_time(device: &Device) -> Duration {
    let matrix = || Tensor::<2>::full([MATRIX, MATRIX], 0.5, device);
    let (a, b) = (matrix(), matrix());
    timed(device, || drop(a.matmul(b)))
}

fn sum_time(device: &Device) -> Duration {
    let tensor = || Tensor::<1>::full([ELEMENTS], 0.5, device);
    // Both inputs stay alive, so that the sum is written to its own memory.
    let (a, b) = (tensor(), tensor());
    let (first, second) = (a.clone(), b.clone());
    let time = timed(device, || drop(std::hint::black_box(first + second)));
    drop((a, b));
    time
}

/// Times an operation on one element.
fn small_time(device: &Device) -> Duration {
    const OPERATIONS: u32 = 1000;
    let mut x = Tensor::<1>::full([1], 0.5, device);
    let time = timed(device, || {
        for _ in 0..OPERATIONS {
            let next = x.clone() + x.clone();
            x = next.mul_scalar(0.5);
        }
    });
    time / (2 * OPERATIONS)
}

/// Returns the overhead of an action besides its program, and the time of a message from its send to
/// its arrival: medians over the steps of a pipeline of two ranks whose matrices have one element.
fn action_times(device: &Device) -> Result<(u64, u64), CalibrateError> {
    let model = Deferred::new(|device: &Device| -> Vec<Linear> {
        let layer = || LinearConfig::new(1, 1).init(device);
        vec![layer(), layer()]
    })?;
    let batch = Tensor::<2>::random([MICRO_BATCHES, 1], Distribution::Default, device);
    let example = batch.clone().narrow(0, 0, 1);
    let trace = model.trace(&example, |layers: &Vec<Linear>, x: Tensor<2>| {
        let y = layers.iter().fold(x, |x, layer| layer.forward(x));
        Outputs::loss(y.mean())
    })?;
    let plan = Plan::manual(&trace, &[Cut::before("1")])?;
    let mut pipeline = Pipeline::new(&model, &trace, &plan)
        .optimizer(SgdConfig::new())
        .schedule(ScheduleKind::OneFOneB)
        .micro_batches(MICRO_BATCHES)
        .threads_per_rank(1)
        .device(device)
        .measure()
        .start()?;
    let (mut actions, mut messages) = (Vec::new(), Vec::new());
    for _ in 0..=TURNS {
        let output = pipeline.step(1e-3, batch.clone())?;
        if let Some(timeline) = output.timeline {
            actions.extend(action_ns(&timeline));
            messages.extend(timeline.latencies());
        }
    }
    Ok((median(actions), median(messages)))
}

pub(super) fn median<T: Ord + Copy + Default>(mut values: Vec<T>) -> T {
    values.sort_unstable();
    values.get(values.len() / 2).copied().unwrap_or_default()
}

/// Returns the mean overhead of each rank's actions besides their programs.
fn action_ns(timeline: &Timeline) -> Vec<u64> {
    let ranks = timeline.ranks.iter().filter(|rank| !rank.spans.is_empty());
    let beside = ranks.map(|rank| {
        let waits = rank.spans.iter().filter(|span| span.is_wait());
        let waits: u64 = waits.map(|span| span.duration()).sum();
        let beside = rank.end().saturating_sub(rank.program_time + waits);
        beside / rank.spans.len() as u64
    });
    beside.collect()
}
