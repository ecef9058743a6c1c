//! Outcomes of a command.

use std::{error::Error, io, process::ExitCode};

use tinderbox_checkpoint::{ErrorClass, LoadError, tools::ToolError};
use tinderbox_schedule::VerifyError;

/// The exit codes, for the help of every command.
pub(crate) const EXIT_CODES: &str = "\
Exit codes:
  0  done
  1  the answer is no: it differs, is damaged or can't run
  2  wrong use: the arguments or the contents of a file are invalid
  3  the machine lacks something: a file, a permission, memory, disk space, the network or a reader of the output";

/// The outcome of a command, from best to worst.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Outcome {
    /// Success.
    Done,
    /// The answer is no: damage, a difference, or a schedule that can't run.
    No,
    /// Invalid arguments or files.
    WrongUse,
    /// The machine lacks something: a file, a permission, disk space.
    Machine,
    /// The exit code of a program.
    Program(u8),
}

/// A negative answer as an error.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct No(pub(crate) String);

impl Outcome {
    /// Returns the outcome of a question.
    pub(crate) fn of_answer(is_yes: bool) -> Self {
        if is_yes { Self::Done } else { Self::No }
    }

    /// Classifies an error by its first known cause.
    pub(crate) fn of(error: &anyhow::Error) -> Self {
        error.chain().find_map(of_cause).unwrap_or(Self::WrongUse)
    }
}

fn of_cause(cause: &(dyn Error + 'static)) -> Option<Outcome> {
    if cause.is::<VerifyError>() || cause.is::<No>() {
        return Some(Outcome::No);
    }
    if let Some(error) = cause.downcast_ref::<io::Error>() {
        use io::ErrorKind as Kind;
        return Some(match error.kind() {
            Kind::InvalidData
            | Kind::InvalidInput
            | Kind::IsADirectory
            | Kind::NotADirectory
            | Kind::AlreadyExists
            | Kind::Unsupported => Outcome::WrongUse,
            _ => Outcome::Machine,
        });
    }
    // `ToolError` is transparent, so its cause is not in the chain.
    let load = match cause.downcast_ref::<ToolError>() {
        Some(ToolError::Load(error)) => Some(error),
        _ => cause.downcast_ref::<LoadError>(),
    };
    match (load?, load?.class()) {
        (LoadError::OutOfMemory { .. }, _) => Some(Outcome::Machine),
        (LoadError::NoModel { .. }, _) => Some(Outcome::WrongUse),
        (_, ErrorClass::Damaged) => Some(Outcome::No),
        (_, ErrorClass::Missing | ErrorClass::Transient) => Some(Outcome::Machine),
        _ => None,
    }
}

impl From<Outcome> for ExitCode {
    fn from(outcome: Outcome) -> Self {
        Self::from(match outcome {
            Outcome::Done => 0,
            Outcome::No => 1,
            Outcome::WrongUse => 2,
            Outcome::Machine => 3,
            Outcome::Program(code) => code,
        })
    }
}

/// Returns whether an error means that the output is closed.
pub(crate) fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let io = error.downcast_ref::<io::Error>();
    io.is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}
