//! Planning a deep model on many stages is fast: no step is quadratic in the model.

use std::time::{Duration, Instant};

use tinderbox_pipeline::{Machine, Plan};

use crate::models::{gpt_trace, mlp_trace};

/// Each takes less than a second on an idle machine; the bench `plan` measures it.
const LIMIT: Duration = Duration::from_secs(60);

#[test]
fn a_deep_transformer_on_sixteen_stages() {
    let started = Instant::now();
    let trace = gpt_trace(44);
    let traced = started.elapsed();
    let plan = Plan::auto(&trace, &Machine::local(16).unwrap()).unwrap();
    assert!(trace.parameters().len() >= 700);
    println!(
        "traced in {traced:?}, planned and cut in {:?}",
        started.elapsed() - traced
    );
    assert_eq!(plan.stages().len(), 16);
    assert!(started.elapsed() < LIMIT, "{:?}", started.elapsed());
}

#[test]
fn a_deep_perceptron_on_sixteen_stages() {
    let started = Instant::now();
    let trace = mlp_trace(350, 8);
    let plan = Plan::auto(&trace, &Machine::local(16).unwrap()).unwrap();
    println!("{:?}", started.elapsed());
    assert_eq!(plan.stages().len(), 16);
    assert!(started.elapsed() < LIMIT, "{:?}", started.elapsed());
}
