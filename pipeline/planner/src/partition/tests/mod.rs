//! Properties of all partitioners, on generated work.

mod degenerate;
mod reasons;
pub(super) mod works;

use std::collections::BTreeSet;

use proptest::prelude::*;
use tinderbox_schedule::ScheduleKind;

use super::{Partitioner, partition};
use crate::{Machine, Partition, PlannerError, RankModel, Step, Work, predict};

/// Every block has a stage, every stage a block, values go from lower to higher stages, and ranks are
/// numbered without gaps.
pub(super) fn check_valid(work: &Work, machine: &Machine, partition: &Partition) {
    assert_eq!(partition.stage_of.len(), work.blocks.len());
    assert_eq!(partition.recompute.len(), partition.stages());
    let stages: BTreeSet<usize> = partition.stage_of.iter().copied().collect();
    assert!(stages.into_iter().eq(0..partition.stages()));
    for value in &work.values {
        let mut users = value.readers.iter().chain(&value.keepers);
        let maker = partition.stage_of[value.maker];
        assert!(users.all(|block| partition.stage_of[*block] >= maker));
    }
    let ranks = partition.stage_to_rank.iter().map(|rank| rank.index());
    let ranks: BTreeSet<usize> = ranks.collect();
    assert!(ranks.into_iter().eq(0..machine.ranks()));
}

/// The partitioners of this build.
pub(super) fn built_in() -> impl Iterator<Item = Partitioner> {
    let all = Partitioner::ALL.into_iter();
    all.filter(|one| *one != Partitioner::Metis || cfg!(feature = "metis"))
}

/// Generates work of several shapes.
pub(super) fn work(shape: u64, size: usize, seed: u64) -> Work {
    let work = match shape % 4 {
        0 => works::line(size, seed),
        1 => works::random_graph(size, seed),
        2 => works::experts(size.div_ceil(6), 4, seed),
        _ => works::u_net(size.div_ceil(2), seed),
    };
    work.check().unwrap();
    work
}

/// A machine with overheads; with `is_uneven`, every second rank is slower.
fn machine(ranks: usize, is_uneven: bool) -> Machine {
    let second = if is_uneven { 600 } else { 1000 };
    let rank = |rank: usize| RankModel {
        memory_bytes: None,
        speed_permille: [1000, second][rank % 2],
    };
    let mut machine = Machine::of_ranks((0..ranks).map(rank).collect()).unwrap();
    machine.link.ticks_per_mib = 100_000;
    machine
}

/// Cases where every partitioner runs: each simulates several candidates.
const FEW: u32 = 6;

proptest! {
    #![proptest_config(ProptestConfig { cases: FEW, ..ProptestConfig::default() })]

    #[test]
    fn partitions_are_valid(
        shape in 0..4_u64,
        size in 12..40_usize,
        seed in any::<u64>(),
        ranks in 1..5_usize,
        is_uneven in any::<bool>(),
    ) {
        let work = work(shape, size, seed);
        let machine = machine(ranks, is_uneven);
        let step = Step::new(ScheduleKind::OneFOneB, 6);
        for partitioner in Partitioner::ALL {
            let planned = partition(partitioner, &work, &machine, &step);
            if partitioner == Partitioner::Metis && cfg!(not(feature = "metis")) {
                prop_assert!(planned.is_err());
                continue;
            }
            check_valid(&work, &machine, &planned.unwrap().partition);
        }
    }

    /// Partitions within the limits fit by the simulator, waiting messages included.
    #[test]
    fn memory_limits_hold(
        shape in 0..4_u64,
        seed in any::<u64>(),
        limit in 300_000..4_000_000_u64,
        may_recompute in any::<bool>(),
    ) {
        let work = work(shape, 24, seed);
        let machine = machine(3, false).with_memory_limit(limit);
        let mut step = Step::new(ScheduleKind::OneFOneB, 6);
        step.may_recompute = may_recompute;
        for partitioner in Partitioner::ALL {
            if let Ok(planned) = partition(partitioner, &work, &machine, &step) {
                let found = predict(&work, &machine, &step, &planned.partition).unwrap();
                prop_assert_eq!(found.prediction.over_limit(&machine), None);
            }
        }
    }

    #[test]
    fn auto_is_not_slower_than_its_parts(shape in 0..4_u64, seed in any::<u64>()) {
        let work = work(shape, 24, seed);
        let machine = machine(3, seed % 2 == 0);
        let step = Step::new(ScheduleKind::OneFOneB, 6);
        let best = partition(Partitioner::Auto, &work, &machine, &step).unwrap();
        for partitioner in Partitioner::ALL {
            if let Ok(part) = partition(partitioner, &work, &machine, &step) {
                let [best, part] = [&best, &part].map(|one| one.predicted.prediction.step_ns);
                prop_assert!(best <= part, "{partitioner}");
            }
        }
    }

    #[test]
    fn the_same_inputs_return_the_same_partition(shape in 0..4_u64, seed in any::<u64>()) {
        let work = work(shape, 30, seed);
        let machine = machine(3, true);
        let step = Step::new(ScheduleKind::ZbH1, 6);
        for partitioner in Partitioner::ALL {
            let run = || partition(partitioner, &work, &machine, &step).ok();
            let [first, again] = [run(), run()].map(|run| run.map(|run| (run.partition, run.choice)));
            prop_assert_eq!(first, again);
        }
    }
}

