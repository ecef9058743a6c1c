//! A training step on two processes, against two threads.

use std::process::{Command, Stdio};

use tinderbox::{ScheduleKind, World};
use tinderbox_benches::cases::{Case, Run, machine};
use tinderbox_benches::figures::median;
use tinderbox_benches::processes::{Control, Engine, Processes, world};

use crate::BENCH;

const KIND: ScheduleKind = ScheduleKind::OneFOneB;

const CASE: Case = Case::PEERS;

/// The variable with a Python that has PyTorch.
const PYTHON: &str = "TINDERBOX_BENCH_PYTHON";

fn start(world: &World) -> Run {
    CASE.pipeline_in(machine(KIND, 2), KIND.into(), world)
}

/// A rank: makes a step for every line, and says its seconds.
pub fn rank() {
    let world = world();
    let mut run = start(&world);
    let control = Control::connect(&world);
    for _ in control.lines() {
        control.say(run.step());
    }
}

pub fn figures(engines: &[Engine]) {
    let mut threads = start(&World::alone());
    for engine in engines {
        let name = engine.suffix();
        let (ratio, of_threads) = alternate(&mut threads, Processes::start("step", 2, *engine));
        BENCH.figure(
            &format!("step_threads_ms_beside_{name}"),
            of_threads * 1e3,
            "ms",
        );
        BENCH.figure(&format!("step_vs_threads_{name}"), ratio, "ratio");
    }
    match python() {
        Some(python) => {
            let script = concat!(env!("CARGO_MANIFEST_DIR"), "/processes/torch_pipeline.py");
            let sizes = [
                ("CASE_LAYERS", CASE.layers),
                ("CASE_WIDTH", CASE.width),
                ("CASE_SAMPLES", CASE.samples),
                ("CASE_MICRO_BATCHES", CASE.micro_batches),
            ];
            let processes = Processes::start_python(&python, script, &sizes, 2);
            let (ratio, _) = alternate(&mut threads, processes);
            BENCH.figure("torch_step_vs_threads", ratio, "ratio");
        }
        None => println!(
            "NOT RUN: torch.distributed, because {PYTHON} is not set, and no python3 has torch"
        ),
    }
}

/// Returns how many times as long a step takes on processes as on threads, and the seconds on threads.
fn alternate(threads: &mut Run, mut processes: Processes) -> (f64, f64) {
    let (mut ratios, mut times) = (Vec::new(), Vec::new());
    for turn in 0..=BENCH.turns() {
        let of_threads = threads.step();
        processes.say("step");
        let of_processes = processes.numbers().into_iter().fold(0.0, f64::max);
        // The first step loads programs and allocates memory.
        if turn > 0 {
            ratios.push(of_processes / of_threads);
            times.push(of_threads);
        }
    }
    (median(ratios), median(times))
}

/// Returns a Python that has PyTorch.
fn python() -> Option<String> {
    let python = std::env::var(PYTHON).unwrap_or_else(|_| "python3".to_owned());
    let mut command = Command::new(&python);
    command.args(["-c", "import torch.distributed.pipelining"]);
    let found = command.stdout(Stdio::null()).stderr(Stdio::null()).status();
    found.is_ok_and(|status| status.success()).then_some(python)
}
