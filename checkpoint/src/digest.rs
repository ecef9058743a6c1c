//! Digests of blocks of bytes.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use xxhash_rust::xxh3::xxh3_128;

use crate::FormatError;

/// XXH3-128 of some bytes, with seed 0; shown as 32 lower-case hexadecimal digits, highest first, as
/// `xxhsum -H2` prints it.
///
/// It finds damage, every single flipped bit included. It is no proof against somebody who wants to
/// deceive: XXH3 is not a cryptographic hash.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Digest([u8; 16]);

impl Digest {
    /// Number of hexadecimal digits of the text form.
    pub(crate) const HEX_LEN: usize = 32;

    /// The digest of these bytes. Cost: one pass at memory speed.
    pub fn of(bytes: &[u8]) -> Self {
        Self(xxh3_128(bytes).to_be_bytes())
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", u128::from_be_bytes(self.0))
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Digest({self})")
    }
}

impl FromStr for Digest {
    type Err = FormatError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        parse_hex_128(text)
            .map(|value| Self(value.to_be_bytes()))
            .ok_or(FormatError::Hex {
                expected_digits: Self::HEX_LEN,
            })
    }
}

impl Serialize for Digest {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Digest {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?
            .parse()
            .map_err(serde::de::Error::custom)
    }
}

/// 32 lower-case hexadecimal digits. Upper case and signs are refused, so that a value has one text
/// form only and a flipped case bit is found.
pub(crate) fn parse_hex_128(text: &str) -> Option<u128> {
    let digits = text
        .bytes()
        .all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
    if text.len() == Digest::HEX_LEN && digits {
        u128::from_str_radix(text, 16).ok()
    } else {
        None
    }
}

/// How many bytes of a chunk one digest covers.
///
/// A load reads and checks whole blocks. Smaller blocks read less around a small region and make a
/// longer manifest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "u64", into = "u64")]
pub struct BlockSize(u64);

impl BlockSize {
    /// The smallest block in bytes: below it, digests would take more space than the data.
    pub const MIN_BYTES: u64 = 64;
    /// The largest block in bytes: a reader holds one block in memory.
    pub const MAX_BYTES: u64 = 64 << 20;

    /// A block of so many bytes.
    ///
    /// # Errors
    ///
    /// When it is no power of two, or outside [`Self::MIN_BYTES`] to [`Self::MAX_BYTES`].
    pub fn new(bytes: u64) -> Result<Self, FormatError> {
        if bytes.is_power_of_two() && (Self::MIN_BYTES..=Self::MAX_BYTES).contains(&bytes) {
            Ok(Self(bytes))
        } else {
            Err(FormatError::BlockSize { found: bytes })
        }
    }

    /// The number of bytes.
    pub fn bytes(self) -> u64 {
        self.0
    }

    /// The blocks of these bytes; the last may be shorter.
    pub(crate) fn split(self, bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
        // At most 64 MiB, so the cast keeps the value on every platform.
        bytes.chunks(self.0 as usize)
    }
}

impl Default for BlockSize {
    /// 1 MiB: large against the 34 bytes of its digest in the manifest, small against a layer.
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

impl From<BlockSize> for u64 {
    fn from(block: BlockSize) -> Self {
        block.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_form_is_that_of_xxhsum() {
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
        for (len, expected) in [(0, vec![]), (64, vec![64]), (65, vec![64, 1])] {
            let lens: Vec<usize> = block.split(&vec![0; len]).map(<[u8]>::len).collect();
            assert_eq!(lens, expected);
        }
        for bytes in [0, 1, 63, 65, 128 << 20] {
            assert!(BlockSize::new(bytes).is_err(), "{bytes}");
        }
    }
}
