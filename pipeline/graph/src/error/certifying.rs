//! Differences between a pipeline and the recorded computation.

use derive_more::Display;
use tinderbox_deferred::{ParameterPath, ProgramError};

use crate::schedule::{MicroBatchIndex, RankIndex, StageIndex};

/// The place of an error in a step.
#[derive(Clone, Debug, Display, PartialEq, Eq)]
#[display(
    "rank {rank}, stage {stage}{}, {at}",
    micro_batch.map_or_else(String::new, |number| format!(", micro-batch {number}"))
)]
#[non_exhaustive]
pub struct CertifySite {
    /// The rank.
    pub rank: RankIndex,
    /// The stage.
    pub stage: StageIndex,
    /// The micro-batch; `None` for items that all micro-batches share.
    pub micro_batch: Option<MicroBatchIndex>,
    /// The program, such as `program B`, or the action, as schedules write it: `action 0F0>1F0`.
    pub at: String,
}

/// The first difference between the computation of the ranks and the recorded one.
///
/// A user's model can't cause this error: it is a defect of the cut, of the schedule's lowering or of a
/// plan file that was not checked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CertifyError {
    /// An operation, constant, input or result of a program differs, or an action reads, adds or leaves another value.
    #[error("{site}: {what} {found}, expected {expected}")]
    Differs {
        /// The program or the action.
        site: Box<CertifySite>,
        /// The item that differs, with its verb, such as "an input is bound to"; "found" for a value.
        what: String,
        /// The item in the recorded model.
        expected: String,
        /// The item in the program or the action.
        found: String,
    },
    /// Replicas add the gradients of a parameter in another order than defined.
    #[error(
        "the gradient of `{path}` is summed in another order than {groups} groups of micro-batches by {replicas} replicas"
    )]
    SumOrder {
        /// The parameter.
        path: ParameterPath,
        /// The number of groups.
        groups: usize,
        /// The number of replicas.
        replicas: usize,
    },
    /// A program reads a value that does not exist.
    #[error("{site} can't run")]
    Program {
        /// The program.
        site: Box<CertifySite>,
        /// The error of the program.
        source: ProgramError,
    },
    /// The loss or a named output of a micro-batch is not reported once.
    #[error("{what} of micro-batch {micro_batch} is reported {found} times, expected {expected}")]
    Reported {
        /// The loss, or the name of the output.
        what: String,
        /// The micro-batch.
        micro_batch: MicroBatchIndex,
        /// The expected number of reports.
        expected: usize,
        /// The number of reports.
        found: usize,
    },
}
