//! Settings of the driver.

use std::time::Duration;

use burn::tensor::{Device, FloatDType};

use crate::runtime::loss_scale::LossScale;

/// Settings of the start and of calls, which the ranks do not need.
#[derive(Clone, Debug, Default)]
pub(crate) struct Options {
    /// The devices of the ranks, which are assigned round-robin.
    pub(crate) devices: Vec<Device>,
    /// The number of threads that a rank computes with; without one, an equal part of those that this process may use.
    pub(crate) threads_per_rank: Option<usize>,
    /// The timeout of a message.
    pub(crate) timeout: Duration,
    /// The number of micro-batches of a batch that has enough samples.
    pub(crate) micro_batches: usize,
    /// The first loss scale.
    pub(crate) loss_scale: Option<LossScale>,
    /// The number of programs that are kept.
    pub(crate) kept_programs: usize,
    /// The 16-bit dtype of mixed precision.
    pub(crate) compute: Option<FloatDType>,
    /// Whether processes compare the values of batches.
    pub(crate) checks_batches: bool,
    /// Which processes get the named outputs.
    pub(crate) outputs: OutputsOn,
    /// After how many steps ranks check that values have not changed in memory.
    pub(crate) check_memory: Option<u64>,
}

/// The processes of a [world](crate::PipelineBuilder::world) that get the named outputs of a step. All get the losses and
/// the norm.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OutputsOn {
    /// All processes: every output is sent to each of them.
    #[default]
    All,
    /// The process whose rank computes them, without a copy: with [replicas](crate::Plan::replicas), it gets the outputs of the
    /// micro-batches of its replica.
    Own,
}
