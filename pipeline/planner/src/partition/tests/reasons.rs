//! The reasons that users read.

use tinderbox_schedule::ScheduleKind;

use super::super::{Partitioner, Planned, partition};
use super::works;
use crate::{Machine, Step, Work};

fn reasons(work: &Work, machine: &Machine) -> String {
    let step = Step::new(ScheduleKind::OneFOneB, 8);
    match partition(Partitioner::Auto, work, machine, &step) {
        Ok(Planned { choice, .. }) => {
            format!("{}\n{}", choice.partitioner, choice.reasons.join("\n"))
        }
        Err(error) => error.to_string(),
    }
}

#[cfg(not(feature = "metis"))]
#[test]
fn of_experts() {
    let work = works::experts(12, 8, 7);
    insta::assert_snapshot!(reasons(&work, &Machine::local(4).unwrap()), @r#"
    mixed
    mixed: 31.3 ms per step under a schedule found for it, idle 22.3 %, 3.5 MiB cross, fits
    chain: 5.3 % slower than mixed
    metis: not run, `metis` is not built in: build with the feature `metis`
    "#);
}

#[cfg(not(feature = "metis"))]
#[test]
fn of_a_line() {
    let work = works::line(16, 7);
    insta::assert_snapshot!(reasons(&work, &Machine::local(2).unwrap()), @r#"
    mixed
    mixed: 12.2 ms per step under a schedule found for it, idle 3.0 %, 128.0 KiB cross, fits
    chain: 14.5 % slower than mixed
    metis: not run, `metis` is not built in: build with the feature `metis`
    "#);
}

#[cfg(not(feature = "metis"))]
#[test]
fn of_one_rank() {
    let work = works::line(16, 7);
    insta::assert_snapshot!(reasons(&work, &Machine::local(1).unwrap()), @r#"
    chain
    chain: 23.4 ms per step, idle 0.0 %, 0 bytes cross, fits; optimal for its cost model, which predicts 22.2 ms
    mixed: not run, one rank runs all blocks
    metis: not run, one rank runs all blocks
    "#);
}

#[test]
fn of_too_little_memory() {
    let work = works::line(16, 7);
    let machine = Machine::local(2).unwrap().with_memory_limit(1000);
    insta::assert_snapshot!(reasons(&work, &machine), @"`blocks.0` needs at least 212 KiB on any rank, and the largest memory limit is 1000 B: use smaller micro-batches or finer blocks, or allow recomputation of activations");
}

#[test]
fn of_one_partitioner() {
    let work = works::experts(12, 8, 7);
    let machine = Machine::local(4).unwrap();
    let step = Step::new(ScheduleKind::OneFOneB, 8);
    let planned = partition(Partitioner::Chain, &work, &machine, &step).unwrap();
    insta::assert_snapshot!(planned.choice.reasons.join("\n"), @"chain: 32.9 ms per step, idle 26.4 %, 1.7 MiB cross, fits; optimal for its cost model, which predicts 29.8 ms");
}
