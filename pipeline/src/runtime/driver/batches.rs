//! The batches of a call, whatever their type.

use std::sync::Arc;

use tinderbox_fake::{DynTensor, Mode};

use crate::trace::{JointGraph, ProgramKey};
use crate::{BatchError, StepError};

/// The batches of a step or an evaluation.
pub(crate) trait Batches: Send + Sync {
    /// Returns the number of samples of each batch.
    fn samples(&self) -> Result<Vec<usize>, BatchError>;

    /// Splits each batch into its number of micro-batches.
    fn split(&self, mode: Mode, counts: &[usize]) -> Result<Vec<MicroBatch<'_>>, BatchError>;
}

/// A part of a batch.
pub(crate) struct MicroBatch<'a> {
    /// The key of its programs.
    pub(crate) key: ProgramKey,
    /// Its tensors.
    pub(crate) inputs: Vec<DynTensor>,
    /// Its number of samples.
    pub(crate) samples: usize,
    /// Checks it, and returns its graph.
    pub(crate) record: Box<Record<'a>>,
}

/// Records the graph of a micro-batch.
type Record<'a> = dyn Fn() -> Result<Arc<JointGraph>, StepError> + 'a;

/// The numbers of micro-batches into which each batch of a step may be split, those to try first at the beginning: fewer and
/// fewer if a batch has fewer samples than micro-batches, until the schedule can be generated.
pub(crate) fn splits(
    samples: &[usize],
    micro_batches: usize,
    is_written: bool,
) -> Result<impl Iterator<Item = Vec<usize>>, BatchError> {
    let (Some(smallest), Some(largest)) = (samples.iter().min(), samples.iter().max()) else {
        return Err(BatchError::NoBatches);
    };
    let (smallest, largest) = (*smallest, *largest);
    let is_short = smallest < micro_batches;
    if is_short && is_written {
        return Err(BatchError::TooFewForSchedule {
            samples: smallest,
            micro_batches,
        });
    }
    let most = micro_batches.min(largest);
    let least = if is_short { most.min(1) } else { most };
    let counts = (least..=most).rev();
    Ok(counts.map(move |count| samples.iter().map(|of| count.min(*of)).collect()))
}
