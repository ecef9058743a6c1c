//! Schedules as data: speed of generation and checking, and quality of the automatic ones.

use std::time::Instant;

use tinderbox::ScheduleKind;
use tinderbox::schedule::{AutoOptions, ChunkCounts, Dependencies, auto, lower, verify};
use tinderbox_benches::figures::median;
use tinderbox_references::settings;

use crate::BENCH;

/// Prints the time to generate, lower and verify the slowest schedule at 64 ranks and 512 micro-batches, and
/// compares `auto` with the best named schedule that fits.
pub fn figures() {
    let mut slowest = 0.0_f64;
    for kind in ScheduleKind::ALL {
        let chunks = match kind.chunks() {
            ChunkCounts::Two => 2,
            _ => 1,
        };
        let times = (0..BENCH.turns()).map(|_| {
            let started = Instant::now();
            let schedule = kind.generate(64, chunks, 512).expect("it is known");
            let chain = Dependencies::chain(schedule.stages);
            let lowered = lower(&schedule, &chain);
            verify(&lowered, &chain).expect("it is valid");
            started.elapsed().as_secs_f64() * 1e3
        });
        let time = median(times.collect());
        println!("{kind}: {time:.1} ms");
        slowest = slowest.max(time);
    }
    BENCH.figure("generate_verify_p64_m512_ms", slowest, "ms");
    automatic();
}

/// The median is over the settings with unequal stages in which the memory limit is the constraint.
fn automatic() {
    let started = Instant::now();
    let (mut all, mut hard, mut gaps) = (Vec::new(), Vec::new(), Vec::new());
    for setting in settings() {
        let options = AutoOptions {
            memory_limits: setting.memory_limits.as_deref(),
            ..AutoOptions::default()
        };
        let found = auto(
            &setting.stage_to_rank,
            setting.micro_batches,
            &setting.dependencies,
            &setting.costs,
            options,
        )
        .unwrap_or_else(|error| panic!("{}: {error}", setting.name));
        let (_, named) = found
            .best_named
            .expect("a named schedule fits each setting");
        let ratio = found.makespan as f64 / named as f64;
        all.push(ratio);
        gaps.push(found.makespan as f64 / found.lower_bound as f64);
        if setting.is_unequal && setting.is_binding {
            hard.push(ratio);
        }
    }
    let seconds = started.elapsed().as_secs_f64();
    println!("auto over {} settings: {seconds:.1} s", all.len());
    BENCH.figure(
        "auto_vs_best_named_max",
        all.iter().copied().fold(0.0, f64::max),
        "ratio",
    );
    BENCH.figure("auto_vs_best_named", median(hard), "ratio");
    BENCH.figure("auto_vs_best_named_all", median(all), "ratio");
    BENCH.figure("auto_vs_lower_bound", median(gaps), "ratio");
}
