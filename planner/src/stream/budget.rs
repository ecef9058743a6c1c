//! How much memory a model may use that is read when it is needed.

use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::UnknownSize;

/// The memory that a model may use that does not stay in memory as a whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MemoryBudget {
    /// What the process can still allocate when it starts, but for a tenth.
    #[default]
    Available,
    /// So many bytes for the process as a whole: what it holds already counts too.
    Bytes(u64),
    /// So many bytes for parameters, activations, and what reading takes beside its values; everything else that the process
    /// needs is not counted.
    Values(u64),
}

impl MemoryBudget {
    /// Returns the bytes of parameters that a stage should have at most: the largest reads that are fast, and small parts of the
    /// budget, because two stages that do not stay in memory are there at a time.
    #[must_use]
    pub fn stage_bytes(self) -> u64 {
        /// Larger reads are not faster.
        const MOST: u64 = 64 << 20;
        /// The part of the budget.
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

/// Reads a number of bytes, such as `600MiB`, `4GB` or `1073741824`.
///
/// # Errors
///
/// When the text is no number with a unit, or less than a byte.
pub fn parse_bytes(text: &str) -> Result<u64, UnknownSize> {
    const UNITS: [(&str, u64); 11] = [
        ("KiB", 1 << 10),
        ("MiB", 1 << 20),
        ("GiB", 1 << 30),
        ("TiB", 1 << 40),
        ("KB", 1_000),
        ("kB", 1_000),
        ("MB", 1_000_000),
        ("GB", 1_000_000_000),
        ("TB", 1_000_000_000_000),
        ("B", 1),
        ("", 1),
    ];
    let unknown = || UnknownSize {
        text: text.to_owned(),
    };
    let mut units = UNITS.iter();
    let split = units.find_map(|(unit, bytes)| Some((text.strip_suffix(unit)?, *bytes)));
    let (number, unit) = split.ok_or_else(unknown)?;
    let number: f64 = number.trim().parse().map_err(|_| unknown())?;
    let bytes = number * unit as f64;
    match bytes >= 1.0 && bytes < u64::MAX as f64 {
        true => Ok(bytes as u64),
        false => Err(unknown()),
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
            "`lots` is no size: write a number of bytes with a unit, such as 600MiB or 4GB"
        );
    }

    #[test]
    fn stages_are_a_part_of_the_limit() {
        assert_eq!(MemoryBudget::Bytes(320 << 20).stage_bytes(), 20 << 20);
        assert_eq!(MemoryBudget::Bytes(64 << 30).stage_bytes(), 64 << 20);
        assert_eq!(MemoryBudget::default().stage_bytes(), 64 << 20);
    }
}
