//! Speed of the partitioner for contiguous stages, and its distance from the optimum.

use std::time::Instant;

use tinderbox::planner::{Machine, Step, chain, chain_by_model, lower_bound, predict};
use tinderbox::schedule::ScheduleKind;
use tinderbox_benches::figures::median;
use tinderbox_references::{Numbers, Times, brute_force, large_case, small_case, small_step};

use crate::BENCH;

/// Number of small workloads that are also solved by brute force.
const SMALL_CASES: u64 = 2000;

pub fn figures() {
    // The slowest workload.
    BENCH.figure("chain_ms", slowest(513, 64, 256), "ms");
    BENCH.figure("chain_10k_ops_ms", slowest(10_000, 8, 32), "ms");
    brute_force_gap();
}

const KINDS: [(&str, Times); 3] = [
    ("equal times", Times::Equal),
    ("all times different", Times::Distinct),
    ("time in few operations", Times::Few),
];

/// Returns the largest median time of the partitioner over the workloads, after checking its results.
fn slowest(blocks: usize, stages: usize, micro_batches: usize) -> f64 {
    let machine = Machine::local(stages).expect("there are ranks");
    let step = Step::new(ScheduleKind::OneFOneB, micro_batches);
    let times = KINDS.map(|(name, kind)| {
        let work = large_case(blocks, kind, 7);
        let run = || chain(&work, &machine, &step).expect("there is no limit");
        let found = run();
        let times = (0..BENCH.turns()).map(|_| {
            let started = Instant::now();
            run();
            started.elapsed().as_secs_f64() * 1e3
        });
        let ms = median(times.collect());
        let simulated = predict(&work, &machine, &step, &found.partition);
        let simulated = simulated.expect("it runs").prediction.step_ns;
        let bound = lower_bound(&work, &machine, &step);
        println!(
            "{blocks} blocks, {stages} stages, {name}: {ms:.1} ms; {:.4} of the lower bound by the \
             simulator, {:.4} by the cost model",
            simulated as f64 / bound as f64,
            found.model_ns as f64 / bound as f64,
        );
        ms
    });
    times.into_iter().fold(0.0, f64::max)
}

/// Prints the maximum distance from the optimum over small workloads with skips, shared parameters, memory
/// limits, recomputation and unequal ranks.
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
        // All positions for cuts are compared in one search.
        let positions = blocks + 1;
        match (
            chain_by_model(&work, &machine, &step, positions),
            brute_force(&work, &machine, &step),
        ) {
            (Ok(found), Some(best)) => {
                solved += 1;
                let off = found.model_ns.abs_diff(best);
                worst = worst.max(off as f64 / best.max(1) as f64);
            }
            (Err(_), None) => refused += 1,
            _ => different += 1,
        }
    }
    println!(
        "{SMALL_CASES} small workloads: {solved} cut, {refused} infeasible, {different} in which \
         only one found a cut"
    );
    let gap = if different == 0 { worst } else { f64::INFINITY };
    BENCH.figure("chain_vs_bruteforce_gap", gap, "ratio");
}
