//! What can go wrong inside an action of a rank.

use tinderbox_deferred::{ParameterPath, ProgramError};
use tinderbox_fake::{DeviceLabel, FakeError};

use crate::Tag;
use crate::schedule::{Compute, RankIndex, StageIndex, Task};

/// Why a message did not arrive or leave.
pub type LinkError = tinderbox_link::MailboxError<Tag>;

/// What went wrong inside an action.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ActionError {
    /// A program failed.
    #[error(transparent)]
    Program(#[from] ProgramError),
    /// An operation would read or write outside of a tensor.
    #[error(
        "an index is out of range{}{}: look at the data, and at the sizes that the model was made with",
        module.as_ref().map(|module| format!(" {module}")).unwrap_or_default(),
        input.as_deref().map(from_input).unwrap_or_default()
    )]
    IndexOutOfRange {
        /// Where: "in `tokens`" where the operation reads a parameter of that module, "in or after `head`" where that is
        /// the last module which was read before it.
        module: Option<String>,
        /// Name of the batch's tensor that the index comes from; empty where the batch is one tensor.
        input: Option<String>,
        /// Which operation and index.
        #[source]
        source: Box<ProgramError>,
    },
    /// A tensor is of the wrong kind or on the wrong device.
    #[error(transparent)]
    Tensor(#[from] FakeError),
    /// The device could not run what was queued for it: it is out of memory, or lost.
    #[error("{device} failed: restart from the last checkpoint")]
    Device {
        /// The device.
        device: DeviceLabel,
        /// What it says.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A message did not arrive or leave.
    #[error(transparent)]
    Link(#[from] LinkError),
    /// An operation, or code that the user gave, panicked.
    #[error("panicked: {message}")]
    Panicked {
        /// Text of the panic.
        message: String,
    },
    /// A message has another number of values than the plan says.
    #[error("a message has {found} values, the plan says {expected}")]
    MessageLength {
        /// What the plan says.
        expected: usize,
        /// What came.
        found: usize,
    },
    /// A value is read that is not there.
    #[error("value {value} is not available")]
    MissingValue {
        /// The value.
        value: tinderbox_fake::ValueId,
    },
    /// A clip by the norm of all gradients misses the norms of a stage.
    #[error("the norms of the gradients of stage {stage} did not come")]
    MissingNorms {
        /// The stage.
        stage: StageIndex,
    },
    /// One of the two programs of an overlapped pair failed.
    #[error("{task} of the pair failed")]
    OfPair {
        /// Its program.
        task: Task,
        /// What went wrong.
        #[source]
        source: Box<ActionError>,
    },
    /// The action is of a kind that came with a later version of the schedules.
    #[error(
        "this version of the runtime does not run the action {action}: use crates of one version"
    )]
    UnknownAction {
        /// The action, as schedules write it.
        action: String,
    },
    /// The plan has no such stage.
    #[error(
        "the schedule names stage {stage}, and the plan has {stages}: make both for as many stages"
    )]
    UnknownStage {
        /// The stage.
        stage: StageIndex,
        /// Stages of the plan.
        stages: usize,
    },
    /// The rank has not the stage that it is to run.
    #[error(
        "the schedule runs stage {stage} on rank {rank}, where the plan does not have it: make the plan for the schedule"
    )]
    OtherRank {
        /// The stage.
        stage: StageIndex,
        /// The rank.
        rank: RankIndex,
    },
    /// The stage has no program for the task.
    #[error(
        "stage {stage} has no program for {compute:?}, although the schedule runs it there: this is a defect of Tinderbox, \
         please report it"
    )]
    NoProgram {
        /// The stage.
        stage: StageIndex,
        /// What it is to run.
        compute: Compute,
    },
    /// The stage lacks a parameter that a program reads.
    #[error("the stage does not hold `{path}`, which the program reads: make the plan again")]
    MissingParameter {
        /// The parameter.
        path: ParameterPath,
    },
}

fn from_input(name: &str) -> String {
    match name.is_empty() {
        true => "; it comes from the batch".to_owned(),
        false => format!("; it comes from the batch's tensor `{name}`"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedule::{Compute, RankIndex, StageIndex};

    #[test]
    fn lists_that_do_not_fit_say_what_to_do() {
        let (stage, rank) = (StageIndex::new(3), RankIndex::new(1));
        let text = |error: ActionError| error.to_string();
        insta::assert_snapshot!(text(ActionError::OtherRank { stage, rank }), @"the schedule runs stage 3 on rank 1, where the plan does not have it: make the plan for the schedule");
        insta::assert_snapshot!(text(ActionError::UnknownStage { stage, stages: 2 }), @"the schedule names stage 3, and the plan has 2: make both for as many stages");
        let compute = Compute::Backward;
        insta::assert_snapshot!(text(ActionError::NoProgram { stage, compute }), @"stage 3 has no program for Backward, although the schedule runs it there: this is a defect of Tinderbox, please report it");
        let action = "0X0".to_owned();
        insta::assert_snapshot!(text(ActionError::UnknownAction { action }), @"this version of the runtime does not run the action 0X0: use crates of one version");
    }
}
