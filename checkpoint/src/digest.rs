//! Digests of blocks of bytes, and ids of the same form.

use std::borrow::Cow;
use std::hash::{BuildHasher, RandomState};
use std::str::FromStr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

use derive_more::{Debug, Display, FromStr, Into};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use twox_hash::{XxHash3_128, xxhash3_128};

use crate::FormatError;

/// Text that is borrowed unless it contains escapes.
#[derive(Deserialize)]
pub(crate) struct Text<'a>(#[serde(borrow)] pub(crate) Cow<'a, str>);

/// An XXH3-128 digest with seed 0, displayed as 32 lower-case hexadecimal digits, most significant first, as
/// `xxhsum -H2` prints it.
///
/// Detects any corruption, including single flipped bits. XXH3 is not a cryptographic hash, so a digest does
/// not protect against deliberate modification.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Display, Debug)]
#[display("{high:016x}{low:016x}")]
#[debug("Digest({high:016x}{low:016x})")]
pub struct Digest {
    /// Two halves: a `u128` would align errors with digests to 16 bytes.
    high: u64,
    low: u64,
}

impl FromStr for Digest {
    type Err = FormatError;

    /// Parses the text form, which is also the form in files. Rejects upper case and signs, so that each value has exactly one
    /// text form and a flipped case bit is detected.
    fn from_str(text: &str) -> Result<Self, FormatError> {
        let is_digit = |byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
        let is_number = text.len() == Self::HEX_LEN && text.bytes().all(is_digit);
        let value = u128::from_str_radix(text, 16).ok();
        let value = value.filter(|_| is_number).map(Self::of_number);
        value.ok_or(FormatError::Hex)
    }
}

impl Serialize for Digest {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Digest {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let Text(digits) = Deserialize::deserialize(deserializer)?;
        digits.parse().map_err(serde::de::Error::custom)
    }
}

/// The id of a save attempt, in the text form of a [`Digest`]. The files of an attempt that could be confused with files of
/// another attempt contain its id, so that a delayed writer of an earlier attempt never contributes to a later checkpoint.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Display, Debug, FromStr)]
#[debug("AttemptId({_0})")]
#[derive(Serialize, Deserialize)]
#[serde(transparent)]
pub struct AttemptId(Digest);

impl Digest {
    /// Number of hexadecimal digits of the text form.
    pub(crate) const HEX_LEN: usize = 32;

    /// Computes the digest of `bytes`, in one pass at memory speed.
    pub fn of(bytes: &[u8]) -> Self {
        Self::of_number(XxHash3_128::oneshot(bytes))
    }

    fn of_number(value: u128) -> Self {
        let [high, low] = [value >> 64, value].map(|half| half as u64);
        Self { high, low }
    }
}

impl AttemptId {
    /// Creates a new id.
    ///
    /// The id must be unique, not secret: it combines the standard library's random hash keys, which come
    /// from the operating system, with time, process id and a counter.
    pub(crate) fn fresh() -> Self {
        static COUNTER: AtomicU64 = AtomicU64::new(0);
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let count = COUNTER.fetch_add(1, Ordering::Relaxed);
        let of_process = (now.ok(), std::process::id(), count);
        let [high, low] = [0, 1].map(|salt| RandomState::new().hash_one((salt, of_process)));
        Self(Digest { high, low })
    }
}

/// The number of bytes of a chunk that one digest covers.
///
/// A load reads and checks whole blocks. Smaller blocks reduce the excess bytes read for a small region and
/// enlarge the manifest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, Into)]
#[serde(try_from = "u64", into = "u64")]
pub struct BlockSize(u64);

impl BlockSize {
    /// The minimum block size in bytes: with smaller blocks, the digests would be larger than the data.
    pub const MIN_BYTES: u64 = 64;
    /// The maximum block size in bytes: a reader holds one block in memory.
    pub const MAX_BYTES: u64 = 64 << 20;

    /// Creates a block size.
    ///
    /// # Errors
    ///
    /// Returns an error if `bytes` is not a power of two between [`Self::MIN_BYTES`] and [`Self::MAX_BYTES`].
    pub fn new(bytes: u64) -> Result<Self, FormatError> {
        let is_valid =
            bytes.is_power_of_two() && (Self::MIN_BYTES..=Self::MAX_BYTES).contains(&bytes);
        let block = is_valid.then_some(Self(bytes));
        block.ok_or(FormatError::BlockSize { found: bytes })
    }

