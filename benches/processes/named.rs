//! From the kill of a process to the error on the last survivor.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use tinderbox::ScheduleKind;
use tinderbox_benches::cases::{Case, machine};
use tinderbox_benches::figures::median;
use tinderbox_benches::processes::{Control, Engine, Processes, world};

use crate::BENCH;

const RANKS: usize = 3;

/// How many kills the worst is of.
const KILLS: usize = 50;

const CASE: Case = Case {
    layers: 6,
    width: 64,
    samples: 32,
    micro_batches: 4,
};

/// Seconds since 1970.
fn now() -> f64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.expect("the clock is set").as_secs_f64()
}

/// A rank: trains until a step fails, and says when that was.
pub fn rank() {
    let world = world();
    let control = Control::connect(&world);
    let kind = ScheduleKind::OneFOneB;
    let mut run = CASE.pipeline_in(machine(kind, RANKS), kind.into(), &world);
    control.say(0.0);
    let failed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        std::panic::set_hook(Box::new(|_| {}));
        loop {
            run.step();
        }
    }));
    let time = now();
    assert!(failed.is_err());
    control.say(time);
    std::process::exit(1);
}

pub fn figures() {
    let mut worst: f64 = 0.0;
    let mut all = Vec::new();
    for number in 0..KILLS {
        let mut processes = Processes::start("named", RANKS, Engine::Grpc);
        processes.numbers();
        let started = Instant::now();
        // Somewhere within a step.
        while started.elapsed() < Duration::from_micros(20_000 + 1_370 * number as u64) {}
        let killed = now();
        processes.kill(number % RANKS);
        let survivors = (0..RANKS).filter(|rank| *rank != number % RANKS);
        let last = survivors
            .map(|rank| processes.number(rank))
            .fold(0.0, f64::max);
        worst = worst.max(last - killed);
        all.push(last - killed);
    }
    BENCH.figure("named_ms_kill_median", median(all) * 1e3, "ms");
    BENCH.figure("named_ms_kill", worst * 1e3, "ms");
}
