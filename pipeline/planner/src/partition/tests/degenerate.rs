//! Degenerate work, machines and steps: errors, but no panics.

use tinderbox_schedule::{ComputeTimes, LinkCosts, Placement, ScheduleKind};

use super::super::{Partitioner, partition};
use super::{built_in, check_valid, works};
use crate::{Block, Machine, PlannerError, RankModel, Step, Work};

/// Runs all partitioners, and returns whether each found a plan.
fn outcomes(work: &Work, machine: &Machine, step: &Step) -> Vec<(Partitioner, bool)> {
    let outcome = |partitioner| {
        let planned = partition(partitioner, work, machine, step);
        if let Ok(planned) = &planned {
            check_valid(work, machine, &planned.partition);
        }
        (partitioner, planned.is_ok())
    };
    built_in().map(outcome).collect()
}

fn check(work: &Work, machine: &Machine, step: &Step, expected: bool) {
    for (name, is_ok) in outcomes(work, machine, step) {
        assert_eq!(is_ok, expected, "{name}");
    }
}

const STEP: Step = Step::new(ScheduleKind::OneFOneB, 4);

#[test]
fn no_blocks() {
    check(&Work::default(), &Machine::local(2).unwrap(), &STEP, false);
}

#[test]
fn one_block() {
    let work = works::line(1, 1);
    check(&work, &Machine::local(1).unwrap(), &STEP, true);
    check(&work, &Machine::local(2).unwrap(), &STEP, false);
}

#[test]
fn as_many_stages_as_blocks() {
    let work = works::random_graph(5, 1);
    check(&work, &Machine::local(5).unwrap(), &STEP, true);
    check(&work, &Machine::local(6).unwrap(), &STEP, false);
}

/// `mixed` needs a block per rank only: several stages of a rank are its choice.
#[test]
fn fewer_blocks_than_stages_of_the_machine() {
    let work = works::random_graph(5, 1);
    let machine = Machine::local(3).unwrap();
    let machine = machine.with_chunks(2, Placement::Loop).unwrap();
    let step = Step::new(ScheduleKind::Interleaved1F1B, 6);
    for (name, is_planned) in outcomes(&work, &machine, &step) {
        assert_eq!(is_planned, name != Partitioner::Chain, "{name}");
    }
}

#[test]
fn few_micro_batches() {
    let work = works::experts(3, 4, 2);
    let machine = Machine::local(3).unwrap();
    check(&work, &machine, &Step::new(ScheduleKind::OneFOneB, 1), true);
    let nothing = Step::new(ScheduleKind::OneFOneB, 0);
    outcomes(&work, &machine, &nothing);
}

#[test]
fn no_time_and_no_bytes() {
    let mut work = works::random_graph(20, 3);
    for block in &mut work.blocks {
        *block = works::block(block.name.clone(), 0);
    }
    for value in &mut work.values {
        (value.bytes, value.gradient_bytes) = (0, 0);
    }
    check(&work, &Machine::local(3).unwrap(), &STEP, true);
}

#[test]
fn blocks_without_values() {
    let mut work = works::line(12, 3);
    work.values.clear();
    check(&work, &Machine::local(3).unwrap(), &STEP, true);
}

#[test]
fn the_largest_numbers_there_are() {
    let mut work = works::experts(3, 4, 2);
    let times = ComputeTimes::new(u64::MAX, u64::MAX, u64::MAX);
    for block in &mut work.blocks {
        *block = Block {
            weight_gradient_bytes: u64::MAX,
            transient_bytes: u64::MAX,
            ..Block::of_times(block.name.clone(), times)
        };
    }
    for value in &mut work.values {
        (value.bytes, value.gradient_bytes) = (u64::MAX, u64::MAX);
    }
    for parameter in &mut work.parameters {
        parameter.bytes = u64::MAX;
    }
    let mut machine = Machine::local(3).unwrap();
    outcomes(&work, &machine, &STEP);
    machine.link = LinkCosts::new(u64::MAX, u64::MAX);
    machine.action_ns = u64::MAX;
    outcomes(&work, &machine, &STEP);
    outcomes(&work, &machine, &STEP.with_recomputation());
    check(&work, &machine.with_memory_limit(1), &STEP, false);
}

#[test]
fn ranks_of_very_different_speeds() {
    let work = works::experts(3, 4, 2);
    let ranks = [1, u64::MAX, 1000].map(|speed_permille| RankModel {
        memory_bytes: None,
        speed_permille,
    });
    let machine = Machine::of_ranks(ranks.to_vec()).unwrap();
    check(&work, &machine, &STEP, true);
}

#[test]
fn chunks_that_the_schedule_does_not_support() {
    let work = works::experts(3, 4, 2);
    let machine = Machine::local(2).unwrap();
    let machine = machine.with_chunks(2, Placement::V).unwrap();
    check(&work, &machine, &STEP, true);
}

#[test]
fn invalid_work_is_refused() {
    let mut work = works::line(4, 1);
    work.values[0].readers = vec![0];
    let machine = Machine::local(2).unwrap();
    for name in built_in() {
        let refused = partition(name, &work, &machine, &STEP);
        assert!(matches!(refused, Err(PlannerError::Work(_))), "{name}");
    }
}
