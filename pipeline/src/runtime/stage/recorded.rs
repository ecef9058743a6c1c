//! The digests of what a stage holds after a step, to find values that change in memory.

use tinderbox_deferred::ParameterTable;

/// The digests of what a stage holds after a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Recorded {
    /// Of the parameters that it holds, with their positions in the table.
    pub(crate) parameters: Vec<(usize, u64)>,
    /// Of the state of the optimizer.
    pub(crate) state: u64,
}

impl Recorded {
    /// Of the parameters that train. Others, which a device may have computed for itself, have its rounding.
    pub(crate) fn trained(&self, table: &ParameterTable) -> impl Iterator<Item = &(usize, u64)> {
        let parameters = self.parameters.iter();
        parameters.filter(|(position, _)| table.iter().as_slice()[*position].trainable)
    }
}
