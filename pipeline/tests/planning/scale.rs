//! Planning a deep model on many stages is fast: no step is quadratic in the model.

use std::time::Instant;

use tinderbox_pipeline::{Batch, Machine, Trace};

use crate::models::{gpt_trace, mlp_trace};

/// The number of stages, and of micro-batches.
const STAGES: usize = 16;

/// Checks that planning a model takes less than three times as long as planning half of it: about twice if it is linear,
/// four times if it is quadratic. Each time is the least of ten, in turns.
fn check<B: Batch>(half: impl Fn() -> Trace<B>, whole: impl Fn() -> Trace<B>) {
    let machine = Machine::local(STAGES).unwrap();
    let time = |trace: &dyn Fn() -> Trace<B>| {
        let started = Instant::now();
        let plan = trace().plan(&machine).unwrap();
        assert_eq!(plan.stages.len(), STAGES);
        started.elapsed()
    };
    let (halves, wholes): (Vec<_>, Vec<_>) = (0..10).map(|_| (time(&half), time(&whole))).unzip();
    let [half, whole] = [halves, wholes].map(|times| times.into_iter().min().unwrap());
    println!("{half:?} for half the model, {whole:?} for the whole");
    assert!(whole < half * 3, "{half:?} {whole:?}");
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
