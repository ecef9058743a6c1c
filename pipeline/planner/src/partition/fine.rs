//! Many small stages on one rank.

use tinderbox_schedule::RankIndex;
use tinderbox_schedule::arithmetic::add;

use crate::{Partition, Work};

/// Cuts the work into contiguous stages of few bytes, all on one rank.
///
/// A stage ends before the block with which its parameters would exceed `stage_bytes`, or the values that it keeps for
/// backwards `kept_bytes`. The cut is where the fewest bytes cross. A block with more bytes is a stage of its own, with the
/// blocks without parameters after it.
///
/// Cost: linear in the work.
pub fn fine(work: &Work, stage_bytes: u64, kept_bytes: u64) -> Partition {
    let blocks = work.blocks.len();
    let mut owned = vec![0_u64; blocks];
    for parameter in &work.parameters {
        if let Some(owner) = parameter.readers.first() {
            add(&mut owned[*owner], parameter.held_bytes());
        }
    }
    // The bytes that cross each cut, and the bytes that the blocks before it make, first as differences. A value crosses every
    // cut between its maker and its last reader.
    let mut crossing = vec![0_i128; blocks + 1];
    let mut made_before = vec![0_u64; blocks + 1];
    for value in &work.values {
        if !value.keepers.is_empty() {
            add(&mut made_before[value.maker + 1], value.bytes);
        }
        if let Some(last) = value.readers.last() {
            crossing[value.maker + 1] += i128::from(value.bytes);
            crossing[last + 1] -= i128::from(value.bytes);
        }
    }
    for at in 1..=blocks {
        crossing[at] += crossing[at - 1];
        let before = made_before[at - 1];
        add(&mut made_before[at], before);
    }
    let mut starts = vec![0];
    let (mut held, mut last) = (0_u64, 0);
    for (block, bytes) in owned.into_iter().enumerate() {
        if bytes == 0 {
            continue;
        }
        add(&mut held, bytes);
        let start = starts.last().copied().unwrap_or(0);
        let kept = made_before[block + 1] - made_before[start];
        let is_large = held > stage_bytes || kept > kept_bytes;
        if is_large && held > bytes {
            // The last of equal places, so that an activation function is in the stage of the layer before it.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Block, Parameter, Value};

    /// Blocks with these bytes of parameters. Each block except the last makes a value for the next block, of these bytes.
    fn starts(bytes: &[u64], values: &[u64], stage_bytes: u64) -> Vec<usize> {
        starts_with(bytes, values, (stage_bytes, u64::MAX))
    }

    fn starts_with(
        bytes: &[u64],
        values: &[u64],
        (stage_bytes, kept_bytes): (u64, u64),
    ) -> Vec<usize> {
        let work = Work {
            blocks: vec![Block::default(); bytes.len()],
            parameters: bytes
                .iter()
                .enumerate()
                .filter(|(_, bytes)| **bytes > 0)
                .map(|(block, bytes)| Parameter {
                    bytes: *bytes,
                    readers: vec![block],
                    ..Parameter::default()
                })
                .collect(),
            values: values
                .iter()
                .enumerate()
                .map(|(maker, bytes)| Value {
                    bytes: *bytes,
                    maker,
                    readers: vec![maker + 1],
                    keepers: vec![maker],
                    ..Value::default()
                })
                .collect(),
        };
        let partition = fine(&work, stage_bytes, kept_bytes);
        assert!(partition.stage_to_rank.iter().all(|rank| rank.index() == 0));
        let of = &partition.stage_of;
        let starts = (0..of.len()).filter(|at| *at == 0 || of[*at] != of[at - 1]);
        let starts: Vec<usize> = starts.collect();
        assert_eq!(starts.len(), partition.stages());
        starts
    }

    #[test]
    fn stages_have_few_bytes_or_one_block() {
        let same = [1; 4];
        assert_eq!(starts(&[4, 4, 4, 4, 4], &same, 8), [0, 2, 4]);
        assert_eq!(starts(&[4, 4, 4, 4, 4], &same, 100), [0]);
        assert_eq!(starts(&[4, 4, 4, 4, 4], &same, 0), [0, 1, 2, 3, 4]);
        assert_eq!(starts(&[1, 9, 1, 1, 1], &same, 3), [0, 1, 2]);
    }

    /// Blocks without parameters, such as an activation function, belong to either side.
    #[test]
    fn a_cut_is_where_the_fewest_bytes_cross() {
        assert_eq!(starts(&[4, 0, 0, 4], &[9, 2, 9], 4), [0, 2]);
        assert_eq!(starts(&[4, 0, 0, 4], &[2, 9, 9], 4), [0, 1]);
        // The last of equal places.
        assert_eq!(starts(&[4, 0, 0, 4], &[2, 2, 2], 4), [0, 3]);
        assert_eq!(starts(&[0, 4, 0, 4, 0], &[1, 1, 1, 1], 4), [0, 3]);
    }

    #[test]
    fn stages_keep_few_bytes_for_their_backwards() {
        let kept =
            |kept_bytes| starts_with(&[1, 0, 1, 1, 0, 1], &[2, 2, 2, 2, 2], (100, kept_bytes));
        assert_eq!(kept(100), [0]);
        assert_eq!(kept(6), [0, 3]);
        assert_eq!(kept(4), [0, 2, 5]);
        assert_eq!(kept(0), [0, 2, 3, 5]);
    }
}