    /// Returns the number of bytes.
    pub fn bytes(self) -> u64 {
        self.0
    }
}

/// Computes the digest of each block of a byte sequence that arrives in pieces of any length.
pub(crate) struct BlockDigests {
    block: BlockSize,
    /// The state of the current, incomplete block.
    current: xxhash3_128::Hasher,
    current_bytes: u64,
    digests: Vec<Digest>,
}

impl BlockDigests {
    /// Creates an empty state.
    pub(crate) fn new(block: BlockSize) -> Self {
        Self {
            block,
            current: xxhash3_128::Hasher::new(),
            current_bytes: 0,
            digests: Vec::new(),
        }
    }

    /// Appends bytes; passes each block, or part of a block, to `then` immediately after digesting it.
    pub(crate) fn push<E>(
        &mut self,
        mut bytes: &[u8],
        mut then: impl FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        while !bytes.is_empty() {
            let missing = self.block.bytes() - self.current_bytes;
            // The value is at most the length of the slice, so the cast is lossless.
            let (now, rest) = bytes.split_at(missing.min(bytes.len() as u64) as usize);
            if now.len() as u64 == self.block.bytes() {
                self.digests.push(Digest::of(now));
            } else {
                self.current.write(now);
                self.current_bytes += now.len() as u64;
                if self.current_bytes == self.block.bytes() {
                    self.close();
                }
            }
            then(now)?;
            bytes = rest;
        }
        Ok(())
    }

    /// Returns the digest of each block; the last block may be shorter.
    pub(crate) fn finish(mut self) -> Vec<Digest> {
        if self.current_bytes > 0 {
            self.close();
        }
        self.digests
    }

    fn close(&mut self) {
        let complete = std::mem::take(&mut self.current);
        self.digests.push(Digest::of_number(complete.finish_128()));
        self.current_bytes = 0;
    }
}

impl Default for BlockSize {
    /// 1 MiB: large compared with the 34 bytes of its digest in the manifest, small compared with a layer.
    fn default() -> Self {
        Self(1 << 20)
    }
}

impl TryFrom<u64> for BlockSize {
    type Error = FormatError;

    fn try_from(bytes: u64) -> Result<Self, Self::Error> {
        Self::new(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn xxhsum_prints_the_same_text_form() {
        // The published XXH3-128 test value of the empty input with seed 0.
        let empty = Digest::of(b"");
        assert_eq!(empty.to_string(), "99aa06d3014798d86001c324468d497f");
        assert_eq!(empty.to_string().parse::<Digest>().unwrap(), empty);
    }

    #[test]
    fn refuses_other_text_forms() {
        for text in [
            "",
            "99AA06D3014798D86001C324468D497F",
            "+9aa06d3014798d86001c324468d497f",
            "99aa06d3014798d86001c324468d497",
        ] {
            assert!(text.parse::<Digest>().is_err(), "{text}");
        }
    }

    #[test]
    fn blocks() {
        let block = BlockSize::new(64).unwrap();
        let bytes: Vec<u8> = (0..200).collect();
        for len in [0, 1, 64, 65, 200] {
            for piece in [1, 7, 63, 64, 100, 200] {
                let (mut digests, mut seen) = (BlockDigests::new(block), Vec::<u8>::new());
                for bytes in bytes[..len].chunks(piece) {
                    let take = |bytes: &[u8]| {
                        seen.extend(bytes);
                        Ok::<_, ()>(())
                    };
                    digests.push(bytes, take).unwrap();
                }
                let expected: Vec<_> = bytes[..len].chunks(64).map(Digest::of).collect();
                assert_eq!(digests.finish(), expected, "{len} in pieces of {piece}");
                assert_eq!(seen, bytes[..len]);
            }
        }
        for bytes in [0, 1, 63, 65, 128 << 20] {
            assert!(BlockSize::new(bytes).is_err(), "{bytes}");
        }
    }

    #[test]
    fn fresh_ids_differ_and_survive_their_text_form() {
        let ids: std::collections::BTreeSet<_> = (0..1000).map(|_| AttemptId::fresh()).collect();
        assert_eq!(ids.len(), 1000);
        for id in ids {
            assert_eq!(id.to_string().parse::<AttemptId>().unwrap(), id);
        }
    }
}
