//! Links that are late, lose messages or fail: the same bits, or an error with its place.

use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::optim::{Optimizer, SgdConfig};
use burn::tensor::{Device, Tensor, activation::gelu};
use tinderbox_fake::DynTensor;
use tinderbox_pipeline::schedule::{Action, Message, RankIndex};
use tinderbox_pipeline::{
    Evaluation, Link, LinkError, LinkMessage, LocalLink, Machine, Pipeline, PipelineBuilder,
    PipelineError, Placement, RankError, ScheduleKind, Tag,
};
use tinderbox_pipeline_tests::{
    Case, Computed, LR, Run, SAMPLES, continue_run, floats, full_text, parameters, squared,
};

#[derive(Module, Debug)]
struct Net {
    layers: Vec<Linear>,
}

type Batch = (Tensor<2>, Tensor<2>);

/// The first layer's weight is read again at the end: messages skip stages, and the weight is tied.
fn forward(net: &Net, (x, y): Batch) -> Computed {
    let x = net.layers.iter().fold(x, |x, layer| gelu(layer.forward(x)));
    (squared(x.matmul(net.layers[0].weight.val()), y), None)
}

fn untied(net: &Net, (x, y): Batch) -> Computed {
    let x = net.layers.iter().fold(x, |x, layer| gelu(layer.forward(x)));
    (squared(x, y), None)
}

const CASE: Case<Net, Batch> = Case {
    init: |device| Net {
        layers: (0..4)
            .map(|_| LinearConfig::new(4, 4).init(device))
            .collect(),
    },
    forward,
    batch: |n, device| {
        let shape = [SAMPLES, 4];
        (floats(shape, n, device), floats(shape, n + 1000, device))
    },
};

fn builder(stages: usize, schedule: ScheduleKind) -> PipelineBuilder<Net, Batch> {
    builder_of(CASE, (stages, 2), schedule)
}

fn builder_of(
    case: Case<Net, Batch>,
    (stages, micro_batches): (usize, usize),
    schedule: ScheduleKind,
) -> PipelineBuilder<Net, Batch> {
    let model = case.model();
    let trace = case.trace(&model, micro_batches);
    let chunks = match schedule.placement() {
        Placement::V => 2,
        Placement::Loop => 1,
    };
    let machine = Machine::local(stages / chunks).unwrap();
    let machine = machine.with_chunks(chunks, schedule.placement()).unwrap();
    let plan = trace.plan(&machine).unwrap();
    Pipeline::builder(&model, &trace, &plan)
        .optimizer(SgdConfig::new())
        .schedule(schedule)
}

fn batch() -> Batch {
    (CASE.batch)(0, &Device::flex())
}

/// The message of the schedule that a tag names.
fn of_schedule(tag: Tag) -> Message {
    match tag.message {
        LinkMessage::Schedule(message) => message,
        other => panic!("{other} without replicas"),
    }
}

/// A call of a link: its name in the notation of schedules, and the rank that calls.
type Hook = dyn Fn(RankIndex, Action) -> bool + Send + Sync;

/// Calls a hook before every call; the hook of a sender may drop the message.
struct Hooked {
    rank: RankIndex,
    inner: LocalLink,
    hook: Arc<Hook>,
}

impl Link for Hooked {
    fn post_receive(&mut self, from: RankIndex, tag: Tag) -> Result<(), LinkError> {
        (self.hook)(self.rank, Action::Receive(of_schedule(tag)));
        self.inner.post_receive(from, tag)
    }

    fn send(&mut self, to: RankIndex, tag: Tag, values: Vec<DynTensor>) -> Result<(), LinkError> {
        match (self.hook)(self.rank, Action::Send(of_schedule(tag))) {
            true => self.inner.send(to, tag, values),
            false => Ok(()),
        }
    }

    fn poll(&mut self, from: RankIndex, tag: Tag) -> Result<Vec<DynTensor>, LinkError> {
        (self.hook)(self.rank, Action::Receive(of_schedule(tag)));
        self.inner.poll(from, tag)
    }

