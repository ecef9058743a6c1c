//! A lower bound of the step time of every plan.

use tinderbox_schedule::arithmetic::{narrow, sum};

use crate::{Block, Machine, Step, Work};

/// Returns the minimum nanoseconds of a step of this work, under any partition and schedule.
///
/// The bound is the largest of:
///
/// - the time of all work, divided among all ranks by their speed;
/// - the time of the largest block on the fastest rank;
/// - the longest path of one micro-batch through the blocks, forward and, where gradients flow, backward, on the fastest
///   rank.
///
/// A split backward is counted if it is shorter than a whole one. Messages and the overhead of actions are not counted.
/// Linear in the readers of values.
pub fn lower_bound(work: &Work, machine: &Machine, step: &Step) -> u64 {
    let micro_batches = step.per_replica() as u64;
    let ranks = || machine.rank_models().iter();
    let fastest = ranks().max_by_key(|rank| rank.speed_permille);
    let fastest = fastest.copied().unwrap_or_default();
    let speed = sum(ranks().map(|rank| rank.speed_permille));
    let once = sum(work.blocks.iter().map(least));
    let spread = u128::from(once) * u128::from(micro_batches);
    let spread = narrow(spread.saturating_mul(1000) / u128::from(speed.max(1)));
    let largest = work.blocks.iter().map(least).max().unwrap_or(0);
    let largest = fastest.time(largest).saturating_mul(micro_batches);
    // A stage's time is rounded down on its rank, by less than a nanosecond for each program.
    let stages = machine.ranks().saturating_mul(machine.chunks());
    let programs = stages.saturating_mul(step.per_replica()).saturating_mul(3);
    let bound = spread.max(largest).max(fastest.time(longest_path(work)));
    bound.saturating_sub(programs as u64)
}

/// The nanoseconds of a block's forward and backward, the backward in the faster of its two forms.
fn least(block: &Block) -> u64 {
    let halves = block.input_gradient.saturating_add(block.weight_gradient);
    block.forward.saturating_add(block.backward.min(halves))
}

/// The longest path of a micro-batch: forward alone, or forward and backward where gradients flow.
fn longest_path(work: &Work) -> u64 {
    let mut readers: Vec<Vec<(usize, bool)>> = vec![Vec::new(); work.blocks.len()];
    for value in &work.values {
        let flows = value.gradient_bytes > 0;
        let later = value.readers.iter().map(|reader| (*reader, flows));
        readers[value.maker].extend(later);
    }
    // The longest paths from each block to the end: of the forward alone, and of forward and backward.
    let mut tails = vec![(0_u64, 0_u64); work.blocks.len()];
    let mut longest = 0;
    for (index, block) in work.blocks.iter().enumerate().rev() {
        let (mut ahead, mut around) = (0, 0);
        for (reader, flows) in &readers[index] {
            ahead = ahead.max(tails[*reader].0);
            if *flows {
                around = around.max(tails[*reader].1);
            }
        }
        let back = block.backward.min(block.input_gradient);
        let around = sum([around, block.forward, back]);
        tails[index] = (ahead.saturating_add(block.forward), around);
        longest = longest.max(tails[index].0).max(tails[index].1);
    }
    longest
}
