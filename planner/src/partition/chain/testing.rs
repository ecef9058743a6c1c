//! Work, machines and an exhaustive search for the best cuts, for tests and benchmarks.

use tinderbox_schedule::{
    Compute, ComputeTimes, LinkCosts, RankIndex, Schedule, ScheduleKind, peak_bytes,
};

use super::model::StepModel;
use super::solve::{POSITIONS, chain_by_model};
use crate::{
    Block, Machine, Parameter, Partition, PartitionCosts, RankModel, Step, Value, Work,
    partition_costs,
};

/// Pseudorandom numbers from a seed (SplitMix64, Steele et al., OOPSLA 2014).
#[derive(Debug, Clone)]
pub struct Numbers(u64);

impl Numbers {
    /// Starts the sequence of a seed.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Returns a number below `end`, which is not 0.
    pub fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (mixed ^ (mixed >> 31)) % end.max(1)
    }
}

/// The distribution of times over the blocks of a large case.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Times {
    /// All equal.
    Equal,
    /// From one to three times the minimum, all different.
    Distinct,
    /// A hundredth of the blocks take as long as all others together.
    Few,
}

/// Returns a chain of blocks like the chain of a large model: each has a parameter and a value that the next
/// block reads; every tenth has a value that a later block reads.
#[must_use]
pub fn large_case(blocks: usize, times: Times, seed: u64) -> Work {
    let mut numbers = Numbers::new(seed);
    let mut work = Work::default();
    for at in 0..blocks {
        let forward = match times {
            Times::Equal => 100_000,
            Times::Distinct => 100_000 + numbers.below(200_000),
            Times::Few if at % 100 == 50 => 10_000_000,
            Times::Few => 100_000,
        };
        let compute = ComputeTimes {
            forward,
            input_gradient: forward + numbers.below(1 + forward / 8),
            weight_gradient: forward - numbers.below(1 + forward / 8),
        };
        work.blocks.push(Block {
            weight_gradient_bytes: 1 << 18,
            transient_bytes: numbers.below(1 << 20),
            ..Block::of_times(format!("blocks.{at}"), compute)
        });
        work.parameters.push(Parameter {
            bytes: (1 << 20) + numbers.below(1 << 20),
            is_trainable: at % 7 != 3,
            readers: vec![at],
            ..Parameter::default()
        });
        let bytes = (1 << 18) * (1 + numbers.below(4));
        let far = at + 2 + numbers.below(20) as usize;
        let mut readers: Vec<usize> = vec![at + 1];
        if at % 10 == 4 {
            readers.push(far);
        }
        readers.retain(|reader| *reader < blocks);
        work.values.push(Value {
            bytes,
            maker: at,
            keepers: readers.clone(),
            readers,
            gradient_bytes: bytes,
        });
        work.values.push(Value {
            bytes: 4 * bytes,
            maker: at,
            keepers: vec![at],
            ..Value::default()
        });
    }
    work
}

/// Returns small work with everything that makes cuts hard: values that skip blocks, shared parameters,
/// blocks without times.
#[must_use]
pub fn small_case(blocks: usize, numbers: &mut Numbers) -> Work {
    let mut work = Work::default();
    let some = |numbers: &mut Numbers, from: usize, odds: u64| -> Vec<usize> {
        let chosen = (from..blocks).filter(|_| numbers.below(odds) == 0);
        chosen.collect()
    };
    for at in 0..blocks {
        let largest = if numbers.below(4) == 0 { 1 } else { 9 };
        let mut time = || numbers.below(largest);
        let [forward, input_gradient, weight_gradient] = [time(), time(), time()];
        work.blocks.push(Block {
            name: format!("b{at}"),
            forward,
            backward: (input_gradient + weight_gradient).saturating_sub(numbers.below(2)),
            input_gradient,
            weight_gradient,
            weight_gradient_bytes: numbers.below(5),
            transient_bytes: numbers.below(6),
        });
    }
    for maker in 0..blocks {
        for _ in 0..numbers.below(3) {
            let odds = 1 + numbers.below(5);
            let gradient_bytes = numbers.below(2) * numbers.below(9);
            work.values.push(Value {
                bytes: numbers.below(9),
                maker,
                readers: some(numbers, maker + 1, odds),
                keepers: some(numbers, maker, odds + 1),
                gradient_bytes,
            });
        }
    }
    for _ in 0..numbers.below(2 * blocks as u64 + 1) {
        let odds = 1 + numbers.below(6);
        let readers = some(numbers, 0, odds);
        if !readers.is_empty() {
            work.parameters.push(Parameter {
                bytes: numbers.below(9),
                cast_bytes: numbers.below(5),
                is_trainable: numbers.below(3) > 0,
                readers,
            });
        }
    }
    work
}

