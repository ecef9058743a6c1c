//! How much memory a model may use that is read when it is needed.

use serde::{Deserialize, Serialize};

/// The memory that a model may use that does not stay in memory as a whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MemoryBudget {
    /// What the process can still allocate when it starts, but for a tenth.
    #[default]
    Available,
    /// So many bytes for the process as a whole: what it holds already counts too.
    Bytes(u64),
    /// So many bytes for parameters and activations; everything else that the process needs is not counted.
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
