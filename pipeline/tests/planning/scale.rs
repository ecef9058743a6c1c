//! Planning a deep model on many stages is fast: no step is quadratic in the model.

use std::time::Instant;

use tinderbox_pipeline::{Batch, Machine, Plan, Trace};

use crate::models::{gpt_trace, mlp_trace};

/// Checks that planning a model takes less than three times as long as planning half of it: about twice if it is linear,
/// four times if it is quadratic. Each time is the least of ten, in turns.
fn check<B: Batch>(half: impl Fn() -> Trace<B>, whole: impl Fn() -> Trace<B>) {
    let machine = Machine::local(16).unwrap();
    let time = |trace: &dyn Fn() -> Trace<B>| {
        let started = Instant::now();
        let plan = Plan::auto(&trace(), &machine).unwrap();
        assert_eq!(plan.stages().len(), 16);
        started.elapsed()
    };
    let (halves, wholes): (Vec<_>, Vec<_>) = (0..10).map(|_| (time(&half), time(&whole))).unzip();
    let [half, whole] = [halves, wholes].map(|times| times.into_iter().min().unwrap());
    println!("{half:?} for half the model, {whole:?} for the whole");
    assert!(whole < half * 3, "{half:?} {whole:?}");
}

#[test]
fn a_deep_transformer_on_sixteen_stages() {
    assert!(gpt_trace(44).parameters().len() >= 700);
    check(|| gpt_trace(22), || gpt_trace(44));
}

#[test]
fn a_deep_perceptron_on_sixteen_stages() {
    check(|| mlp_trace(175, 8), || mlp_trace(350, 8));
}