/// Returns a machine and a step for [`small_case`]: ranks that differ, tight memory, links with costs.
#[must_use]
pub fn small_step(numbers: &mut Numbers, kind: ScheduleKind) -> (Machine, Step) {
    let chunks = if kind.chunks().contains(1) { 1 } else { 2 };
    let is_alike = numbers.below(2) == 0;
    let memory = match numbers.below(3) {
        0 => None,
        _ => Some(20 + numbers.below(150)),
    };
    let ranks = 1 + numbers.below(if chunks == 1 { 4 } else { 2 });
    let ranks = (0..ranks).map(|_| match is_alike {
        true => RankModel {
            memory_bytes: memory,
            ..RankModel::default()
        },
        false => RankModel {
            memory_bytes: memory.map(|bytes| bytes / 2 + numbers.below(bytes)),
            speed_permille: 300 + numbers.below(1000),
        },
    });
    // Kinds with a V have two chunks.
    let machine = Machine::of_ranks(ranks.collect());
    let machine = machine.and_then(|machine| machine.with_chunks(chunks, kind.placement()));
    let mut machine = machine.expect("there is a rank, and each has speed and chunks");
    machine.action_ns = numbers.below(3);
    machine.link = LinkCosts {
        latency: numbers.below(3),
        ticks_per_mib: numbers.below(3) << 19,
        ..LinkCosts::default()
    };
    let step = Step {
        may_recompute: numbers.below(2) == 0,
        optimizer_states: numbers.below(3),
        ..Step::new(kind, 1 + numbers.below(7) as usize)
    };
    (machine, step)
}

/// Returns the time in nanoseconds of the best contiguous stages by the model of
/// [`chain`](super::chain), found by trying all cuts with every set of recomputing stages; `None` where
/// none fits. Stages that share a rank must fit it together.
///
/// Exponential in blocks and in stages.
#[must_use]
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

/// Returns the time in nanoseconds that [`chain`](super::chain) finds by its model alone, for
/// comparison with [`brute_force`]: two waiting messages are counted at each end of a stage, whatever
/// the schedule.
#[must_use]
pub fn chain_ns(work: &Work, machine: &Machine, step: &Step) -> Option<u64> {
    let found = chain_by_model(work, machine, step, POSITIONS);
    found.ok().map(|found| found.model_ns)
}

/// The next ascending starts; the first is 0.
fn advance(starts: &mut [usize], blocks: usize) -> bool {
    let count = starts.len();
    for at in (1..count).rev() {
        if starts[at] + (count - at) < blocks {
            starts[at] += 1;
            for behind in at + 1..count {
                starts[behind] = starts[behind - 1] + 1;
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
        transient[rank] = costs.bytes[stage].transient.max(transient[rank]);
    }
    let ranks = machine.rank_models().iter().zip(held.iter().zip(transient));
    let mut limits = ranks.map(|(rank, (held, transient))| (held + transient, rank.memory_bytes));
    limits.all(|(held, limit)| limit.is_none_or(|limit| held <= limit))
}

/// The time of stages with their costs, and those without recomputation.
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
            [
                forward,
                backward,
                input,
                stage.weight_gradient + actions([0; 2]),
            ]
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
    model.scaled(most, sum).div_ceil(model.chunks) + 2 * machine.action_ns
}
