//! What a driver has besides what is on the ranks.

use std::collections::BTreeSet;

use crate::runtime::learning_rates::LastRates;
use crate::runtime::loss_scale::LossScale;

/// What a driver has at one point in time, the same on all processes: a recovery restores it.
#[derive(Clone, Debug, Default)]
pub(crate) struct DriverState {
    /// The number of training steps done.
    pub(crate) step: u64,
    /// The loss scale of the next step.
    pub(crate) loss_scale: Option<LossScale>,
    /// Whether the averages are exchanged with the parameters.
    pub(crate) is_averaged: bool,
    /// The parameters that do not train now, by position in the table.
    pub(crate) frozen: BTreeSet<usize>,
    /// The learning rates of the last step.
    pub(crate) last_rates: Option<LastRates>,
    /// A digest of what was frozen and set.
    pub(crate) changes: u64,
    /// In how many steps all learning rates were the same; `None` once they were not, or that was reported.
    pub(crate) equal_rates: Option<u32>,
}

/// Whether the values of the ranks can be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Condition {
    Sound,
    /// A restore has failed partway.
    PartlyRestored,
    /// The state of lost ranks is lost: values are initial.
    StateLost,
    /// A round has ended with an error that the driver detected.
    Stopped,
}
