//! Places in the training data.

use serde::{Deserialize, Serialize};

/// A place in the training data, between two batches.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Serialize,
    Deserialize,
    derive_more::Display,
)]
#[display("sample {sample} of epoch {epoch}")]
pub struct Position {
    /// The number of epochs that have ended.
    pub epoch: u64,
    /// The number of samples of this epoch that were used.
    pub sample: u64,
}

impl Position {
    /// Returns the beginning of the next epoch.
    #[must_use]
    pub const fn next_epoch(self) -> Self {
        let epoch = self.epoch + 1;
        Self { epoch, sample: 0 }
    }
}
