//! A failing rank stops all ranks promptly, with the location of the failure; the process can start another
//! pipeline.

use std::time::{Duration, Instant};

use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::optim::AdamWConfig;
use burn::tensor::{Device, Int, Tensor};
use tinderbox::error::{PipelineError, RankError, StepError};
use tinderbox::{Deferred, Machine, Outputs, Pipeline, ScheduleKind, Traceable};
use tinderbox_models::language_model::Gpt;

use crate::models::{Case, LanguageModel, SAMPLES, deferred, trace};
use crate::plain::LR;

const CASE: LanguageModel<0> = LanguageModel;
type Gpts = Pipeline<Gpt, (Tensor<2, Int>, Tensor<2, Int>)>;

fn start(stages: usize) -> Gpts {
    let model = deferred(&CASE);
    let trace = trace(&CASE, &model, 4);
    let plan = trace.plan(&Machine::local(stages).unwrap()).unwrap();
    Pipeline::builder(&model, &trace, &plan)
        .optimizer(AdamWConfig::new())
        .schedule(ScheduleKind::OneFOneB)
        // Without this, the batch is rejected before anything runs.
        .check_indices(false)
        .start()
        .unwrap()
}

/// Shorter than the timeout of a pipeline, longer than a step takes on a loaded machine.
const GENEROUS: Duration = Duration::from_secs(60);

#[test]
fn a_panic_in_one_rank_ends_all_and_names_its_place() {
    let mut pipeline = start(3);
    pipeline.step(LR, CASE.batch(0, &Device::flex())).unwrap();
    // A token outside the vocabulary, in the third micro-batch: the loss of the last stage and the embedding
    // of the first stage panic on it.
    let (x, y) = CASE.batch(1, &Device::flex());
    let row = SAMPLES / 4 * 2;
    let bad = Tensor::<2, Int>::full([1, 6], 1_000_000, &Device::flex());
    let x = x.slice_assign([row..row + 1, 0..6], bad);
    let started = Instant::now();
    let error = pipeline.step(LR, (x, y)).unwrap_err();
    assert!(started.elapsed() < GENEROUS);
    match &error {
        PipelineError::Rank(RankError::Action {
            rank,
            stage,
            micro_batch,
            action,
            ..
        }) => {
            assert_eq!(rank.index(), 0);
            assert_eq!(stage.map(|s| s.index()), Some(0));
            assert_eq!(micro_batch.map(|m| m.index()), Some(2));
            assert_eq!(action, "0F2");
        }
        other => panic!("{other}"),
    }
    assert_eq!(
        error.to_string(),
        "rank 0, stage 0, micro-batch 2, action 0F2 failed"
    );
    let again = pipeline
        .step(LR, CASE.batch(0, &Device::flex()))
        .unwrap_err();
    assert!(matches!(again, PipelineError::Stopped), "{again}");

    let mut next = start(2);
    next.step(LR, CASE.batch(0, &Device::flex())).unwrap();
}

#[test]
fn a_panic_in_a_call_ends_all() {
    let mut pipeline = start(4);
    let started = Instant::now();
    let error = pipeline
        .on_ranks(|rank, _| assert!(rank.index() != 2, "rank two has had enough"))
        .unwrap_err();
    assert!(started.elapsed() < GENEROUS);
    let text = format!("{:#}", anyhow::Error::from(error));
    assert!(text.starts_with("rank 2"), "{text}");
    assert!(text.contains("rank two has had enough"), "{text}");
}

#[test]
fn a_stalled_rank_is_named_after_the_timeout() {
    let model = deferred(&CASE);
    let trace = trace(&CASE, &model, 2);
    let plan = trace.plan(&Machine::local(2).unwrap()).unwrap();
    let mut pipeline = Pipeline::builder(&model, &trace, &plan)
        .timeout(Duration::from_millis(300))
        .start()
        .unwrap();
    let (release, stalled) = std::sync::mpsc::channel::<()>();
    let stalled = std::sync::Mutex::new(stalled);
    let error = pipeline
        .on_ranks(move |rank, _| {
            if rank.index() == 1 {
                let _ = stalled.lock().unwrap().recv();
            }
        })
        .unwrap_err();
    assert_eq!(
        error.to_string(),
        "rank 1 did not reply within 300ms to the request to run a call"
    );
    drop(release);
}

#[test]
fn without_an_optimizer_it_evaluates_and_does_not_train() {
    let model = deferred(&CASE);
    let trace = trace(&CASE, &model, 2);
    let plan = trace.plan(&Machine::local(2).unwrap()).unwrap();
    let mut pipeline = Pipeline::builder(&model, &trace, &plan).start().unwrap();
    let error = pipeline
        .step(LR, CASE.batch(0, &Device::flex()))
        .unwrap_err();
    assert!(matches!(error, PipelineError::Step(StepError::NoOptimizer)));
    let output = pipeline.evaluate(CASE.batch(0, &Device::flex())).unwrap();
    assert!(output.loss.unwrap() > 0.0);
    assert_eq!(
        output.output("logits").unwrap().len(),
        2,
        "one per micro-batch"
    );
}

#[derive(Module, Debug)]
struct Clones {
    first: Linear,
    second: Linear,
}

/// Burn's optimizers update one of two clones, so training them is rejected until the user chooses one.
/// Evaluation is allowed.
#[test]
fn clones_of_a_parameter_are_not_trained() {
    let model = Deferred::new(|device| {
        let first = LinearConfig::new(4, 4).init(device);
        Clones {
            second: first.clone(),
            first,
        }
    })
    .unwrap();
    let example = Tensor::<2>::ones([4, 4], &Device::flex());
    let trace = model
        .trace(&example, 1, |m: &Clones, x| {
            Outputs::loss(m.second.forward(m.first.forward(x)).mean())
        })
        .unwrap();
    let plan = trace.plan(&Machine::local(1).unwrap()).unwrap();
    let training = Pipeline::builder(&model, &trace, &plan).optimizer(AdamWConfig::new());
    assert_eq!(
        training.start().unwrap_err().to_string(),
        "`second.weight` is a clone of `first.weight`: Burn's optimizers update only one of them, so they would differ; for a copy with values of its own, such as a target network, call `independent_copy` instead of `clone`; to tie them, read one parameter in both places of the forward"
    );
    let mut pipeline = Pipeline::builder(&model, &trace, &plan).start().unwrap();
    assert!(pipeline.evaluate(example).unwrap().loss.is_some());
}
