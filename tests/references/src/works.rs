//! Work, machines and steps for the tests of `chain` and for the bench of plans: chains like the chains of large models, and
//! small ones with everything that makes cuts hard.

use tinderbox_planner::{Block, Machine, Parameter, RankModel, Step, Value, Work};
use tinderbox_schedule::{ComputeTimes, LinkCosts, ScheduleKind};

use crate::Numbers;

/// Returns a block with these times; `B` is the sum of `I` and `W`.
pub fn block(name: String, times: ComputeTimes) -> Block {
    Block {
        name,
        forward: times.forward,
        backward: times.backward(),
        input_gradient: times.input_gradient,
        weight_gradient: times.weight_gradient,
        ..Block::default()
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
        let compute = ComputeTimes::new(
            forward,
            forward + numbers.below(1 + forward / 8),
            forward - numbers.below(1 + forward / 8),
        );
        work.blocks.push(Block {
            weight_gradient_bytes: 1 << 18,
            transient_bytes: numbers.below(1 << 20),
            ..block(format!("blocks.{at}"), compute)
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
pub fn small_step(numbers: &mut Numbers, kind: ScheduleKind) -> (Machine, Step) {
    let chunks = kind.chunks().least();
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
    machine.link = LinkCosts::new(numbers.below(3), numbers.below(3) << 19);
    let step = Step {
        may_recompute: numbers.below(2) == 0,
        optimizer_states: numbers.below(3),
        ..Step::new(kind, 1 + numbers.below(7) as usize)
    };
    (machine, step)
}
