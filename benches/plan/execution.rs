//! Compares the measured step time with the prediction of the plan, and the plan with equal numbers of
//! layers.

use burn::module::Module;
use tinderbox::{Batch, Cut, Plan};
use tinderbox_benches::figures::median;

use crate::BENCH;
use crate::cases::{Case, language_model, unbalanced};

/// Number of warm-up steps.
const WARM_UP: usize = 2;

pub fn figures() {
    let language_model = language_model();
    let unbalanced = unbalanced();
    let ratios = [predicted(&language_model), predicted(&unbalanced)];
    // The one with the larger error.
    let worst = ratios.into_iter().max_by(|a, b| {
        let off = |ratio: &f64| (ratio - 1.0).abs();
        off(a).total_cmp(&off(b))
    });
    BENCH.figure("predicted_vs_measured", worst.unwrap_or(f64::NAN), "ratio");
    against_equal_layers(&language_model);
}

/// Returns the predicted step time divided by the measured one.
fn predicted<M: Module + Sync + 'static, B: Batch>(case: &Case<M, B>) -> f64 {
    // The speed of the machine drifts, so the plan is computed and run several times.
    let plans = BENCH.turns().min(5);
    let ratios = (0..plans).map(|_| {
        let plan = case.plan();
        let predicted = plan.prediction.step_ns as f64 / 1e9;
        let mut running = case.pipeline(&plan);
        let steps = (0..WARM_UP + BENCH.turns()).map(|_| running.step());
        let measured = median(steps.skip(WARM_UP).collect());
        println!(
            "{}: predicted {:.1} ms, measured {:.1} ms",
            case.name,
            1e3 * predicted,
            1e3 * measured
        );
        running.print_stages();
        predicted / measured
    });
    let ratio = median(ratios.collect());
    BENCH.figure(
        &format!("predicted_vs_measured_{}", case.name.replace(' ', "_")),
        ratio,
        "ratio",
    );
    ratio
}

/// Compares the planned cut with three layers on each rank.
fn against_equal_layers<M: Module + Sync + 'static, B: Batch>(case: &Case<M, B>) {
    let plan = case.plan();
    let equal = case.cut(&[Cut::before("blocks.3")]);
    let (mut planned, mut equal) = (case.pipeline(&plan), case.pipeline(&equal));
    for _ in 0..WARM_UP {
        planned.step();
        equal.step();
    }
    let modules = |plan: &Plan| -> Vec<usize> {
        let stages = plan.stages.iter();
        stages.map(|stage| stage.modules.len()).collect()
    };
    println!(
        "modules of each stage: planned {:?}, equal layers {:?}",
        modules(planned.plan()),
        modules(equal.plan())
    );
    let ratios = (0..BENCH.turns()).map(|turn| {
        // The order alternates.
        let (ours, theirs) = match turn % 2 {
            0 => (planned.step(), equal.step()),
            _ => {
                let theirs = equal.step();
                (planned.step(), theirs)
            }
        };
        ours / theirs
    });
    BENCH.figure("vs_equal_layers", median(ratios.collect()), "ratio");
}
