//! Settings of calls.

use burn::tensor::FloatDType;

use crate::runtime::loss_scale::LossScale;

/// Settings of calls, which the ranks do not need.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Options {
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
