//! Streams: the key and the counter's high words.

use derive_more::{Display, From};
use serde::{Deserialize, Serialize};
use twox_hash::XxHash3_64;

/// A seed, which determines one complete set of random values.
#[derive(Serialize, Deserialize)]
#[serde(transparent)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Display, From)]
pub struct Seed(u64);

impl Seed {
    /// Creates a seed. Every value is suitable, including zero: it is hashed before use.
    pub const fn new(value: u64) -> Self {
        Self(value)
    }

    /// Returns the number given to [`Seed::new`].
    pub const fn value(self) -> u64 {
        self.0
    }
}

/// The purpose of the values. Two domains never share a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Domain {
    /// Values of parameters and buffers at initialization.
    Init = 0,
    /// Values drawn while the model runs, such as dropout masks.
    Forward = 1,
}

/// One sequence of 2^64 blocks of random numbers: a Philox key and the counter's high words.
///
/// The key is the XXH3-64 hash (seed 0) of these bytes, its low 32 bits first:
///
/// | offset | size | content |
/// |---|---|---|
/// | 0 | 8 | seed, little-endian |
/// | 8 | 1 | domain: 0 init, 1 forward |
/// | 9 | 8 | draw, little-endian |
/// | 17 | 8 | length of owner in bytes, little-endian |
/// | 25 | n | owner, UTF-8 |
///
/// The counter is block index (words 0 and 1, low word first), step (word 2), micro-batch (word 3).
/// The step and the micro-batch are not hashed, so that they can never collide.
///
/// Keys have 64 bits: among n streams of one seed, the chance that any two share a key is about
/// n^2 / 2^65, which is 3e-8 for a million streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Stream {
    pub(super) key: [u32; 2],
    pub(super) high: [u32; 2],
}

impl Stream {
    /// Returns the stream of the `draw`-th random operation of `owner`, at step 0 and micro-batch 0.
    ///
    /// `owner` is compared byte by byte: names that differ in case or in Unicode normalization are
    /// different owners.
    pub fn new(seed: Seed, domain: Domain, owner: &str, draw: u64) -> Self {
        let (seed, draw) = (seed.value().to_le_bytes(), draw.to_le_bytes());
        let length = (owner.len() as u64).to_le_bytes();
        // Part of the format: never changes.
        let bytes = [&seed[..], &[domain as u8], &draw, &length, owner.as_bytes()].concat();
        let hash = XxHash3_64::oneshot(&bytes);
        let key = [hash as u32, (hash >> 32) as u32];
        Self { key, high: [0, 0] }
    }

    /// Returns the stream of the same owner and draw at another step and micro-batch: all values are different.
    #[must_use]
    pub const fn at(self, step: u32, micro_batch: u32) -> Self {
        let high = [step, micro_batch];
        Self { high, ..self }
    }

    /// Returns the two words of the Philox key, for a kernel.
    pub const fn key(&self) -> [u32; 2] {
        self.key
    }

    /// Returns the counter of a block, for a kernel.
    pub const fn counter(&self, block: u64) -> [u32; 4] {
        let [step, micro_batch] = self.high;
        [block as u32, (block >> 32) as u32, step, micro_batch]
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn the_key_is_the_hash_of_the_documented_bytes() {
        let owner = "layers.0.weight";
        let mut bytes = Vec::new();
        bytes.extend_from_slice(&[0xef, 0xcd, 0xab, 0x89, 0x67, 0x45, 0x23, 0x01]);
        bytes.push(1);
        bytes.extend_from_slice(&[2, 1, 0, 0, 0, 0, 0, 0]);
        bytes.extend_from_slice(&[15, 0, 0, 0, 0, 0, 0, 0]);
        bytes.extend_from_slice(owner.as_bytes());
        let hash = XxHash3_64::oneshot(&bytes);

        let seed = Seed::new(0x0123_4567_89ab_cdef);
        let stream = Stream::new(seed, Domain::Forward, owner, 0x0102).at(3, 4);
        assert_eq!(stream.key(), [hash as u32, (hash >> 32) as u32]);
        assert_eq!(stream.counter((6 << 32) + 5), [5, 6, 3, 4]);
    }

    #[test]
    fn every_part_of_the_name_changes_the_key() {
        let base = Stream::new(Seed::new(1), Domain::Init, "a", 0);
        let others = [
            Stream::new(Seed::new(2), Domain::Init, "a", 0),
            Stream::new(Seed::new(1), Domain::Forward, "a", 0),
            Stream::new(Seed::new(1), Domain::Init, "b", 0),
            Stream::new(Seed::new(1), Domain::Init, "a\0", 0),
            Stream::new(Seed::new(1), Domain::Init, "", 0),
            Stream::new(Seed::new(1), Domain::Init, "a", 1),
        ];
        let mut keys: HashSet<_> = others.iter().map(Stream::key).collect();
        keys.insert(base.key());
        assert_eq!(keys.len(), 1 + others.len());
    }

    #[test]
    fn step_and_micro_batch_replace_each_other_and_keep_the_key() {
        let stream = Stream::new(Seed::default(), Domain::Forward, "drop", 0);
        assert_eq!(stream.at(1, 2).at(3, 4), stream.at(3, 4));
        assert_ne!(stream.at(1, 2), stream.at(2, 1));
        assert_eq!(stream.at(1, 2).key(), stream.key());
    }
}
