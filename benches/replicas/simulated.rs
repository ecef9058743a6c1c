//! The time to verify and simulate the lists of very many ranks.

use std::time::Instant;

use tinderbox::ScheduleKind;
use tinderbox::schedule::{ComputeTimes, Costs, Dependencies, LinkCosts, lower, simulate, verify};

use crate::BENCH;

const RANKS: usize = 1024;
const MICRO_BATCHES: usize = 2048;

/// Prints the seconds to generate, lower, verify and simulate a step with links, and the memory of this process at most.
pub fn figures() {
    let started = Instant::now();
    let schedule = ScheduleKind::Interleaved1F1B.generate(RANKS, 2, MICRO_BATCHES);
    let schedule = schedule.expect("it is known");
    let dependencies = Dependencies::chain(schedule.stages);
    let mut costs = Costs::uniform(
        schedule.stages,
        ComputeTimes {
            forward: 1_000,
            input_gradient: 1_000,
            weight_gradient: 1_000,
        },
    );
    costs.link = LinkCosts {
        latency: 20,
        ticks_per_mib: 40,
        ..LinkCosts::default()
    };
    costs.message_bytes = dependencies
        .edges()
        .iter()
        .map(|edge| (*edge, 1 << 20))
        .collect();
    let lowered = lower(&schedule, &dependencies);
    drop(schedule);
    verify(&lowered, &dependencies).expect("it is valid");
    let timeline = simulate(&lowered, &dependencies, &costs).expect("it runs");
    let seconds = started.elapsed().as_secs_f64();
    println!(
        "{} actions, {} ticks",
        lowered.action_count(),
        timeline.makespan()
    );
    BENCH.figure("simulate_1024x2048_s", seconds, "s");
    BENCH.figure("simulate_1024x2048_gib", peak_gib(), "GiB");
}

/// The most memory that this process has had resident.
fn peak_gib() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mut lines = status.lines();
    let peak = lines.find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = peak.and_then(|peak| peak.trim().trim_end_matches(" kB").trim().parse().ok());
    kib.map_or(f64::NAN, |kib: f64| kib / f64::from(1 << 20))
}