/// Ranks of different speeds finish at about the same time.
#[test]
fn uneven_ranks_are_balanced() {
    let work = works::experts(40, 8, 5);
    let machine = machine(4, true);
    let step = Step::new(ScheduleKind::OneFOneB, 8);
    let planned = partition(Partitioner::Mixed, &work, &machine, &step).unwrap();
    let ranks = planned.predicted.prediction.ranks.iter();
    let busy = ranks.map(|rank| rank.busy_ns);
    let (least, most) = (busy.clone().min().unwrap(), busy.max().unwrap());
    assert!(most * 100 <= least * 105, "{least} {most}");
}

/// Few uneven blocks: no contiguous cut into two stages is balanced, several stages per rank are.
#[test]
fn mixed_balances_where_no_contiguous_cut_does() {
    let mut work = works::line(6, 1);
    for (block, time) in work.blocks.iter_mut().zip([50, 10, 10, 10, 10, 30]) {
        *block = works::block(block.name.clone(), time * 100_000);
    }
    let mut machine = Machine::local(2).unwrap();
    machine.action_ns = 0;
    // Updates take no time.
    machine.rates.bytes_per_s = u64::MAX;
    let step = Step::new(ScheduleKind::GPipe, 16);
    let planned = partition(Partitioner::Mixed, &work, &machine, &step).unwrap();
    let ranks = planned.predicted.prediction.ranks.iter();
    let busy: Vec<u64> = ranks.map(|rank| rank.busy_ns).collect();
    assert_eq!(busy, [16 * 18_000_000; 2]);
}

/// A cut by time alone exceeds the memory of the small rank; the moves find one that fits.
#[test]
fn moves_respect_memory() {
    let mut work = works::line(24, 3);
    for parameter in &mut work.parameters {
        (parameter.bytes, parameter.is_trainable) = (100_000, true);
    }
    let step = Step::new(ScheduleKind::OneFOneB, 6);
    let limit = |bytes| RankModel {
        memory_bytes: Some(bytes),
        ..RankModel::default()
    };
    // A block holds 400 kB: 12 of them do not fit the first rank, 5 do.
    let machine = Machine::of_ranks(vec![limit(2_500_000), limit(9_000_000)]).unwrap();
    for partitioner in built_in() {
        let planned = partition(partitioner, &work, &machine, &step).unwrap();
        let ranks = &planned.partition.stage_to_rank;
        let stages = planned.partition.stage_of.iter();
        let first = stages.filter(|stage| ranks[**stage].index() == 0).count();
        assert!((3..=6).contains(&first), "{partitioner} {first}");
    }
}

/// Activations that are too large to keep are recomputed.
#[test]
fn activations_are_recomputed_where_memory_requires_it() {
    let mut work = works::line(12, 3);
    work.parameters.clear();
    for value in &mut work.values {
        (value.bytes, value.gradient_bytes) = (1_000_000, 0);
    }
    let machine = machine(2, false).with_memory_limit(9_000_000);
    let step = Step::new(ScheduleKind::GPipe, 4);
    let plain = partition(Partitioner::Chain, &work, &machine, &step);
    assert!(matches!(plain, Err(PlannerError::Infeasible(_))));
    // Searched lists have fewer micro-batches in flight than GPipe.
    partition(Partitioner::Mixed, &work, &machine, &step).unwrap();
    let step = step.with_recomputation();
    let planned = partition(Partitioner::Chain, &work, &machine, &step).unwrap();
    assert!(planned.partition.recompute.contains(&true));
}
