//! Collectives over the ranks that hold one stage.

use std::fmt;

use tinderbox_fake::DynTensor;

use crate::LinkError;
use crate::schedule::GroupIndex;

/// One rank's part in the collectives of the groups that it belongs to.
///
/// Every rank of a group calls the same collectives in the same order.
pub trait Group: Send + fmt::Debug {
    /// The sum of a tensor over the group, on every rank, added in the order of the ranks.
    ///
    /// # Errors
    ///
    /// When a rank of the group fails or does not come in time.
    fn all_reduce(&mut self, group: GroupIndex, tensor: DynTensor) -> Result<DynTensor, LinkError>;

    /// Waits until every rank of the group is here.
    ///
    /// # Errors
    ///
    /// As [`Group::all_reduce`].
    fn barrier(&mut self, group: GroupIndex) -> Result<(), LinkError>;
}

/// Groups of one rank each: one rank per stage, no data parallelism.
#[derive(Clone, Copy, Debug, Default)]
pub struct SoloGroup;

impl Group for SoloGroup {
    fn all_reduce(&mut self, _: GroupIndex, tensor: DynTensor) -> Result<DynTensor, LinkError> {
        Ok(tensor)
    }

    fn barrier(&mut self, _: GroupIndex) -> Result<(), LinkError> {
        Ok(())
    }
}
