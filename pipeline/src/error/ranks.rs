//! Errors of ranks while they work, from one action to the processes of a world.

use std::error::Error;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use tinderbox_deferred::{ParameterPath, ProgramError, SourceError, human_bytes};
use tinderbox_fake::{DeviceLabel, FakeError};

use super::texts::numbered;
use crate::schedule::{MicroBatchIndex, RankIndex, StageIndex, Task};
use crate::{RestoreError, Tag};

/// Errors of a rank while it works.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RankError {
    /// An action of a rank failed. All ranks have stopped.
    #[error(
        "rank {rank}{}{}, action {action} failed",
        stage.map_or_else(String::new, |stage| format!(", stage {stage}")),
        micro_batch.map_or_else(String::new, |micro_batch| format!(", micro-batch {micro_batch}"))
    )]
    Action {
        /// The rank.
        rank: RankIndex,
        /// The stage.
        stage: Option<StageIndex>,
        /// The micro-batch, among the micro-batches of all replicas.
        micro_batch: Option<MicroBatchIndex>,
        /// The action in the notation of schedules, whose micro-batches count from the first of the replica.
        action: String,
        /// The cause.
        source: Box<ActionError>,
    },
    /// A rank did not answer in time.
    #[error("rank {rank} did not reply within {timeout:?} to the request to {request}")]
    Timeout {
        /// The rank.
        rank: RankIndex,
        /// The request.
        request: &'static str,
        /// The timeout.
        timeout: Duration,
    },
    /// The ranks make no progress with a step or an evaluation.
    #[error(
        "no rank finished an action within {timeout:?} during the request to {request}; rank {rank} has not replied"
    )]
    Idle {
        /// The first rank that has not replied.
        rank: RankIndex,
        /// The request.
        request: &'static str,
        /// The timeout.
        timeout: Duration,
    },
    /// A rank makes no progress with the parameters that it materializes or reads.
    #[error(
        "rank {rank} made no progress for {timeout:?} during the request to {request}: {parameters} of {of} parameters, {}",
        human_bytes(*bytes)
    )]
    Stalled {
        /// The lowest rank that had not finished.
        rank: RankIndex,
        /// The request.
        request: &'static str,
        /// The timeout.
        timeout: Duration,
        /// The number of complete parameters.
        parameters: u64,
        /// The number of parameters that were started.
        of: u64,
        /// Bytes that were computed or read.
        bytes: u64,
    },
    /// The thread of a rank ended without a reason, for example because its link panicked while it was
    /// notified of another failure.
    #[error("the thread of rank {rank} ended without a reason: its panic, if any, is on stderr")]
    Ended {
        /// The rank.
        rank: RankIndex,
    },
    /// Values of a rank of this process can't be read.
    #[error("{what} can't be read")]
    Unreadable {
        /// The values.
        what: &'static str,
        /// The cause.
        source: Box<dyn Error + Send + Sync>,
    },
}

/// The error of a message that was not sent or did not arrive.
pub type LinkError = tinderbox_world::link::MailboxError<Tag>;

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
        match input.as_deref() {
            None => String::new(),
            Some("") => "; it comes from the batch".to_owned(),
            Some(name) => format!("; it comes from the batch's tensor `{name}`"),
        }
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
        source: Box<dyn Error + Send + Sync>,
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
        /// The time of the wait.
        timeout: Duration,
        /// The last known action of each other rank. The others wait for the one that computes.
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
        "`on_gradients` returned {found} for the gradient of `{path}`, which is {expected}: keep shape and dtype"
    )]
    Gradient {
        /// The parameter.
        path: ParameterPath,
        /// The type of the gradient.
        expected: String,
        /// The type of the tensor that the function returned.
        found: String,
    },
    /// The parameters of a [streamed](crate::Streamed) stage could not be read.
    #[error("the parameters of the stage could not be read: start again when they can")]
    Read {
        /// The cause.
        source: SourceError,
    },
    /// The values of a [streamed](crate::Streamed) stage could not be written after its update.
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
        source: io::Error,
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

/// The result of an action.
pub(crate) type ActionResult<T = ()> = Result<T, ActionError>;

/// Lists the last actions of the first ranks.
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

/// Errors of processes that make other calls than this one, or send invalid messages.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProcessError {
    /// Processes were started with different settings.
    #[error("rank {rank} has another {field} than rank 0: {found}, expected {expected}")]
    OtherSettings {
        /// The first rank that differs from rank 0.
        rank: RankIndex,
        /// The setting that differs.
        field: String,
        /// The value of rank 0, or its digest.
        expected: String,
        /// The value of the rank, or its digest.
        found: String,
    },
    /// Processes do different things in the same call.
    #[error("{difference}: all processes make the same calls with the same batches")]
    Diverged {
        /// The other rank.
        rank: RankIndex,
        /// The difference, in words.
        difference: String,
    },
    /// Another process has ended its pipeline.
    #[error(
        "rank {rank} has ended its pipeline before this call: its own error, if any, states the reason"
    )]
    Left {
        /// The other rank.
        rank: RankIndex,
    },
    /// Another process sent an invalid message.
    #[error("rank {rank} sent an invalid message: do all processes run the same program?")]
    Frame {
        /// The sender.
        rank: RankIndex,
    },
    /// A message to another process can't be read from its device.
    #[error("rank {rank} can't read {message} from its device to send it")]
    Unsent {
        /// The sender.
        rank: RankIndex,
        /// The message.
        message: String,
        /// The error of the device.
        source: Box<FakeError>,
    },
}

/// A wrong value in the memory of a rank, which no replica can repair.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DamageError {
    /// A value has changed since the last step.
    #[error(
        "rank {rank}: {} has changed in memory since step {step} ended, and no other replica has its value: test the \
         machine's memory, and resume from a checkpoint",
        path.as_ref().map_or_else(|| "the state of the optimizer".to_owned(), |path| format!("`{path}`"))
    )]
    Changed {
        /// The rank.
        rank: RankIndex,
        /// The number of training steps done.
        step: u64,
        /// The parameter; `None` for the state of the optimizer.
        path: Option<ParameterPath>,
    },
    /// Replicas hold different values, and none has changed since the last step.
    #[error(
        "since step {step}, {} hold different values of `{path}`, and no value is the same on most of them: test the memory and \
         the links of their machines, and resume from a checkpoint",
        numbered(ranks)
    )]
    Differs {
        /// The ranks that hold the parameter.
        ranks: Vec<RankIndex>,
        /// The number of training steps done.
        step: u64,
        /// The parameter.
        path: ParameterPath,
    },
}
