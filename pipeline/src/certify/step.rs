//! A step that is certified.

use tinderbox_deferred::ParameterTable;

use super::CertifiedPrograms;
use crate::cut::Layout;
use crate::lists::StepLists;
use crate::sum::Groups;

/// The lists of a step, with their programs.
pub(crate) struct CertifiedStep<'a> {
    /// The lists of each replica, and its first micro-batch.
    pub(crate) replicas: Vec<(&'a StepLists, usize)>,
    /// The programs of each micro-batch of all replicas.
    pub(crate) micro_batches: Vec<&'a CertifiedPrograms>,
    /// The groups in which gradients are added.
    pub(crate) groups: Groups,
    pub(crate) table: &'a ParameterTable,
    pub(crate) layout: &'a Layout,
    /// Whether an update needs the norms of the gradients of all stages.
    pub(crate) global_norm: bool,
}