    fn abort(&self, reason: PipelineError) {
        self.inner.abort(reason);
    }
}

fn hooked(
    builder: PipelineBuilder<Net, Batch>,
    hook: impl Fn(RankIndex, Action) -> bool + Send + Sync + 'static,
) -> PipelineBuilder<Net, Batch> {
    let hook: Arc<Hook> = Arc::new(hook);
    builder.links(move |rank, inner| {
        let hook = hook.clone();
        Box::new(Hooked { rank, inner, hook })
    })
}

/// Shorter than the timeout of a pipeline, longer than any step takes on a loaded machine.
const GENEROUS: Duration = Duration::from_secs(30);

/// A step of many timely messages takes longer than the driver would wait without progress.
#[test]
fn a_long_step_continues_while_messages_arrive() {
    const TIMEOUT: Duration = Duration::from_millis(600);
    let slow = builder_of(CASE, (2, 4), ScheduleKind::GPipe).timeout(TIMEOUT);
    let slow = hooked(slow, |_, action| {
        if matches!(action, Action::Send(_)) {
            std::thread::sleep(TIMEOUT / 2);
        }
        true
    });
    let mut pipeline = slow.start().unwrap();
    let begun = Instant::now();
    pipeline.step(LR, batch()).unwrap();
    assert!(begun.elapsed() > 3 * TIMEOUT);
}

/// Trains without delays and with random delays, and compares the runs.
fn delay(schedule: ScheduleKind) {
    const STEPS: u64 = 1000;
    let mut plain = builder(4, schedule).start().unwrap();
    let mut expected = Run::default();
    continue_run(&mut plain, CASE, 0..STEPS, &mut expected);
    expected.parameters = parameters(&plain.gather(&Device::flex()).unwrap());
    let calls = AtomicUsize::new(1_000_003);
    let late = move |_, _| {
        // Up to half a millisecond, at a third of the calls.
        let number = calls.fetch_add(1, Ordering::Relaxed) as u64;
        let random = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
        if random.is_multiple_of(3) {
            std::thread::sleep(Duration::from_micros(random % 500));
        }
        true
    };
    let mut delayed = hooked(builder(4, schedule), late).start().unwrap();
    let mut run = Run::default();
    continue_run(&mut delayed, CASE, 0..STEPS, &mut run);
    run.parameters = parameters(&delayed.gather(&Device::flex()).unwrap());
    run.assert_same(&expected, &schedule.to_string());
}

#[test]
fn random_delays_change_no_bit() {
    // At the same time, because delayed ranks mostly wait.
    std::thread::scope(|scope| {
        for schedule in [
            ScheduleKind::OneFOneB,
            ScheduleKind::ZbH2,
            ScheduleKind::Zbv,
            ScheduleKind::DualPipeV,
        ] {
            scope.spawn(move || delay(schedule));
        }
    });
}

/// Only one rank waits in each of these cases: where several wait for each other, the first timeout is
/// reported.
#[test]
fn a_lost_message_is_named_by_its_receiver() {
    for (is_training, lost, text) in [
        (
            false,
            "0F1>1F1",
            "rank 1, stage 1, micro-batch 1, action 1F1<0F1 failed\n\
             no `1F1<0F1 of round 1` from rank 0 within 1s; rank 0 was last in `0F1>1F1` of round 1",
        ),
        (
            true,
            "1B1>0B1",
            "rank 0, stage 0, micro-batch 1, action 0B1<1B1 failed\n\
             no `0B1<1B1 of round 1` from rank 1 within 1s; rank 1 was last in `1U` of round 1",
        ),
        (
            true,
            "0U>1U",
            "rank 1, stage 1, action 1U<0U failed\n\
             no `1U<0U of round 1` from rank 0 within 1s; rank 0 was last in `0U>1U` of round 1",
        ),
    ] {
        let case = Case {
            forward: if lost == "0U>1U" { forward } else { untied },
            ..CASE
        };
        let times = AtomicUsize::new(0);
        let lose = move |_, action: Action| {
            action.to_string() != lost || times.fetch_add(1, Ordering::Relaxed) == 0
        };
        let mut pipeline = hooked(builder_of(case, (2, 2), ScheduleKind::OneFOneB), lose)
            .timeout(Duration::from_secs(1))
            .start()
            .unwrap();
        let mut run = || match is_training {
            true => pipeline.step(LR, batch()).map(Evaluation::from),
            false => pipeline.evaluate(batch()),
        };
        run().unwrap();
        assert_eq!(full_text(&run().unwrap_err()), text);
    }
}

