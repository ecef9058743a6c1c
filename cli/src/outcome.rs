//! The exit codes of the commands.

use std::{error::Error, io};

use tinderbox_checkpoint::{ErrorClass, LoadError, tools::ToolError};
use tinderbox_schedule::VerifyError;

/// The exit codes, for the help of every command.
pub(crate) const EXIT_CODES: &str = "\
Exit codes:
  0  done
  1  the answer is no: it differs, is damaged or can't run
  2  wrong use: the arguments or the contents of a file are invalid
  3  the machine lacks something: a file, a permission, memory, disk space, the network or a reader of the output";

/// The outcome of a command: its exit code, or the exit code of a program. A worse outcome has a higher code.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Outcome(pub(crate) u8);

/// A negative answer as an error.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct No(pub(crate) String);

impl Outcome {
    /// Success.
    pub(crate) const DONE: Self = Self(0);
    /// The answer is no: damage, a difference, or a schedule that can't run.
    pub(crate) const NO: Self = Self(1);
    /// Invalid arguments or files.
    pub(crate) const WRONG_USE: Self = Self(2);
    /// The machine lacks something: a file, a permission, disk space.
    pub(crate) const MACHINE: Self = Self(3);

    /// Returns the outcome of a question.
    pub(crate) fn of_answer(is_yes: bool) -> Self {
        if is_yes { Self::DONE } else { Self::NO }
    }

    /// Classifies an error by its first known cause.
    pub(crate) fn of(error: &anyhow::Error) -> Self {
        error.chain().find_map(of_cause).unwrap_or(Self::WRONG_USE)
    }
}

fn of_cause(cause: &(dyn Error + 'static)) -> Option<Outcome> {
    if cause.is::<VerifyError>() || cause.is::<No>() {
        return Some(Outcome::NO);
    }
    if let Some(error) = cause.downcast_ref::<io::Error>() {
        use io::ErrorKind as Kind;
        return Some(match error.kind() {
            Kind::InvalidData
            | Kind::InvalidInput
            | Kind::IsADirectory
            | Kind::NotADirectory
            | Kind::AlreadyExists
            | Kind::Unsupported => Outcome::WRONG_USE,
            _ => Outcome::MACHINE,
        });
    }
    // `ToolError` is transparent, so its cause is not in the chain.
    let load = match cause.downcast_ref::<ToolError>() {
        Some(ToolError::Load(error)) => Some(error),
        _ => cause.downcast_ref::<LoadError>(),
    };
    match (load?, load?.class()) {
        (LoadError::OutOfMemory { .. }, _) => Some(Outcome::MACHINE),
        (LoadError::NoModel { .. }, _) => Some(Outcome::WRONG_USE),
        (_, ErrorClass::Damaged) => Some(Outcome::NO),
        (_, ErrorClass::Missing | ErrorClass::Transient) => Some(Outcome::MACHINE),
        _ => None,
    }
}

/// Returns whether an error means that the output is closed.
pub(crate) fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let io = error.downcast_ref::<io::Error>();
    io.is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}
