//! Errors of an action of a rank.

use std::error::Error;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use tinderbox_deferred::{ParameterPath, ProgramError, SourceError};
use tinderbox_fake::{DeviceLabel, FakeError};

use crate::schedule::{RankIndex, Task};
use crate::{RestoreError, Tag};

/// The error of a message that was not sent or did not arrive.
pub type LinkError = tinderbox_link::MailboxError<Tag>;

/// The error of an action.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ActionError {
    /// A program failed.
    #[error(transparent)]
    Program(#[from] ProgramError),
    /// An operation would read or write outside of a tensor.
    #[error(
        "an index is out of range{}{}: check the data and the sizes with which the model was constructed",
        module.as_ref().map(|module| format!(" {module}")).unwrap_or_default(),
        input.as_deref().map(from_input).unwrap_or_default()
    )]
    IndexOutOfRange {
        /// The place: "in `tokens`" where the operation reads a parameter of that module, "in or after
        /// `head`" where that module's parameter was the last one read before it.
        module: Option<String>,
        /// The name of the batch's tensor from which the index comes; empty where the batch is one
        /// tensor.
        input: Option<String>,
        /// The operation and the index.
        source: Box<ProgramError>,
    },
    /// A tensor is of the wrong kind or on the wrong device.
    #[error(transparent)]
    Tensor(#[from] FakeError),
    /// The device failed to run its queue: it is out of memory, or lost.
    #[error("{device} failed: restart from the last checkpoint")]
    Device {
        /// The device.
        device: DeviceLabel,
        /// The error of the device.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A message did not arrive or leave.
    #[error(transparent)]
    Link(#[from] LinkError),
    /// A message did not arrive in time.
    #[error(
        "no `{message}` from rank {from} within {timeout:?}{}",
        doing_text(doing)
    )]
    Late {
        /// The sender.
        from: RankIndex,
        /// The message.
        message: Tag,
        /// How long it was waited for.
        timeout: Duration,
        /// What all other ranks were in when they were last heard of. The one that computes keeps the others waiting.
        doing: Vec<(RankIndex, String)>,
    },
    /// An operation, or code of the user, panicked.
    #[error("panicked: {message}")]
    Panicked {
        /// The text of the panic.
        message: String,
    },
    /// The number of values of a message differs from the plan.
    #[error("a message has {found} values, but the plan requires {expected}")]
    MessageLength {
        /// The number of values in the plan.
        expected: usize,
        /// The number of values received.
        found: usize,
    },
    /// A gradient or a parameter of another replica has another shape than the plan.
    #[error(
        "another replica has sent a tensor of shape {found:?}, but the plan requires {expected:?}"
    )]
    PieceShape {
        /// The shape in the plan.
        expected: Vec<u64>,
        /// The shape that was received.
        found: Vec<u64>,
    },
    /// A function of the user has changed the type of a gradient.
    #[error(
        "`on_gradients` made {found} of the gradient of `{path}`, which is {expected}: keep shape and dtype"
    )]
    Gradient {
        /// The parameter.
        path: ParameterPath,
        /// The type of the gradient.
        expected: String,
        /// What the function returned.
        found: String,
    },
    /// The parameters of a [streamed](crate::Streamed) stage could not be read.
    #[error("the parameters of the stage could not be read: start again when they can")]
    Read {
        /// The cause.
        source: SourceError,
    },
    /// What a [streamed](crate::Streamed) stage has after its update could not be written.
    #[error(
        "the parameters of the stage could not be written: the last committed step is still there; start again to continue from it"
    )]
    Write {
        /// The cause.
        source: Box<dyn Error + Send + Sync>,
    },
    /// Activations of a [streamed](crate::Streamed) step that do not fit in memory could not be written.
    #[error("activations that do not fit in memory could not be written to {}", path.display())]
    Spill {
        /// The directory.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The state of the optimizer of a [streamed](crate::Streamed) stage is of another optimizer.
    #[error("the state of the optimizer does not fit")]
    State {
        /// The cause.
        source: RestoreError,
    },
    /// The source of parameters has panicked.
    #[error("the thread that reads parameters has panicked: its message is on the standard error")]
    ReaderEnded,
    /// The thread that reads parameters could not be started.
    #[error("the thread that reads parameters could not be started")]
    Spawn {
        /// The cause.
        source: std::io::Error,
    },
    /// One of the two programs of an overlapped pair failed.
    #[error("{task} of the pair failed")]
    OfPair {
        /// The program that failed.
        task: Task,
        /// The cause.
        source: Box<ActionError>,
    },
}

/// Returns what the first of the ranks were in.
fn doing_text(doing: &[(RankIndex, String)]) -> String {
    const SHOWN: usize = 8;
    let shown = doing.iter().take(SHOWN);
    let shown = shown.map(|(rank, doing)| format!("; rank {rank} was last in {doing}"));
    let more = match doing.len().saturating_sub(SHOWN) {
        0 => String::new(),
        more => format!("; and {more} others"),
    };
    shown.chain([more]).collect()
}

fn from_input(name: &str) -> String {
    match name.is_empty() {
        true => "; it comes from the batch".to_owned(),
        false => format!("; it comes from the batch's tensor `{name}`"),
    }
}
