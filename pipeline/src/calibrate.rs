//! Measures a machine for planning.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use burn::nn::{Linear, LinearConfig};
use burn::optim::SgdConfig;
use burn::tensor::{Device, Distribution, Tensor};
use bytes::Bytes;
use tinderbox_deferred::{Deferred, available_for};
use tinderbox_fake::is_host;
use tinderbox_planner::{Machine, RankModel, Rates};
use tinderbox_world::{Channel, World};

use crate::profile::Repeated;
use crate::runtime::Arrivals;
use crate::schedule::{LinkCosts, Network, RankIndex, ScheduleKind, Timeline};
use crate::{CalibrateError, Cut, Outputs, Pipeline, PipelineError, ProfileError, Traceable};

/// Rows and columns of the matrices whose product is timed: 128 MFLOP of f32.
const MATRIX: usize = 400;
/// Elements of the tensors that are added: 64 MiB of f32 each, beyond any cache.
const ELEMENTS: usize = 16 << 20;
/// Micro-batches of the step that is timed.
const MICRO_BATCHES: usize = 128;
/// Repetitions of each measurement; the result is their median.
const TURNS: usize = 7;

/// Measures a machine whose ranks are threads of this process, each with `threads` threads: the compute
/// and memory throughput of each rank while all ranks run, the overhead of an action and of a
/// message, and an equal part of the free memory. Takes a few seconds.
///
/// # Errors
///
/// When there are no ranks, threads can't be started, or the timed pipeline fails.
pub fn calibrate(device: &Device, ranks: usize, threads: usize) -> Result<Machine, CalibrateError> {
    // The same allocator settings as in a pipeline.
    tinderbox_memory::keep_freed_blocks();
    let device = device.clone().without_autodiff();
    let memory = available_for(&device, u64::MAX).map(|bytes| bytes / ranks.max(1) as u64);
    let rank = RankModel {
        memory_bytes: memory,
        ..RankModel::default()
    };
    let mut machine = Machine::of_ranks(vec![rank; ranks])?;
    let repeated = Repeated {
        ranks,
        threads: threads.max(1),
        warm_up: 1,
        repetitions: TURNS,
    };
    let median_of = |time: fn(&Device) -> Duration| -> Result<Duration, ProfileError> {
        Ok(median(repeated.run(|| Ok(()), |()| Ok(time(&device)))?))
    };
    let product = median_of(product_time)?;
    let sum = median_of(sum_time)?;
    let small = median_of(small_time)?;
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

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
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

/// Returns the overhead of an action in addition to its program, and the time of a message from its send to
/// its arrival: medians over the steps of a pipeline of two ranks whose matrices have one element.
fn action_times(device: &Device) -> Result<(u64, u64), CalibrateError> {
    let model = Deferred::new(|device: &Device| -> Vec<Linear> {
        let layer = || LinearConfig::new(1, 1).init(device);
        vec![layer(), layer()]
    });
    let model = model.expect("two layers can be recorded");
    let batch = Tensor::<2>::random([MICRO_BATCHES, 1], Distribution::Default, device);
    let trace = model.trace(
        &batch,
        MICRO_BATCHES,
        |layers: &Vec<Linear>, x: Tensor<2>| {
            let y = layers.iter().fold(x, |x, layer| layer.forward(x));
            Outputs::loss(y.mean())
        },
    );
    let trace = trace.map_err(PipelineError::from)?;
    let plan = trace.plan_at(&[Cut::before("1")]);
    let plan = plan.map_err(PipelineError::from)?;
    let mut pipeline = Pipeline::builder(&model, &trace, &plan)
        .optimizer(SgdConfig::new())
        .schedule(ScheduleKind::OneFOneB)
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

fn median<T: Ord + Copy + Default>(mut values: Vec<T>) -> T {
    values.sort_unstable();
    values.get(values.len() / 2).copied().unwrap_or_default()
}

/// Returns the mean overhead of each rank's actions in addition to their programs.
fn action_ns(timeline: &Timeline) -> Vec<u64> {
    let ranks = timeline.ranks.iter().filter(|rank| !rank.spans.is_empty());
    let overheads = ranks.map(|rank| {
        let waits = rank.spans.iter().filter(|span| span.is_wait());
        let waits: u64 = waits.map(|span| span.duration()).sum();
        let overhead = rank.end().saturating_sub(rank.program_time + waits);
        overhead / rank.spans.len() as u64
    });
    overheads.collect()
}

/// Round trips of a measurement of a link.
const TRIPS: usize = 20;

/// The time that the other end of a link may be silent.
const SILENCE: Duration = Duration::from_secs(60);

/// Measures one or several machines whose ranks are the processes of a world, each with `threads` threads. Measures every
/// process as [`calibrate`] does, while all processes run, and the latency and the rate of the links between processes of
/// one machine and of two. All processes call this, and get the same result. Takes about ten seconds.
///
/// The speed of a rank is the speed of its matrix products, relative to the first rank.
///
/// # Errors
///
/// As [`calibrate`], and [`CalibrateError::World`] when a process is lost.
pub fn calibrate_world(
    world: &World,
    device: &Device,
    threads: usize,
) -> Result<Machine, CalibrateError> {
    let name = tinderbox_world::machine();
    let names = world.all_gather(name.clone())?;
    let machine_of = numbered(&names);
    let own = calibrate(device, 1, threads);
    world.agree(own.as_ref().map(drop))?;
    let own = own?;
    let all = world.all_gather(own.to_json())?;
    let all = all.iter().map(|json| Machine::from_json(json));
    let all: Vec<Machine> = all.collect::<Result<_, _>>()?;

    let arrivals = Arc::new(Arrivals::default());
    let channel = world.open(arrivals.clone());
    let link = Link { channel, arrivals };
    let measure = |is_between: bool| -> Result<Option<LinkCosts>, CalibrateError> {
        let mut others = (1..world.size()).filter(|rank| (machine_of[*rank] != 0) == is_between);
        match others.next() {
            None => Ok(None),
            Some(other) => Ok(Some(link.measure(world, RankIndex::new(other))?)),
        }
    };
    let (within, between) = (measure(false)?, measure(true)?);

    let first = &all[0];
    let ranks = all.iter().zip(&machine_of).map(|(machine, of)| {
        // Each process may have a GPU of its own.
        let sharers = machine_of.iter().filter(|other| *other == of).count() as u64;
        let sharers = if is_host(device) { sharers } else { 1 };
        let flops = u128::from(machine.rates.flops_per_s) * 1000;
        let speed = flops / u128::from(first.rates.flops_per_s.max(1));
        let memory = machine.rank(RankIndex::new(0)).memory_bytes;
        RankModel {
            memory_bytes: memory.map(|bytes| bytes / sharers),
            speed_permille: u64::try_from(speed).unwrap_or(u64::MAX).max(1),
        }
    });
    let mut machine = Machine::of_ranks(ranks.collect())?;
    (machine.rates, machine.action_ns) = (first.rates, first.action_ns);
    machine.link = within.or(between).unwrap_or(first.link);
    machine.network = between.map(|link| Network { machine_of, link });
    // Each process has other measurements: all use the result of the first.
    let json = world.from_first(|| Ok::<_, CalibrateError>(machine.to_json()))?;
    Ok(Machine::from_json(&json)?)
}

/// The number of each machine, in the order of their first ranks.
fn numbered(names: &[String]) -> Vec<usize> {
    let mut known = BTreeMap::new();
    let numbers = names.iter().map(|name| {
        let next = known.len();
        *known.entry(name).or_insert(next)
    });
    numbers.collect()
}

struct Link {
    channel: Channel,
    arrivals: Arc<Arrivals>,
}

impl Link {
    /// Measures the link between the first rank and another rank, while the remaining ranks wait.
    fn measure(&self, world: &World, other: RankIndex) -> Result<LinkCosts, CalibrateError> {
        world.barrier()?;
        let first = RankIndex::new(0);
        let measured = match world.rank() {
            rank if rank == first => self.trips(world, other),
            rank if rank == other => self.trips(world, first),
            _ => Ok([Duration::ZERO; 2]),
        };
        world.agree(measured.as_ref().map(drop))?;
        let [latency, per_mib] = measured?;
        Ok(LinkCosts {
            latency: nanoseconds(latency),
            ticks_per_mib: nanoseconds(per_mib),
            ..LinkCosts::default()
        })
    }

    /// The one-way time of a few bytes, and the additional time of a MiB. The first rank begins.
    fn trips(&self, world: &World, other: RankIndex) -> Result<[Duration; 2], CalibrateError> {
        let pieces = [8, 1 << 20].map(|length| Bytes::from(vec![1; length]));
        let (mut small, mut additional) = (Vec::new(), Vec::new());
        let mut number = 0_u32;
        // Both lengths in each turn, because other load changes meanwhile. The first turn allocates memory.
        for turn in 0..=TURNS {
            let mut times = [Duration::ZERO; 2];
            for (piece, time) in pieces.iter().zip(&mut times) {
                let started = Instant::now();
                for _ in 0..TRIPS {
                    let header = number.to_le_bytes();
                    if world.is_first() {
                        self.channel.send(other, &header, vec![piece.clone()]);
                    }
                    let arrived = self.arrivals.wait_for((other, number), SILENCE)?;
                    arrived.ok_or(CalibrateError::Silent)?;
                    if !world.is_first() {
                        self.channel.send(other, &header, vec![piece.clone()]);
                    }
                    number += 1;
                }
                *time = started.elapsed() / (2 * TRIPS as u32);
            }
            if turn > 0 {
                small.push(times[0]);
                additional.push(times[1].saturating_sub(times[0]));
            }
        }
        Ok([median(small), median(additional)])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn machines_are_numbered_by_their_first_ranks() {
        let names = ["b", "b", "a", "b", "c", "a"].map(str::to_owned);
        assert_eq!(numbered(&names), [0, 0, 1, 0, 2, 1]);
    }
}
