//! How what a pipeline would run can differ from what was recorded.

use std::fmt;

use tinderbox_deferred::ProgramError;

use crate::schedule::{MicroBatchIndex, RankIndex, StageIndex};

/// The place in a step that an error is about.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CertifySite {
    /// The rank.
    pub rank: RankIndex,
    /// The stage.
    pub stage: StageIndex,
    /// The micro-batch; `None` for what all of them share.
    pub micro_batch: Option<MicroBatchIndex>,
    /// The program, such as `program B`, or the action, as schedules write it: `action 0F0>1F0`.
    pub at: String,
}

impl fmt::Display for CertifySite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {}, stage {}", self.rank, self.stage)?;
        if let Some(micro_batch) = self.micro_batch {
            write!(f, ", micro-batch {micro_batch}")?;
        }
        write!(f, ", {}", self.at)
    }
}

/// The first difference between what the ranks would compute and what was recorded.
///
/// A user's model can't cause one: it is a defect of the cut, of the schedule's lowering or of a written plan that was
/// not checked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CertifyError {
    /// An operation, a constant, an input or a result of a program is another one, or an action adds another gradient or
    /// leaves another value of a parameter.
    #[error("{site}: {what} {found}, expected {expected}")]
    Differs {
        /// The program or the action.
        site: Box<CertifySite>,
        /// What differs, with its verb, such as "an input is bound to".
        what: String,
        /// What the model has there.
        expected: String,
        /// What the program or the action has.
        found: String,
    },
    /// A program reads a value that does not exist.
    #[error("{site} can't run")]
    Program {
        /// The program.
        site: Box<CertifySite>,
        /// What is wrong with it.
        source: ProgramError,
    },
    /// An action reads or leaves another value of a micro-batch than the programs need.
    #[error("{site}: expected {expected}, found {found}")]
    Value {
        /// The action.
        site: Box<CertifySite>,
        /// What is needed there.
        expected: String,
        /// What is there.
        found: String,
    },
    /// The loss or a named output of a micro-batch is not reported once.
    #[error("{what} of micro-batch {micro_batch} is reported {found} times, expected {expected}")]
    Reported {
        /// The loss, or the name of the output.
        what: String,
        /// The micro-batch.
        micro_batch: MicroBatchIndex,
        /// How often it is to be reported.
        expected: usize,
        /// How often it is.
        found: usize,
    },
}
