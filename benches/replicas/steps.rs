//! The speed of replicas, and of the order of sums.

use std::collections::BTreeMap;
use std::process::{Command, Stdio};

use tinderbox::schedule::simulate;
use tinderbox::{GradientSum, Machine, ScheduleKind, World};
use tinderbox_benches::cases::{Case, Run};
use tinderbox_benches::figures::median;
use tinderbox_benches::processes::Processes;

use crate::BENCH;

const CASE: Case = Case::PEERS;

/// The variable with a Python that has PyTorch.
const PYTHON: &str = "TINDERBOX_BENCH_PYTHON";

/// The micro-batches of each replica of the case.
const OF_REPLICA: usize = CASE.micro_batches / 2;

fn start(replicas: usize, sum: GradientSum) -> Run {
    start_case(CASE, replicas, sum)
}

fn start_case(case: Case, replicas: usize, sum: GradientSum) -> Run {
    let machine = Machine::local(replicas).expect("there are ranks");
    let kind = ScheduleKind::OneFOneB.into();
    case.start(machine, kind, &World::alone(), replicas, sum)
}

/// Prints the speedup of two replicas with one thread each over one rank with one thread, and the cost of a tree of sums.
pub fn figures() {
    let mut alone = start(1, GradientSum::Sequential);
    let mut tree = start(1, GradientSum::Tree(8));
    let mut two = start(2, GradientSum::Tree(8));
    let (mut speedups, mut costs, mut times) = (Vec::new(), Vec::new(), Vec::new());
    for turn in 0..=BENCH.turns() {
        let [of_one, of_two] = [alone.step(), two.step()];
        let [again, of_tree] = [alone.step(), tree.step()];
        // The first step loads programs and allocates memory.
        if turn > 0 {
            speedups.push(of_one / of_two);
            costs.push(of_tree / again);
            times.push(of_two);
        }
    }
    BENCH.figure("step_2x1_ms", median(times) * 1e3, "ms");
    BENCH.figure("speedup_2x1", median(speedups), "ratio");
    BENCH.figure("tree_cost", median(costs), "ratio");
    parts(&mut two);
    prediction(&mut two);
    torch(&mut two);
}

/// Prints the difference between a measured step of two replicas and its prediction, whose times come from steps with half as many
/// micro-batches, each immediately before.
fn prediction(two: &mut Run) {
    // Micro-batches of the same size, each a group of its own as in the case.
    let half = Case {
        samples: CASE.samples / 2,
        micro_batches: OF_REPLICA,
        ..CASE
    };
    let mut source = start_case(half, 2, GradientSum::Tree(OF_REPLICA));
    source.step();
    let (mut steps, mut times) = (Vec::new(), Vec::new());
    for _ in 0..BENCH.turns() {
        steps.push(source.measured().1);
        times.push(two.step());
    }
    let (dependencies, costs) = two.costs();
    let costs = costs.with_times(&steps);
    let schedule = ScheduleKind::OneFOneB.generate(1, 1, OF_REPLICA);
    let schedule = schedule.expect("it is known");
    let predicted = simulate(&schedule, &dependencies, &costs).expect("it is valid");
    let (predicted, measured) = (predicted.makespan() as f64 / 1e9, median(times));
    BENCH.figure("predicted_2x1_ms", predicted * 1e3, "ms");
    BENCH.figure(
        "sim_error",
        (predicted - measured).abs() / measured,
        "ratio",
    );
}

/// Prints the milliseconds of a replica's step by kinds of actions: what is beside `F` and `B` is the exchange.
fn parts(two: &mut Run) {
    let mut of_kinds: BTreeMap<char, Vec<f64>> = BTreeMap::new();
    for _ in 0..BENCH.turns() {
        let mut sums: BTreeMap<char, f64> = BTreeMap::new();
        for span in &two.measured().1.ranks[0].spans {
            let word = span.action.to_string();
            let kind = word.chars().find(char::is_ascii_alphabetic).unwrap_or('?');
            *sums.entry(kind).or_default() += span.duration() as f64 / 1e6;
        }
        for (kind, sum) in sums {
            of_kinds.entry(kind).or_default().push(sum);
        }
    }
    let parts = of_kinds.into_iter();
    let parts = parts.map(|(kind, times)| format!("{kind} {:.1} ms", median(times)));
    println!(
        "a step of one of two replicas: {}",
        parts.collect::<Vec<_>>().join(", ")
    );
}

/// Prints how long a step of PyTorch's data parallelism takes, in steps of two replicas.
fn torch(two: &mut Run) {
    let Some(python) = python() else {
        return println!(
            "NOT RUN: torch.nn.parallel, because {PYTHON} is not set, and no python3 has torch"
        );
    };
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/replicas/torch_ddp.py");
    let sizes = [
        ("CASE_LAYERS", CASE.layers),
        ("CASE_WIDTH", CASE.width),
        ("CASE_SAMPLES", CASE.samples),
        ("CASE_MICRO_BATCHES", CASE.micro_batches),
    ];
    let step = |processes: &mut Processes| {
        processes.say("step");
        processes.numbers().into_iter().fold(0.0, f64::max)
    };
    let mut of_two = Processes::start_python(&python, script, &sizes, 2);
    let mut of_one = Processes::start_python(&python, script, &sizes, 1);
    let (mut ratios, mut speedups) = (Vec::new(), Vec::new());
    for turn in 0..=BENCH.turns() {
        let times = [two.step(), step(&mut of_two), step(&mut of_one)];
        if turn > 0 {
            ratios.push(times[1] / times[0]);
            speedups.push(times[2] / times[1]);
        }
    }
    BENCH.figure("torch_step_vs_2x1", median(ratios), "ratio");
    BENCH.figure("torch_speedup_2x1", median(speedups), "ratio");
}

/// Returns a Python that has PyTorch.
fn python() -> Option<String> {
    let python = std::env::var(PYTHON).unwrap_or_else(|_| "python3".to_owned());
    let mut command = Command::new(&python);
    command.args(["-c", "import torch.nn.parallel"]);
    let found = command.stdout(Stdio::null()).stderr(Stdio::null()).status();
    found.is_ok_and(|status| status.success()).then_some(python)
}
