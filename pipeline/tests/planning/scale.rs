//! Planning a deep model on many stages is fast: no step is quadratic in the model.

use std::time::{Duration, Instant};

use tinderbox_pipeline::{Batch, Machine, Trace};

use crate::models::{gpt_trace, mlp_trace};

/// The number of stages, and of micro-batches.
const STAGES: usize = 16;

/// The maximum number of measurements of each model.
const MOST: usize = 10;

/// The minimum number of measurements of each model.
const LEAST: usize = 3;

/// Checks that planning a model takes less than three times as long as planning half of it: about twice if it is linear,
/// four times if it is quadratic. The two are measured in turns, and the least time of each counts. The measurements end early
/// if the ratio is below 2.5.
fn check<B: Batch>(half: impl Fn() -> Trace<B>, whole: impl Fn() -> Trace<B>) {
    let machine = Machine::local(STAGES).unwrap();
    let time = |trace: &dyn Fn() -> Trace<B>| {
        let started = Instant::now();
        let plan = trace().plan(&machine).unwrap();
        assert_eq!(plan.stages.len(), STAGES);
        started.elapsed()
    };
    let [mut least_half, mut least_whole] = [Duration::MAX; 2];
    for turn in 1..=MOST {
        least_half = least_half.min(time(&half));
        least_whole = least_whole.min(time(&whole));
        if turn >= LEAST && least_whole * 2 < least_half * 5 {
            break;
        }
    }
    println!("{least_half:?} for half the model, {least_whole:?} for the whole");
    assert!(
        least_whole < least_half * 3,
        "{least_half:?} {least_whole:?}"
    );
}

#[test]
fn a_deep_transformer_on_sixteen_stages() {
    assert!(gpt_trace(44, STAGES).parameters().len() >= 700);
    check(|| gpt_trace(22, STAGES), || gpt_trace(44, STAGES));
}

#[test]
fn a_deep_perceptron_on_sixteen_stages() {
    check(|| mlp_trace(175, 8, STAGES), || mlp_trace(350, 8, STAGES));
}
