//! A training step on two processes, against two threads.

use tinderbox::{ScheduleKind, World};

use crate::cases::{Case, Run, machine};
use crate::processes::{Processes, lines};
use crate::{figure, median, turns};

const KIND: ScheduleKind = ScheduleKind::OneFOneB;

fn start(world: &World) -> Run {
    Case::PEERS.pipeline_in(machine(KIND, 2), KIND.into(), world)
}

/// A rank: makes a step for every line, and prints its seconds.
pub fn rank() {
    let world = World::from_env().expect("all ranks come");
    let mut run = start(&world);
    for _ in lines() {
        println!("{}", run.step());
    }
}

pub fn figures() {
    let mut threads = start(&World::alone());
    let mut processes = Processes::start("step", 2);
    let (mut ratios, mut times) = (Vec::new(), Vec::new());
    for turn in 0..=turns() {
        let of_threads = threads.step();
        processes.say("step");
        let of_processes = processes.numbers().into_iter().fold(0.0, f64::max);
        // The first step loads programs and allocates memory.
        if turn > 0 {
            ratios.push(of_processes / of_threads);
            times.push(of_threads);
        }
    }
    figure("step_threads_ms", median(times) * 1e3, "ms");
    figure("step_vs_threads_grpc", median(ratios), "ratio");
}
