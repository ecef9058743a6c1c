//! How what a pipeline would run can differ from what was recorded.

use std::fmt;

use tinderbox_deferred::{ParameterPath, ProgramError};
use tinderbox_fake::ValueId;

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
    /// An operation computes another value.
    #[error("{site}: {value}{} is computed by {found}, expected {expected}", inside(module.as_deref()))]
    Operation {
        /// The program.
        site: Box<CertifySite>,
        /// The value.
        value: ValueId,
        /// The parameter or the module that the operation belongs to, where it is known.
        module: Option<String>,
        /// The operation of the model.
        expected: String,
        /// The operation of the program.
        found: String,
    },
    /// A program uses another constant.
    #[error("{site}: {value} is {found}, expected {expected}")]
    Constant {
        /// The program.
        site: Box<CertifySite>,
        /// The value.
        value: ValueId,
        /// What the model has there.
        expected: String,
        /// What the program has.
        found: String,
    },
    /// An input of a program is bound to another value.
    #[error("{site}: an input is bound to {found}, expected {expected}")]
    Input {
        /// The program.
        site: Box<CertifySite>,
        /// What the program reads.
        expected: String,
        /// What it would be given.
        found: String,
    },
    /// A result of a program is bound to another value.
    #[error("{site}: {what} is bound to {found}, expected {expected}")]
    Output {
        /// The program.
        site: Box<CertifySite>,
        /// The result.
        what: String,
        /// What it is to be.
        expected: String,
        /// What it would be.
        found: String,
    },
    /// A program has more or fewer inputs or outputs than are bound.
    #[error("{site}: {found} {what} are bound, expected {expected}")]
    Count {
        /// The program.
        site: Box<CertifySite>,
        /// Inputs or outputs.
        what: &'static str,
        /// Those of the program.
        expected: usize,
        /// Those that are bound.
        found: usize,
    },
    /// A program reads what is not there.
    #[error("{site} can't run")]
    Program {
        /// The program.
        site: Box<CertifySite>,
        /// What is wrong with it.
        #[source]
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
    /// The gradient of a parameter is not the sum over the micro-batches, in their order.
    #[error("{site}: the gradient of `{path}` adds {found}, expected {expected}")]
    Gradient {
        /// The action.
        site: Box<CertifySite>,
        /// The parameter.
        path: ParameterPath,
        /// What is to be added next.
        expected: String,
        /// What is added.
        found: String,
    },
    /// A parameter has another value than at its place in the step.
    #[error("{site}: `{path}` is {found}, expected {expected}")]
    Parameter {
        /// The action.
        site: Box<CertifySite>,
        /// The parameter.
        path: ParameterPath,
        /// The value that it is to have.
        expected: &'static str,
        /// The value that it has.
        found: &'static str,
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

fn inside(module: Option<&str>) -> String {
    module.map_or_else(String::new, |module| format!(", at {module},"))
}
