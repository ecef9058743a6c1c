//! Accuracy of the simulator's predictions.

use tinderbox::ScheduleKind;
use tinderbox::schedule::simulate;
use tinderbox_benches::cases::Case;
use tinderbox_benches::figures::median;

use crate::BENCH;

/// Prints the difference between a measured step and its prediction, whose times come from runs of another
/// schedule with another number of micro-batches, each immediately before the step.
pub fn figures() {
    let target = Case::PEERS;
    // Micro-batches of the same size, so that their times are the same.
    let other = Case {
        samples: target.samples / 2,
        micro_batches: target.micro_batches / 2,
        ..target
    };
    let mut source = other.pipeline(2, ScheduleKind::ZbH1);
    source.step();
    let mut worst = 0.0_f64;
    for kind in [
        ScheduleKind::OneFOneB,
        ScheduleKind::GPipe,
        ScheduleKind::ZbH2,
    ] {
        let mut run = target.pipeline(2, kind);
        run.step();
        let (mut steps, mut times) = (Vec::new(), Vec::new());
        for _ in 0..BENCH.turns() {
            steps.push(source.measured().1);
            times.push(run.step());
        }
        let (dependencies, costs) = run.costs();
        let costs = costs.with_times(&steps);
        let schedule = kind
            .generate(2, 1, target.micro_batches)
            .expect("it is known");
        let predicted = simulate(&schedule, &dependencies, &costs).expect("it is valid");
        let (predicted, measured) = (predicted.makespan() as f64 / 1e9, median(times));
        BENCH.figure(&format!("predicted_{kind}_ms"), predicted * 1e3, "ms");
        BENCH.figure(&format!("measured_{kind}_ms"), measured * 1e3, "ms");
        worst = worst.max((predicted - measured).abs() / measured);
    }
    BENCH.figure("sim_error", worst, "ratio");
}