/// Whoever waits for a rank that waits itself reads which one computes.
#[test]
fn the_rank_that_keeps_all_waiting_is_named() {
    let stuck = |_, action: Action| {
        if action.to_string() == "0F1>1F1" {
            std::thread::sleep(Duration::from_millis(1500));
        }
        true
    };
    let mut pipeline = hooked(builder(3, ScheduleKind::GPipe), stuck)
        .timeout(Duration::from_millis(500))
        .start()
        .unwrap();
    let text = full_text(&pipeline.step(LR, batch()).unwrap_err());
    assert!(text.contains(" within 500ms; "), "{text}");
    assert!(
        text.contains("; rank 0 was last in `0F1>1F1` of round 0"),
        "{text}"
    );
}

/// Every call of every rank's link panics once: the error names the place promptly.
#[test]
fn a_failure_at_every_call_of_a_link_is_named_and_ends_all() {
    for schedule in [ScheduleKind::GPipe, ScheduleKind::ZbH1] {
        for rank in 0..3 {
            let mut position = 0;
            while fails_at(rank, position, schedule) {
                position += 1;
            }
            assert!(position >= 6, "rank {rank} has {position} calls");
        }
    }
    builder(3, ScheduleKind::GPipe)
        .start()
        .unwrap()
        .step(LR, batch())
        .unwrap();
}

/// `false` when the step has fewer calls.
fn fails_at(rank: usize, position: usize, schedule: ScheduleKind) -> bool {
    let calls = AtomicUsize::new(0);
    let fail = move |caller: RankIndex, action: Action| {
        let mine = caller.index() == rank;
        if mine && calls.fetch_add(1, Ordering::Relaxed) == position {
            panic!("injected at {action}");
        }
        true
    };
    let mut pipeline = hooked(builder(3, schedule), fail).start().unwrap();
    let started = Instant::now();
    let result = pipeline.step(LR, batch());
    assert!(started.elapsed() < GENEROUS);
    let Err(error) = result else { return false };
    let text = full_text(&error);
    let PipelineError::Rank(RankError::Action {
        rank: found,
        action,
        ..
    }) = &error
    else {
        panic!("{text}")
    };
    assert_eq!(found.index(), rank, "{text}");
    let expected = format!("action {action} failed\npanicked: injected at {action}");
    assert!(text.ends_with(&expected), "{text}");
    let again = pipeline.step(LR, batch()).unwrap_err();
    assert!(matches!(again, PipelineError::Stopped), "{again}");
    true
}

/// A link that panics when it is used, and again when it notifies the others.
struct Broken(LocalLink);

impl Link for Broken {
    fn post_receive(&mut self, from: RankIndex, tag: Tag) -> Result<(), LinkError> {
        self.0.post_receive(from, tag)
    }

    fn send(&mut self, _: RankIndex, _: Tag, _: Vec<DynTensor>) -> Result<(), LinkError> {
        panic!("injected")
    }

    fn poll(&mut self, _: RankIndex, _: Tag) -> Result<Vec<DynTensor>, LinkError> {
        panic!("injected")
    }

    fn abort(&self, _: PipelineError) {
        panic!("injected")
    }
}

