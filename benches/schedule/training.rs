//! Comparison of a step of a pipeline with a step of plain Burn.

use tinderbox::ScheduleKind;
use tinderbox_benches::cases::{Case, Plain, Run, machine};
use tinderbox_benches::figures::median;

use crate::BENCH;

/// Prints the speedup of two ranks over plain Burn with one thread, the cost of one rank, and the comparison
/// of two ranks with plain Burn on all cores.
pub fn figures() {
    let case = Case::PEERS;
    let mut plain = Plain::new(case, 1);
    let start = |kind: ScheduleKind| case.pipeline_on(machine(kind, 2), kind.into());
    let mut contenders = [
        ("speedup_gpipe", start(ScheduleKind::GPipe)),
        ("speedup_1f1b", start(ScheduleKind::OneFOneB)),
        ("speedup_zb", start(ScheduleKind::ZbH1)),
        ("speedup_zb_h2", start(ScheduleKind::ZbH2)),
        ("speedup_zbv", start(ScheduleKind::Zbv)),
        // Forward and backward of each micro-batch before the next, as in plain Burn.
        (
            "one_stage_vs_burn",
            case.pipeline(1, ScheduleKind::OneFOneB),
        ),
    ];
    let mut ratios = vec![Vec::new(); contenders.len()];
    let mut plain_times = Vec::new();
    for turn in 0..=BENCH.turns() {
        for ((_, run), ratios) in contenders.iter_mut().zip(&mut ratios) {
            let (plain, pipeline) = (plain.step(), run.step());
            // The first step loads programs to the device and allocates memory for the values.
            if turn > 0 {
                ratios.push(plain / pipeline);
                plain_times.push(plain);
            }
        }
    }
    BENCH.figure("plain_burn_step_ms", median(plain_times) * 1e3, "ms");
    for ((name, _), ratios) in contenders.iter().zip(ratios) {
        BENCH.figure(name, median(ratios), "ratio");
    }
    drop(contenders);
    all_cores(case, start(ScheduleKind::ZbH1));
}

/// Compares the same cores used by Burn inside each operation or by the stages of a pipeline.
fn all_cores(case: Case, mut pipeline: Run) {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let mut plain = Plain::new(case, cores);
    pipeline.step();
    plain.step();
    let ratios = (0..BENCH.turns()).map(|_| plain.step() / pipeline.step());
    BENCH.figure("vs_burn_all_cores", median(ratios.collect()), "ratio");
}
