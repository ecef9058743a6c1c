//! Tiny graphs, where every assignment can be looked at.

use tinderbox_schedule::ScheduleKind;

use super::super::acyclic::{AcyclicObjective, AcyclicOptions, acyclic};
use super::super::mixed::{MixedOptions, mixed};
use super::{work, works};
use crate::{Machine, Partition, Step, Work, partition_costs, predict};

/// A machine whose largest stage is the sum of its blocks, so that it can be reckoned again simply.
fn machine(ranks: usize) -> Machine {
    let mut machine = Machine::local(ranks).unwrap();
    machine.action_ns = 0;
    machine
}

/// The time of the largest stage and the bytes that cross, from the costs that the simulator gets.
fn figures(work: &Work, machine: &Machine, step: &Step, stage_of: &[usize]) -> (u64, u64) {
    let partition = Partition {
        stage_of: stage_of.to_vec(),
        stage_to_rank: machine.stage_to_rank(),
        recompute: vec![false; machine.ranks()],
    };
    let costs = partition_costs(work, machine, step, &partition).costs;
    let stages = costs.stages.iter();
    let largest = stages.map(|stage| stage.forward + stage.backward).max();
    let bytes = costs.message_bytes.values().sum();
    (largest.unwrap(), bytes)
}

/// The figures of all assignments whose values go from lower to higher stages, none empty.
fn all(work: &Work, machine: &Machine, step: &Step) -> Vec<(u64, u64)> {
    let (blocks, stages) = (work.blocks.len(), machine.ranks());
    let mut found = Vec::new();
    for code in 0..stages.pow(blocks as u32) {
        let digit = |block: usize| code / stages.pow(block as u32) % stages;
        let stage_of: Vec<usize> = (0..blocks).map(digit).collect();
        let is_used = (0..stages).all(|stage| stage_of.contains(&stage));
        let goes_up = work.values.iter().all(|value| {
            let mut others = value.readers.iter().chain(&value.keepers);
            others.all(|other| stage_of[value.maker] <= stage_of[*other])
        });
        // Gradients of parameters go to the first reader, so no other is on a lower stage.
        let goes_down = work.parameters.iter().all(|parameter| {
            let readers = &parameter.readers;
            let lowest = readers.iter().map(|reader| stage_of[*reader]).min();
            !parameter.is_trainable || lowest == Some(stage_of[readers[0]])
        });
        if is_used && goes_up && goes_down {
            found.push(figures(work, machine, step, &stage_of));
        }
    }
    found
}

/// How many of the cases are optimal, and how far the worst is above the optimum in per cent.
fn compare(objective: AcyclicObjective) -> (usize, usize, u64) {
    let step = Step::new(ScheduleKind::OneFOneB, 4);
    let (mut cases, mut optimal, mut worst) = (0, 0, 0);
    for seed in 0..40 {
        for (shape, ranks) in [(1, 2), (1, 3), (3, 3)] {
            let work = work(shape, if ranks == 2 { 11 } else { 8 }, seed);
            let machine = machine(ranks);
            let options = AcyclicOptions::of(objective);
            let found = acyclic(&work, &machine, &step, options).unwrap();
            let found = figures(&work, &machine, &step, &found.stage_of);
            let all = all(&work, &machine, &step);
            let (found, best) = match objective {
                AcyclicObjective::Bottleneck => (found.0, all.iter().map(|one| one.0).min()),
                AcyclicObjective::EdgeCut => {
                    // The result's own largest stage is allowed to all.
                    let allowed = all.iter().filter(|one| one.0 <= found.0);
                    (found.1, allowed.map(|one| one.1).min())
                }
            };
            let best = best.unwrap();
            assert!(found >= best);
            cases += 1;
            optimal += usize::from(found == best);
            worst = worst.max((found - best) * 100 / best.max(1));
        }
    }
    (optimal, cases, worst)
}

#[test]
fn bottlenecks_are_near_the_optimum() {
    let (optimal, cases, worst) = compare(AcyclicObjective::Bottleneck);
    assert!(optimal * 100 >= cases * 95, "{optimal} of {cases}");
    assert!(worst <= 5, "{worst} %");
}

#[test]
fn edge_cuts_are_near_the_optimum() {
    let (optimal, cases, worst) = compare(AcyclicObjective::EdgeCut);
    assert!(optimal * 100 >= cases * 95, "{optimal} of {cases}");
    // One move takes one block: blocks that share a parameter do not move together.
    assert!(worst <= 90, "{worst} %");
}

/// On a line the largest stage is that of the best contiguous cut: dynamic programming over all.
#[test]
fn a_line_is_cut_like_a_chain() {
    let step = Step::new(ScheduleKind::OneFOneB, 4);
    for seed in 0..20 {
        let (blocks, stages) = (60 + 7 * seed as usize, 2 + seed as usize % 5);
        let work = works::line(blocks, seed);
        let machine = machine(stages);
        let mut sums = vec![0];
        for block in &work.blocks {
            sums.push(sums[sums.len() - 1] + block.time());
        }
        let mut best: Vec<u64> = sums.clone();
        for stage in 1..stages {
            let to = |end: usize| {
                let cuts = (stage..end).map(|cut| best[cut].max(sums[end] - sums[cut]));
                cuts.min().unwrap_or(u64::MAX)
            };
            best = (0..=blocks).map(to).collect();
        }
        let found = acyclic(&work, &machine, &step, AcyclicOptions::default()).unwrap();
        let (largest, _) = figures(&work, &machine, &step, &found.stage_of);
        assert_eq!(largest, best[blocks], "seed {seed}");
    }
}

/// Branches of experts side by side: cutting between layers sends one value, within one many.
#[test]
fn experts_are_cut_between_layers() {
    let work = works::experts(6, 16, 9);
    let machine = machine(3);
    let step = Step::new(ScheduleKind::OneFOneB, 4);
    let options = AcyclicOptions::of(AcyclicObjective::EdgeCut);
    let found = acyclic(&work, &machine, &step, options).unwrap();
    let (_, bytes) = figures(&work, &machine, &step, &found.stage_of);
    // A value of 8192 bytes and its gradient at each of two cuts.
    assert_eq!(bytes, 2 * 2 * 8192);
}

/// Few uneven blocks: no contiguous cut into two stages is balanced, a mixed pipe is.
#[test]
fn a_mixed_pipe_balances_what_no_contiguous_cut_does() {
    let mut work = works::line(6, 1);
    for (block, time) in work.blocks.iter_mut().zip([50, 10, 10, 10, 10, 30]) {
        *block = works::block(block.name.clone(), time * 100_000);
    }
    let mut machine = machine(2);
    // Updates take no time.
    machine.rates.bytes_per_s = u64::MAX;
    let step = Step::new(ScheduleKind::GPipe, 16);
    let found = mixed(&work, &machine, &step, MixedOptions::default()).unwrap();
    let predicted = predict(&work, &machine, &step, &found).unwrap().prediction;
    let busy: Vec<u64> = predicted.ranks.iter().map(|rank| rank.busy_ns).collect();
    assert_eq!(busy, [16 * 18_000_000; 2]);
}
