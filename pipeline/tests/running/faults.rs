//! A panic at every action of every rank: the error names the place, all ranks end, and the process
//! continues. A stall at every action: the step ends by a timeout.
//!
//! The faults are injected by a subscriber of the runtime's spans, which is global to the process, so
//! each test runs in its own process.

use std::collections::HashSet;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock};
use std::time::{Duration, Instant};

use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::optim::SgdConfig;
use burn::tensor::{Device, Tensor, activation::gelu};
use tinderbox_pipeline::schedule::{Action, lower};
use tinderbox_pipeline::{Clipping, Machine, Pipeline, PipelineError, RankError, ScheduleKind};
use tinderbox_pipeline_tests::{Case, Computed, LR, SAMPLES, floats, full_text, squared};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

#[derive(Module, Debug)]
struct Net {
    layers: Vec<Linear>,
}

type Batch = (Tensor<2>, Tensor<2>);

const CASE: Case<Net, Batch> = Case {
    init: |device| Net {
        layers: (0..4)
            .map(|_| LinearConfig::new(4, 4).init(device))
            .collect(),
    },
    // The first layer is read again at the end, so it is tied.
    forward: |net, (x, y)| -> Computed {
        let x = net.layers.iter().fold(x, |x, layer| gelu(layer.forward(x)));
        (squared(x.matmul(net.layers[0].weight.val()), y), None)
    },
    batch: |n, device| {
        let shape = [SAMPLES, 4];
        (floats(shape, n, device), floats(shape, n + 1000, device))
    },
};

/// The fault at an action of a rank.
#[derive(Clone, Debug, PartialEq)]
enum Fault {
    Panic,
    Stall(Duration),
}

/// The pending fault, and the actions that have begun.
static ARMED: Mutex<Option<(u64, String, Fault)>> = Mutex::new(None);
static BEGUN: AtomicUsize = AtomicUsize::new(0);

struct Faults;

/// The fields of a span of the runtime.
#[derive(Default)]
struct Fields {
    rank: u64,
    action: String,
}

impl Visit for Fields {
    fn record_u64(&mut self, field: &Field, value: u64) {
        if field.name() == "rank" {
            self.rank = value;
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        if field.name() == "action" {
            self.action = format!("{value:?}");
        }
    }
}

impl Subscriber for Faults {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_span() && metadata.name() == "action"
    }

