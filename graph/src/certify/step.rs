//! A step that is certified.

use tinderbox_deferred::ParameterTable;

use super::CertifiedPrograms;
use crate::cut::Layout;
use crate::lists::StepLists;
use crate::sum::Groups;

/// The lists of a step, with their programs.
#[derive(Debug)]
pub struct CertifiedStep<'a> {
    /// The lists of each replica, and its first micro-batch.
    pub replicas: Vec<(&'a StepLists, usize)>,
    /// The programs of each micro-batch of all replicas.
    pub micro_batches: Vec<&'a CertifiedPrograms>,
    /// The groups in which gradients are added.
    pub groups: Groups,
    pub table: &'a ParameterTable,
    pub layout: &'a Layout,
    /// Whether an update needs the norms of the gradients of all stages.
    pub global_norm: bool,
}
