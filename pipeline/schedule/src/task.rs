//! The programs of a stage, and one program on one micro-batch.

use derive_more::Display;
use serde::{Deserialize, Serialize};

use tinderbox_ids::{MicroBatchIndex, StageIndex};

/// A program that a stage runs once per micro-batch.
///
/// `Backward` combines `InputGradient` and `WeightGradient`; for each micro-batch a stage has either the
/// combined program or the other two.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Compute {
    /// `F`: the forward pass.
    Forward,
    /// `B`: the whole backward pass.
    Backward,
    /// `I`: the part of the backward pass that other stages wait for.
    InputGradient,
    /// `W`: the rest of the backward pass, which no other stage waits for.
    WeightGradient,
}

impl Compute {
    /// All programs, in the order of [`Compute::slot`].
    pub const ALL: [Self; 4] = [
        Self::Forward,
        Self::Backward,
        Self::InputGradient,
        Self::WeightGradient,
    ];

    /// Returns the letter in the text form.
    pub const fn letter(self) -> char {
        match self {
            Self::Forward => 'F',
            Self::Backward => 'B',
            Self::InputGradient => 'I',
            Self::WeightGradient => 'W',
        }
    }

    /// Returns the name in plans.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Forward => "forward",
            Self::Backward => "backward",
            Self::InputGradient => "input gradient",
            Self::WeightGradient => "weight gradient",
        }
    }

    /// Returns whether this program adds to the stage's weight gradients and frees the activations.
    pub const fn ends_backward(self) -> bool {
        matches!(self, Self::Backward | Self::WeightGradient)
    }

    /// Returns the column of this program in a table with one row per stage and micro-batch.
    pub const fn slot(self) -> usize {
        self as usize
    }
}

/// One program of one stage on one micro-batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Display)]
#[display("{stage}{}{micro_batch}", compute.letter())]
pub struct Task {
    /// The stage that computes.
    pub stage: StageIndex,
    /// The program that it runs.
    pub compute: Compute,
    /// The micro-batch that it runs on.
    pub micro_batch: MicroBatchIndex,
}

impl Task {
    /// Creates a task.
    pub const fn new(stage: StageIndex, compute: Compute, micro_batch: MicroBatchIndex) -> Self {
        Self {
            stage,
            compute,
            micro_batch,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_follow_the_list_of_programs() {
        for (slot, compute) in Compute::ALL.into_iter().enumerate() {
            assert_eq!(compute.slot(), slot);
        }
    }
}