    fn new_span(&self, span: &Attributes<'_>) -> Id {
        let mut fields = Fields::default();
        span.record(&mut fields);
        BEGUN.fetch_add(1, Ordering::Relaxed);
        let mut armed = ARMED.lock().unwrap();
        let here = |(rank, action, _): &(u64, String, Fault)| {
            *rank == fields.rank && *action == fields.action
        };
        let fault = armed.take_if(|armed| here(armed)).map(|armed| armed.2);
        drop(armed);
        match fault {
            Some(Fault::Panic) => panic!("injected"),
            Some(Fault::Stall(time)) => std::thread::sleep(time),
            None => {}
        }
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn event(&self, _: &Event<'_>) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

const ALONE: &str = "TINDERBOX_TEST_FAULTS";

/// Runs a test in its own process; `true` in that process.
fn is_alone(test: &str) -> bool {
    own_part(test, 1).is_some()
}

/// Runs a test in several processes at the same time, and returns the number of this process among them; `None` in the process
/// that starts them.
fn own_part(test: &str, parts: usize) -> Option<usize> {
    static SUBSCRIBED: OnceLock<()> = OnceLock::new();
    if let Ok(part) = std::env::var(ALONE) {
        SUBSCRIBED.get_or_init(|| tracing::subscriber::set_global_default(Faults).unwrap());
        return Some(part.parse().unwrap());
    }
    let start = |part: usize| {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command
            .args([test, "--exact", "--nocapture"])
            .env(ALONE, part.to_string())
            // Printing the place of a panic can take longer than the measured end.
            .env("RUST_BACKTRACE", "0")
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command.spawn().unwrap()
    };
    let processes: Vec<Child> = (0..parts).map(start).collect();
    for process in processes {
        let output = process.wait_with_output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{text}\n{errors}");
        assert!(text.contains("1 passed"), "{text}");
    }
    None
}

fn start(kind: ScheduleKind, chunks: usize, timeout: Duration) -> Pipeline<Net, Batch> {
    let model = CASE.model();
    let trace = CASE.trace(&model, 4);
    let machine = Machine::local(2).unwrap();
    let machine = machine.with_chunks(chunks, kind.placement()).unwrap();
    let plan = trace.plan(&machine).unwrap();
    Pipeline::builder(&model, &trace, &plan)
        .optimizer(SgdConfig::new())
        .schedule(kind)
        .clip(Clipping::GlobalNorm(1.0))
        .timeout(timeout)
        .start()
        .unwrap()
}

fn step(pipeline: &mut Pipeline<Net, Batch>) -> Result<(), PipelineError> {
    pipeline
        .step(LR, (CASE.batch)(0, &Device::flex()))
        .map(drop)
}

/// Schedules that together contain every kind of action: split and whole backwards, pairs, ties and
/// norms.
const SCHEDULES: [(ScheduleKind, usize); 3] = [
    (ScheduleKind::OneFOneB, 1),
    (ScheduleKind::Zbv, 2),
    (ScheduleKind::DualPipeV, 2),
];

/// Every action of every rank of a step.
fn actions(kind: ScheduleKind, chunks: usize) -> Vec<(u64, Action)> {
    let mut pipeline = start(kind, chunks, LONG);
    let batch = (CASE.batch)(0, &Device::flex());
    let (dependencies, _) = pipeline.costs(&batch).unwrap();
    let compute = pipeline
        .schedule()
        .compute(&pipeline.plan().stage_to_rank(), 4, &dependencies);
    let lowered = lower(&compute.unwrap(), &dependencies);
    let places = lowered.places();
    let all: Vec<_> = places
        .map(|at| (at.rank.index() as u64, at.action))
        .collect();
    // The runtime runs exactly these actions.
    let before = BEGUN.load(Ordering::Relaxed);
    step(&mut pipeline).unwrap();
    assert_eq!(BEGUN.load(Ordering::Relaxed) - before, all.len());
    all
}

/// The timeout where nothing should wait for it.
const LONG: Duration = Duration::from_secs(60);

/// Runs a step with a panic at an action; returns its error and duration.
fn panic_at(
    rank: u64,
    action: Action,
    kind: ScheduleKind,
    chunks: usize,
) -> (PipelineError, Duration) {
    let mut pipeline = start(kind, chunks, LONG);
    *ARMED.lock().unwrap() = Some((rank, action.to_string(), Fault::Panic));
    let started = Instant::now();
    let error = step(&mut pipeline).unwrap_err();
    (error, started.elapsed())
}

#[test]
fn a_panic_at_every_action_is_named_and_ends_all() {
    if !is_alone("faults::a_panic_at_every_action_is_named_and_ends_all") {
        return;
    }
    let threads = || std::fs::read_dir("/proc/self/task").map_or(0, Iterator::count);
    let names = || -> Vec<String> {
        let tasks = std::fs::read_dir("/proc/self/task").unwrap();
        let name = |task: std::io::Result<std::fs::DirEntry>| {
            std::fs::read_to_string(task.unwrap().path().join("comm")).unwrap_or_default()
        };
        tasks.map(name).collect()
    };
    let mut kinds_of_actions = HashSet::new();
    for (kind, chunks) in SCHEDULES {
        let all = actions(kind, chunks);
        let before = threads();
        for (rank, action) in all {
            let (error, time) = panic_at(rank, action, kind, chunks);
            assert!(time < LONG / 2, "{action}: {time:?}");
            let text = full_text(&error);
            let PipelineError::Rank(RankError::Action {
                rank: found,
                stage,
                micro_batch,
                action: named,
                ..
            }) = &error
            else {
                panic!("{action}: {text}")
            };
            assert_eq!(found.index() as u64, rank, "{text}");
            assert_eq!(
                (*stage, *micro_batch),
                (Some(action.stage()), action.micro_batch())
            );
            assert_eq!(*named, action.to_string());
            assert!(text.ends_with("panicked: injected"), "{text}");
            kinds_of_actions.insert(std::mem::discriminant(&action));
            // All threads of the pipeline have been joined.
            let settled = Instant::now();
            while threads() > before && settled.elapsed() < LONG {
                std::thread::yield_now();
            }
            assert!(
                threads() <= before,
                "{action}: {before} threads before, now {:?}",
                names()
            );
        }
        step(&mut start(kind, chunks, LONG)).unwrap();
    }
    assert_eq!(
        kinds_of_actions.len(),
        6,
        "compute, pair, send, receive, reduce, update"
    );
}

/// A rank that stalls makes the others wait: the step ends by the timeout of a waiting rank or of the
/// driver, and nothing hangs.
#[test]
fn a_stall_at_every_action_ends_by_the_timeout() {
    // The processes mostly wait.
    const PROCESSES: usize = 4;
    const TIMEOUT: Duration = Duration::from_millis(300);
    let test = "faults::a_stall_at_every_action_ends_by_the_timeout";
    let Some(own) = own_part(test, PROCESSES) else {
        return;
    };
    let (kind, chunks) = (ScheduleKind::OneFOneB, 1);
    let all = actions(kind, chunks);
    assert!(all.len() > PROCESSES);
    for (rank, action) in all.into_iter().skip(own).step_by(PROCESSES) {
        let mut pipeline = start(kind, chunks, TIMEOUT);
        let stall = Fault::Stall(4 * TIMEOUT);
        *ARMED.lock().unwrap() = Some((rank, action.to_string(), stall));
        let started = Instant::now();
        let error = step(&mut pipeline).unwrap_err();
        assert!(started.elapsed() < LONG / 2, "{action}");
        let text = full_text(&error);
        assert!(text.contains("within"), "{action}: {text}");
        assert!(ARMED.lock().unwrap().is_none(), "{action} was reached");
    }
    step(&mut start(kind, chunks, LONG)).unwrap();
}