#[test]
fn a_rank_that_ends_without_a_reason_is_named() {
    let broken = |rank: RankIndex, inner| -> Box<dyn Link> {
        match rank.index() {
            1 => Box::new(Broken(inner)),
            _ => Box::new(inner),
        }
    };
    let mut pipeline = builder(3, ScheduleKind::OneFOneB)
        .links(broken)
        .start()
        .unwrap();
    let started = Instant::now();
    let error = pipeline.step(LR, batch()).unwrap_err();
    assert!(started.elapsed() < GENEROUS);
    assert!(
        matches!(&error, PipelineError::Rank(RankError::Ended { rank }) if rank.index() == 1),
        "{error}"
    );
}

/// An optimizer that panics at one of its steps.
#[derive(Clone)]
struct Faulty {
    calls: Arc<AtomicUsize>,
    at: usize,
}

impl Optimizer for Faulty {
    type State<const D: usize> = <burn::optim::Sgd as Optimizer>::State<D>;

    fn step<const D: usize>(
        &self,
        lr: f64,
        tensor: Tensor<D>,
        grad: Tensor<D>,
        _: Option<Self::State<D>>,
    ) -> (Tensor<D>, Option<Self::State<D>>) {
        assert!(
            self.calls.fetch_add(1, Ordering::Relaxed) != self.at,
            "faulty"
        );
        (tensor - grad * lr, None)
    }

    fn to_device<const D: usize>(state: Self::State<D>, _: &Device) -> Self::State<D> {
        state
    }
}

#[test]
fn a_panic_of_the_optimizer_is_named() {
    for at in 0..8 {
        let calls = Arc::new(AtomicUsize::new(0));
        let mut pipeline = builder(3, ScheduleKind::OneFOneB)
            .custom_optimizer(Faulty { calls, at })
            .start()
            .unwrap();
        let error = pipeline.step(LR, batch()).unwrap_err();
        let PipelineError::Rank(RankError::Action { rank, action, .. }) = &error else {
            panic!("{error}")
        };
        assert_eq!(*action, format!("{rank}U"));
        assert!(full_text(&error).ends_with("panicked: faulty"));
    }
}

/// A deadline far in the future does not overflow the clock.
#[test]
fn a_wait_may_be_endless() {
    let mut pipeline = builder(2, ScheduleKind::GPipe)
        .timeout(Duration::MAX)
        .start()
        .unwrap();
    let output = pipeline.step(LR, batch()).unwrap();
    assert!(output.loss.is_finite());
}

const ALONE: &str = "TINDERBOX_TEST_ALONE";

/// Counts the threads of a separate process, since other tests have ranks too.
#[test]
fn no_thread_is_left_after_many_starts() {
    if std::env::var_os(ALONE).is_some() {
        return count_threads();
    }
    let output = Command::new(std::env::current_exe().unwrap())
        .args([
            "links::no_thread_is_left_after_many_starts",
            "--exact",
            "--nocapture",
        ])
        .env(ALONE, "1")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success(),
        "{text}\n{}",
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(text.contains("1 passed"), "{text}");
}

fn count_threads() {
    let threads = || std::fs::read_dir("/proc/self/task").unwrap().count();
    // The first operation starts Burn's own pool.
    builder(3, ScheduleKind::GPipe)
        .start()
        .unwrap()
        .step(LR, batch())
        .unwrap();
    let settle = |most: usize| {
        let started = Instant::now();
        while threads() > most && started.elapsed() < GENEROUS {
            std::thread::yield_now();
        }
        threads()
    };
    // The threads of the first pipeline end in this time.
    let started = Instant::now();
    let mut before = threads();
    while started.elapsed() < Duration::from_secs(2) {
        std::thread::sleep(Duration::from_millis(1));
        before = before.min(threads());
    }
    for number in 0..50 {
        let fail = move |_, _| {
            assert!(number % 5 != 0, "injected");
            true
        };
        let mut pipeline = hooked(builder(3, ScheduleKind::GPipe), fail)
            .start()
            .unwrap();
        assert_eq!(pipeline.step(LR, batch()).is_err(), number % 5 == 0);
        assert!(
            number % 5 == 0 || threads() > before,
            "the ranks are threads"
        );
    }
    assert!(
        settle(before) <= before,
        "{} threads, before {before}",
        threads()
    );
}
