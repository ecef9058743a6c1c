//! Many small stages on one rank.

use tinderbox_schedule::RankIndex;

use crate::{Partition, Work};

/// Cuts the work into contiguous stages of few bytes of parameters, all on one rank: a stage ends before the block whose
/// parameters would exceed `stage_bytes`, where the fewest bytes cross. A block with larger parameters is a stage of its own.
///
/// Cost: linear in the work.
#[must_use]
pub fn fine(work: &Work, stage_bytes: u64) -> Partition {
    let blocks = work.blocks.len();
    let mut owned = vec![0_u64; blocks];
    for parameter in &work.parameters {
        if let Some(owner) = parameter.readers.first() {
            owned[*owner] = owned[*owner].saturating_add(parameter.held_bytes());
        }
    }
    // A value crosses every cut between its maker and its last reader.
    let mut change = vec![0_i128; blocks + 1];
    for value in &work.values {
        if let Some(last) = value.readers.last() {
            change[value.maker + 1] += i128::from(value.bytes);
            change[last + 1] -= i128::from(value.bytes);
        }
    }
    let crossing = change.into_iter().scan(0, |live, change| {
        *live += change;
        Some(*live)
    });
    let crossing: Vec<i128> = crossing.collect();
    let mut starts = vec![0];
    let (mut held, mut last) = (0_u64, 0);
    for (block, bytes) in owned.into_iter().enumerate() {
        if bytes == 0 {
            continue;
        }
        held = held.saturating_add(bytes);
        if held > stage_bytes && held > bytes {
            // Of equal places the last, so that an activation function stays with what it follows.
            let places = (last + 1..=block).rev();
            starts.extend(places.min_by_key(|place| crossing[*place]));
            held = bytes;
        }
        last = block;
    }
    let stages = starts.len();
    let ranks = vec![RankIndex::new(0); stages];
    Partition::contiguous(blocks, &starts, ranks, vec![false; stages])
}
