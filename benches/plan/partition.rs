//! How long the exact partitioner takes, and whether it is exact.

use std::time::Instant;

use tinderbox::planner::chain_cases::{
    Numbers, Times, brute_force, chain_ns, large_case, small_case, small_step,
};
use tinderbox::planner::{ChainOptions, Chained, Machine, Step, Work, chain};
use tinderbox::schedule::ScheduleKind;

use crate::{figure, median, turns};

/// Small works that are cut in every possible way as well.
const SMALL_CASES: u64 = 2000;

pub fn figures() {
    let mut times = Vec::new();
    for (name, kind) in KINDS {
        let work = large_case(513, kind, 7);
        let (ms, found) = timed(&work, 64, 256);
        println!(
            "512 candidates, 64 stages, {name}: {ms:.1} ms, gap {}",
            gap(&found)
        );
        times.push(ms);
    }
    // The slowest of the kinds of work.
    figure("chain_ms", times.into_iter().fold(0.0, f64::max), "ms");
    let (mut times, mut gaps) = (Vec::new(), Vec::new());
    for (name, kind) in KINDS {
        let work = large_case(10_000, kind, 7);
        let (ms, found) = timed(&work, 8, 32);
        println!(
            "10,000 operations, 8 stages, {name}: {ms:.1} ms, gap {}",
            gap(&found)
        );
        times.push(ms);
        gaps.push(gap(&found));
    }
    figure(
        "chain_10k_ops_ms",
        times.into_iter().fold(0.0, f64::max),
        "ms",
    );
    figure(
        "chain_10k_ops_gap",
        gaps.into_iter().fold(0.0, f64::max),
        "ratio",
    );
    brute_force_gap();
}

const KINDS: [(&str, Times); 3] = [
    ("equal times", Times::Equal),
    ("all times different", Times::Distinct),
    ("time in few operations", Times::Few),
];

/// The median time of the partitioner, with its tables and the check of its result.
fn timed(work: &Work, stages: usize, micro_batches: usize) -> (f64, Chained) {
    let machine = Machine::local(stages).expect("there are ranks");
    let step = Step::new(ScheduleKind::OneFOneB, micro_batches);
    let run = || {
        let started = Instant::now();
        let found = chain(work, &machine, &step, ChainOptions::default());
        let ms = started.elapsed().as_secs_f64() * 1e3;
        (ms, found.expect("there is no limit"))
    };
    let mut found = run().1;
    let times = (0..turns()).map(|_| {
        let (ms, again) = run();
        found = again;
        ms
    });
    (median(times.collect()), found)
}

/// How far the found time is above what is proven, as a share of it.
fn gap(found: &Chained) -> f64 {
    (found.model_ns - found.bound_ns) as f64 / found.bound_ns.max(1) as f64
}

/// The largest distance to the best of all cuts, over small works with skips, shared parameters, limits
/// of memory, recomputation and unequal ranks.
fn brute_force_gap() {
    let kinds = [
        ScheduleKind::GPipe,
        ScheduleKind::OneFOneB,
        ScheduleKind::ZbH1,
        ScheduleKind::ZbH2,
    ];
    let (mut worst, mut solved, mut refused, mut different) = (0.0_f64, 0, 0, 0);
    for seed in 0..SMALL_CASES {
        let mut numbers = Numbers::new(seed);
        let blocks = 2 + numbers.below(8) as usize;
        let work = small_case(blocks, &mut numbers);
        let (machine, step) = small_step(&mut numbers, kinds[(seed % 4) as usize]);
        match (
            chain_ns(&work, &machine, &step),
            brute_force(&work, &machine, &step),
        ) {
            (Some(found), Some(best)) => {
                solved += 1;
                worst = worst.max(found.abs_diff(best) as f64 / best.max(1) as f64);
            }
            (None, None) => refused += 1,
            _ => different += 1,
        }
    }
    println!(
        "{SMALL_CASES} small works: {solved} cut, {refused} that nothing fits, {different} in which \
         only one found a cut"
    );
    let gap = if different == 0 { worst } else { f64::INFINITY };
    figure("chain_vs_bruteforce_gap", gap, "ratio");
}
