//! Requests that take longer than the timeout and make progress, and requests that stall.

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::tensor::{Device, Tensor};
use tinderbox_deferred::{Initializer, Observer, ParameterPath, Request, Source, SourceError};
use tinderbox_fake::DynTensor;
use tinderbox_pipeline::{Cut, Pipeline, PipelineBuilder, PipelineError, RankError, SavedState};
use tinderbox_pipeline_tests::{Case, SAMPLES, floats, full_text, squared};

#[derive(Module, Debug)]
struct Net {
    layers: Vec<Linear>,
}

const CASE: Case<Net, Tensor<2>> = Case {
    init: |device| Net {
        layers: (0..3)
            .map(|_| LinearConfig::new(4, 4).init(device))
            .collect(),
    },
    forward: |net, x| {
        let y = net.layers.iter();
        let y = y.fold(x.clone(), |y, layer| layer.forward(y));
        (squared(x, y), None)
    },
    batch: |n, device| floats([SAMPLES, 4], n, device),
};

const PARAMETERS: u32 = 6;

/// Two layers on the first rank, and one on the second.
fn builder() -> PipelineBuilder<Net, Tensor<2>> {
    let model = CASE.model();
    let trace = CASE.trace(&model, 2);
    let plan = trace.plan_at(&[Cut::before("layers.2")]).unwrap();
    Pipeline::builder(&model, &trace, &plan)
}

fn evaluate(pipeline: &mut Pipeline<Net, Tensor<2>>) {
    let output = pipeline.evaluate((CASE.batch)(0, &Device::flex()));
    assert!(output.unwrap().is_finite());
}

/// Values of an initializer, each after a call of `before`.
struct Paced<F> {
    initializer: Initializer,
    before: F,
}

fn paced<F: Fn(&ParameterPath, &dyn Observer) + Send + Sync>(before: F) -> Paced<F> {
    Paced {
        initializer: CASE.model().initializer(3_u64.into()),
        before,
    }
}

impl<F: Fn(&ParameterPath, &dyn Observer) + Send + Sync> Source for Paced<F> {
    fn load(
        &self,
        requests: &[Request],
        observer: &dyn Observer,
    ) -> Result<Vec<DynTensor>, SourceError> {
        let mut values = Vec::new();
        for request in requests {
            (self.before)(&request.path, observer);
            values.extend(
                self.initializer
                    .load(std::slice::from_ref(request), observer)?,
            );
        }
        Ok(values)
    }

    fn describe(&self) -> String {
        "a paced initializer".into()
    }
}

/// Reports bytes of one value for some time.
fn read_for(time: Duration) -> impl Fn(&ParameterPath, &dyn Observer) + Send + Sync {
    move |path, observer| {
        let begun = Instant::now();
        while path.as_str() == "layers.1.weight" && begun.elapsed() < time {
            observer.advanced(1);
            std::thread::yield_now();
        }
    }
}

/// Blocks in one value until the sender is dropped.
fn stuck_at(
    stuck: &'static str,
) -> (
    Sender<()>,
    impl Fn(&ParameterPath, &dyn Observer) + Send + Sync,
) {
    let (release, held) = channel();
    let held = Mutex::new(held);
    let before = move |path: &ParameterPath, _: &dyn Observer| {
        if path.as_str() == stuck {
            let _ = held.lock().unwrap().recv();
        }
    };
    (release, before)
}

const SHORT: Duration = Duration::from_millis(100);
/// Longer than any step takes on a loaded machine, and no timeout of a pipeline here.
const GENEROUS: Duration = Duration::from_secs(30);

#[test]
fn a_long_start_and_a_long_restore_progress_by_bytes_of_one_value() {
    let long = 5 * SHORT;
    let begun = Instant::now();
    let source = paced(read_for(long));
    let mut pipeline = builder().timeout(SHORT).source(source).start().unwrap();
    assert!(begun.elapsed() >= long);
    evaluate(&mut pipeline);
    let source = paced(read_for(long));
    pipeline.restore(source, SavedState::default()).unwrap();
    assert!(begun.elapsed() >= 2 * long);
    evaluate(&mut pipeline);
}

