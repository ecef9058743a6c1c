//! An exhaustive search for the best cuts, with which the tests of `chain` and the bench of plans compare its cuts.

use tinderbox_planner::cost_model::StepModel;
use tinderbox_planner::{Machine, Partition, PartitionCosts, Step, Work, partition_costs};
use tinderbox_schedule::{Compute, RankIndex, Schedule, peak_bytes};

/// Returns the time in nanoseconds of the best contiguous stages by the model of
/// `chain`, found by trying all cuts with every set of recomputing stages; `None` where
/// none fits. Stages that share a rank must fit it together.
///
/// Exponential in blocks and in stages.
pub fn brute_force(work: &Work, machine: &Machine, step: &Step) -> Option<u64> {
    let map = machine.stage_to_rank();
    let lists = step.lists(&map)?;
    let model = StepModel::new(step, machine.ranks(), machine.chunks(), Some(&lists));
    let mut best: Option<u64> = None;
    let mut starts: Vec<usize> = (0..map.len()).collect();
    if map.len() > work.blocks.len() {
        return None;
    }
    loop {
        let costs_of = |set: usize| {
            let recompute = (0..map.len()).map(|stage| set >> stage & 1 == 1).collect();
            let blocks = work.blocks.len();
            let partition = Partition::contiguous(blocks, &starts, map.clone(), recompute);
            partition_costs(work, machine, step, &partition)
        };
        let kept = costs_of(0);
        let recomputing = if step.may_recompute { map.len() } else { 0 };
        let costs = (0..1_usize << recomputing).map(costs_of);
        let fitting = costs.filter(|costs| fits(machine, costs, &lists));
        let times = fitting.map(|costs| time_ns(machine, &map, [&costs, &kept], &model));
        best = times.chain(best).min();
        if !advance(&mut starts, work.blocks.len()) {
            return best;
        }
    }
}

/// The next ascending starts; the first is 0.
fn advance(starts: &mut [usize], blocks: usize) -> bool {
    let count = starts.len();
    for at in (1..count).rev() {
        if starts[at] + (count - at) < blocks {
            starts[at] += 1;
            for later in at + 1..count {
                starts[later] = starts[later - 1] + 1;
            }
            return true;
        }
    }
    false
}

/// Bytes that a stage receives from other ranks and sends to them in the forward, sends in the backward, and receives
/// from the backwards of later stages.
fn messages(map: &[RankIndex], costs: &PartitionCosts, stage: usize) -> [u64; 4] {
    let receives = stage > 0 && map[stage - 1] != map[stage];
    let sends = map.get(stage + 1).is_some_and(|next| *next != map[stage]);
    let mut bytes = [0; 4];
    for (edge, size) in &costs.costs.message_bytes {
        let [from, to] = [edge.from, edge.to].map(|end| end.stage.index() == stage);
        match edge.from.compute {
            Compute::Forward if to && receives => bytes[0] += size,
            Compute::Forward if from && sends => bytes[1] += size,
            Compute::Backward if from && receives => bytes[2] += size,
            Compute::Backward if to && sends => bytes[3] += size,
            _ => {}
        }
    }
    bytes
}

fn fits(machine: &Machine, costs: &PartitionCosts, lists: &Schedule) -> bool {
    let mut held = peak_bytes(lists, &costs.costs);
    let mut transient = vec![0; held.len()];
    for (stage, rank) in lists.stage_to_rank.iter().enumerate() {
        let rank = rank.index();
        let [into, _, _, returned] = messages(&lists.stage_to_rank, costs, stage);
        held[rank] += 2 * (into + returned);
        let own = costs.costs.stages[stage].transient_bytes;
        transient[rank] = own.max(transient[rank]);
    }
    let ranks = machine.rank_models().iter().zip(held.iter().zip(transient));
    let mut limits = ranks.map(|(rank, (held, transient))| (held + transient, rank.memory_bytes));
    limits.all(|(held, limit)| limit.is_none_or(|limit| held <= limit))
}

/// The time of stages, given their costs and their costs without recomputation.
fn time_ns(
    machine: &Machine,
    map: &[RankIndex],
    [costs, kept]: [&PartitionCosts; 2],
    model: &StepModel,
) -> u64 {
    let (mut most, mut sum) = (0, 0);
    for stage in 0..map.len() {
        let [into, out, back, returned] = messages(map, costs, stage);
        let actions = |messages: [u64; 2]| {
            let messages = messages.iter().filter(|bytes| **bytes > 0).count();
            machine.action_ns * (1 + messages as u64)
        };
        let programs = |costs: &PartitionCosts| {
            let stage = &costs.costs.stages[stage];
            let backwards = actions([returned, back]);
            let forward = stage.forward + actions([into, out]);
            let [backward, input] = [stage.backward, stage.input_gradient].map(|ns| ns + backwards);
            let weight = stage.weight_gradient + actions([0; 2]);
            [forward, backward, input, weight]
        };
        let (part, head) = model.stage(programs(costs));
        most = most.max(part);
        sum += head.max(model.stage(programs(kept)).1);
        for message in [into, back].into_iter().filter(|bytes| *bytes > 0) {
            let transfer = machine.link.transfer(message);
            most = most.max(model.link(transfer));
            sum += machine.link.latency + transfer;
        }
    }
    let chunks = machine.chunks() as u64;
    model.scaled(most, sum).div_ceil(chunks) + 2 * machine.action_ns
}
