//! Errors of carried values.

use crate::schedule::StageIndex;

/// Errors of an evaluation with carried values. Nothing was run, and the carry is unchanged.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CarryError {
    /// The batch has no carried tensor.
    #[error("the batch has no carried tensor: wrap a part of it in `Carried`, or use `evaluate`")]
    NothingCarried,
    /// The carry is of another pipeline.
    #[error("the carry is of another pipeline: its values are on the ranks of that one")]
    OtherPipeline,
    /// The batch has another number of micro-batches than the values.
    #[error(
        "the batch has {found} micro-batch(es), and the carry has values of {expected}: use as many samples as before, or \
         another carry"
    )]
    MicroBatches {
        /// The number of micro-batches that have values.
        expected: usize,
        /// The number of micro-batches of the batch.
        found: usize,
    },
    /// A carried tensor of the batch has another name or type than the value.
    #[error(
        "the carried tensors of micro-batch {micro_batch} differ from the values that the carry has: {expected} is kept, \
         and the batch has {found}; use the same shapes as before, or another carry"
    )]
    Tensor {
        /// The micro-batch.
        micro_batch: usize,
        /// Name, dtype and shape of the value.
        expected: String,
        /// Name, dtype and shape of the tensor of the batch.
        found: String,
    },
    /// A value is not on the stage that reads it.
    #[error(
        "the value of the carried tensor `{name}` is on {}, and for a batch of this shape stage {reader} reads it: cut the \
         model elsewhere, so that one stage does both",
        stages(holders)
    )]
    Apart {
        /// The name of the tensor.
        name: String,
        /// The stages that have its value.
        holders: Vec<StageIndex>,
        /// The stage that reads it.
        reader: StageIndex,
    },
}

fn stages(stages: &[StageIndex]) -> String {
    let numbers: Vec<String> = stages.iter().map(StageIndex::to_string).collect();
    match numbers.len() {
        1 => format!("stage {}", numbers[0]),
        _ => format!("the stages {}", numbers.join(", ")),
    }
}