#[test]
fn a_source_is_dropped_once_the_parameters_are_there() {
    let held = Arc::new(());
    let before = {
        let held = held.clone();
        move |_: &ParameterPath, _: &dyn Observer| drop(held.clone())
    };
    let mut pipeline = builder().source(paced(before)).start().unwrap();
    evaluate(&mut pipeline);
    assert_eq!(Arc::strong_count(&held), 1);
}

/// Values that complete one by one, without partial reports: the test releases each.
#[test]
fn a_long_start_progresses_by_parameters() {
    const TIMEOUT: Duration = Duration::from_millis(600);
    let (release, released): (Sender<()>, Receiver<()>) = channel();
    let released = Mutex::new(released);
    let source = paced(move |_: &ParameterPath, _: &dyn Observer| {
        released.lock().unwrap().recv().unwrap();
    });
    let begun = Instant::now();
    let (_never, time) = channel::<()>();
    let pace = std::thread::spawn(move || {
        for _ in 0..PARAMETERS {
            let waited = time.recv_timeout(TIMEOUT / 2);
            assert_eq!(waited, Err(RecvTimeoutError::Timeout));
            release.send(()).unwrap();
        }
    });
    let mut pipeline = builder().timeout(TIMEOUT).source(source).start().unwrap();
    assert!(begun.elapsed() >= PARAMETERS * TIMEOUT / 2);
    pace.join().unwrap();
    evaluate(&mut pipeline);
}

#[test]
fn a_start_that_stalls_is_reported_with_its_progress() {
    let (release, before) = stuck_at("layers.2.bias");
    let begun = Instant::now();
    let started = builder().timeout(SHORT).source(paced(before)).start();
    let error = started.map(drop).unwrap_err();
    assert!(begun.elapsed() < GENEROUS);
    assert!(
        matches!(error, PipelineError::Rank(RankError::Stalled { .. })),
        "{error}"
    );
    assert_eq!(
        error.to_string(),
        "rank 1 made no progress for 100ms during the request to materialize its parameters: 1 of 2 parameters, 64 B"
    );
    drop(release);
}

#[test]
fn a_restore_that_stalls_is_reported_and_ends_the_pipeline() {
    let mut pipeline = builder().timeout(SHORT).start().unwrap();
    let (release, before) = stuck_at("layers.0.bias");
    let error = pipeline
        .restore(paced(before), SavedState::default())
        .unwrap_err();
    assert_eq!(
        error.to_string(),
        "rank 0 made no progress for 100ms during the request to restore a saved state: 1 of 4 parameters, 64 B"
    );
    let again = pipeline.restore(paced(read_for(SHORT)), SavedState::default());
    let again = again.unwrap_err();
    assert!(
        matches!(again, PipelineError::Stopped),
        "{}",
        full_text(&again)
    );
    drop(release);
}

/// A user's call must finish within the timeout, unless it reports progress.
#[test]
fn a_long_call_continues_while_it_reports() {
    let mut pipeline = builder().timeout(SHORT).start().unwrap();
    let begun = Instant::now();
    let reported = pipeline.on_ranks(|rank, stages| {
        let (observer, begun) = (stages[0].observer(), Instant::now());
        while begun.elapsed() < 4 * SHORT {
            observer.advanced(0);
            std::thread::yield_now();
        }
        rank
    });
    assert_eq!(reported.unwrap().len(), 2);
    assert!(begun.elapsed() >= 4 * SHORT);
    let (release, held) = channel::<()>();
    let held = Mutex::new(held);
    let silent = pipeline.on_ranks(move |_, _| {
        let _ = held.lock().unwrap().recv();
    });
    assert_eq!(
        silent.unwrap_err().to_string(),
        "rank 0 did not reply within 100ms to the request to run a call"
    );
    drop(release);
}
