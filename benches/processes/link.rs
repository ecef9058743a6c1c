//! Frames between two processes: their time on the way, and what it costs to be ready for them.

use std::fs;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::Bytes;
use tinderbox::World;
use tinderbox::world::{Buffer, Channel, Failure, Handler, RankIndex};
use tinderbox_benches::figures::median;
use tinderbox_benches::processes::{Control, Engine, Processes, world};

use crate::BENCH;

const MIB: usize = 1 << 20;

/// Blocks that are copied in turn, more than caches hold.
const BLOCKS: usize = 64;

/// Round trips of a measurement.
const TRIPS: usize = 50;

struct Inbox(Mutex<Sender<Vec<Buffer>>>);

impl Handler for Inbox {
    fn received(&self, _: RankIndex, _: &[u8], pieces: Vec<Buffer>) {
        let sender = self.0.lock().expect("no handler panics");
        sender.send(pieces).expect("the rank receives");
    }

    fn failed(&self, _: &Failure) {}
}

fn open(world: &World) -> (Channel, Receiver<Vec<Buffer>>) {
    let (sender, received) = channel();
    (world.open(Arc::new(Inbox(Mutex::new(sender)))), received)
}

/// A rank: for every line, the first sends pieces to the second and back, and says the seconds of one way.
pub fn rank() {
    let world = world();
    let control = Control::connect(&world);
    let (channel, received) = open(&world);
    let other = channel.others().next().expect("there are two ranks");
    for line in control.lines() {
        let length: usize = line.parse().expect("a length");
        let blocks: Vec<Bytes> = (0..BLOCKS)
            .map(|at| Bytes::from(vec![at as u8; length]))
            .collect();
        let mut times = Vec::new();
        for trip in 0..TRIPS {
            let piece = || vec![blocks[trip % BLOCKS].clone()];
            let started = Instant::now();
            if world.is_first() {
                channel.send(other, &[1], piece());
            }
            let pieces = received.recv().expect("the other sends");
            assert_eq!(pieces[0].len(), length);
            if !world.is_first() {
                channel.send(other, &[1], piece());
            }
            times.push(started.elapsed().as_secs_f64() / 2.0);
        }
        control.say(median(times));
    }
}

/// A rank that only waits.
pub fn idle_rank() {
    let world = world();
    let _channel = open(&world);
    let control = Control::connect(&world);
    for _ in control.lines() {
        control.say(1.0);
    }
}

/// Seconds to copy a MiB that is in no cache.
fn copy_seconds() -> f64 {
    let from: Vec<Vec<u8>> = (0..BLOCKS).map(|at| vec![at as u8; MIB]).collect();
    let mut to: Vec<Vec<u8>> = vec![vec![0; MIB]; BLOCKS];
    let times = from.iter().zip(&mut to).map(|(from, to)| {
        let started = Instant::now();
        to.copy_from_slice(from);
        std::hint::black_box(&to);
        started.elapsed().as_secs_f64()
    });
    median(times.collect())
}

pub fn figures(engine: Engine) {
    let mut processes = Processes::start("link", 2, engine);
    let name = engine.suffix();
    let (mut ratios, mut latencies, mut rates) = (Vec::new(), Vec::new(), Vec::new());
    for turn in 0..=BENCH.turns() {
        let copy = copy_seconds();
        processes.say(&MIB.to_string());
        let link = processes.numbers()[0];
        processes.say("8");
        let latency = processes.numbers()[0];
        // The first frames allocate memory.
        if turn > 0 {
            ratios.push(copy / link);
            latencies.push(latency);
            rates.push(MIB as f64 / link / 1e9);
        }
    }
    BENCH.figure(&format!("link_1mib_gb_per_s_{name}"), median(rates), "GB/s");
    BENCH.figure(
        &format!("link_1mib_vs_memcpy_{name}"),
        median(ratios),
        "ratio",
    );
    BENCH.figure(&format!("latency_us_{name}"), median(latencies) * 1e6, "us");
    drop(processes);
    idle(engine);
}

/// Processor time of a process in seconds, from the system's own count.
fn cpu_seconds(id: u32) -> Option<f64> {
    const TICKS_PER_S: f64 = 100.0;
    let stat = fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
    // After the name, which may contain anything: fields 14 and 15 are user and system time.
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let ticks = |field: usize| fields.get(field)?.parse::<f64>().ok();
    Some((ticks(11)? + ticks(12)?) / TICKS_PER_S)
}

fn idle(engine: Engine) {
    const WAIT: Duration = Duration::from_secs(10);
    let mut processes = Processes::start("idle", 2, engine);
    let name = format!("idle_core_share_{}", engine.suffix());
    processes.say("ready");
    processes.numbers();
    let cpu = |processes: &Processes| -> Option<f64> {
        processes.ids().into_iter().map(cpu_seconds).sum()
    };
    let before = cpu(&processes);
    std::thread::sleep(WAIT);
    match (before, cpu(&processes)) {
        (Some(before), Some(after)) => {
            let share = (after - before) / WAIT.as_secs_f64() / 2.0;
            BENCH.figure(&name, share, "ratio");
        }
        _ => println!("NOT RUN: {name}, because this system does not count it"),
    }
}
