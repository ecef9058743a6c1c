//! Speed of the partitioner for contiguous stages, and the distance of its stages from the lower bound.

use std::time::Instant;

use tinderbox::planner::{
    Block, Machine, Parameter, Step, Value, Work, chain, lower_bound, predict,
};
use tinderbox::schedule::{ComputeTimes, ScheduleKind};

use crate::{figure, median, turns};

#[path = "../../planner/src/partition/chain/tests/large.rs"]
mod large;

use large::{Times, large_case};

pub fn figures() {
    // The slowest workload.
    figure("chain_ms", slowest(513, 64, 256), "ms");
    figure("chain_10k_ops_ms", slowest(10_000, 8, 32), "ms");
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
        let times = (0..turns()).map(|_| {
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
