//! What can go wrong inside an action of a rank.

use tinderbox_deferred::ProgramError;
use tinderbox_fake::{DeviceLabel, FakeError};

use crate::Tag;
use crate::schedule::Task;

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
    /// One of the two programs of an overlapped pair failed.
    #[error("{task} of the pair failed")]
    OfPair {
        /// Its program.
        task: Task,
        /// What went wrong.
        source: Box<ActionError>,
    },
}

fn from_input(name: &str) -> String {
    match name.is_empty() {
        true => "; it comes from the batch".to_owned(),
        false => format!("; it comes from the batch's tensor `{name}`"),
    }
}
