//! The memory limit of a streamed model.

use std::str::FromStr;

use tinderbox_ids::text::{UnknownSize, parse_bytes};

/// The memory limit of a streamed model, which is not in memory as a whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum MemoryBudget {
    /// Nine tenths of the bytes that the process can still allocate when it starts.
    #[default]
    Available,
    /// These bytes for the process as a whole, including the bytes that it holds already.
    Bytes(u64),
    /// These bytes for parameters, activations, and the buffers of reads. Everything else in the process does not count.
    Values(u64),
}

impl MemoryBudget {
    /// Returns the maximum bytes of parameters that a stage should have: enough for fast reads, and a small part of the limit,
    /// because two stages that do not stay are in memory at a time.
    pub fn stage_bytes(self) -> u64 {
        /// Larger reads are not faster.
        const MOST: u64 = 64 << 20;
        /// The divisor of the limit.
        const PARTS: u64 = 16;
        match self {
            Self::Available => MOST,
            Self::Bytes(bytes) | Self::Values(bytes) => (bytes / PARTS).min(MOST),
        }
    }
}

impl FromStr for MemoryBudget {
    type Err = UnknownSize;

    /// Reads a number of bytes for the process, such as `600MiB`, `4GB` or `1073741824`.
    fn from_str(text: &str) -> Result<Self, UnknownSize> {
        parse_bytes(text).map(Self::Bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read() {
        let read = |text: &str| text.parse::<MemoryBudget>();
        for (text, bytes) in [
            ("600MiB", 600 << 20),
            ("1.5 GiB", 3 << 29),
            ("2GB", 2_000_000_000),
            ("64kB", 64_000),
            ("123", 123),
            ("123B", 123),
        ] {
            assert_eq!(read(text), Ok(MemoryBudget::Bytes(bytes)), "{text}");
        }
        for text in ["", "GiB", "-1GiB", "0", "NaN", "1e30", "3 apples", "inf"] {
            assert!(read(text).is_err(), "{text}");
        }
        assert_eq!(
            read("lots").unwrap_err().to_string(),
            "`lots` is not a size: write a number of bytes with a unit, such as 600MiB or 4GB"
        );
    }

    #[test]
    fn stages_are_a_part_of_the_limit() {
        assert_eq!(MemoryBudget::Bytes(320 << 20).stage_bytes(), 20 << 20);
        assert_eq!(MemoryBudget::Bytes(64 << 30).stage_bytes(), 64 << 20);
        assert_eq!(MemoryBudget::default().stage_bytes(), 64 << 20);
    }
}
