//! Values that were repaired.

use tinderbox_deferred::ParameterPath;

use crate::schedule::RankIndex;

/// A parameter that had changed in the memory of a rank, or differed from its value in most replicas, and was repaired.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Repaired {
    /// The number of training steps done then.
    pub step: u64,
    /// The rank.
    pub rank: RankIndex,
    /// The parameter.
    pub path: ParameterPath,
}
