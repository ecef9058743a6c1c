//! The causes of failures, and the exit codes of the commands.

use std::{error::Error, io};

use tinderbox_checkpoint::{ErrorClass, LoadError, tools::ToolError};
use tinderbox_fake::GraphFileError;
use tinderbox_schedule::VerifyError;

/// The exit codes, for the help of every command: one line of at most 80 columns.
pub(crate) const EXIT_CODES: &str =
    "Exit codes: 0 done, 1 the answer is no, 2 wrong use, 3 something is missing";

/// The outcome of a command: its exit code, or the exit code of a program. A worse outcome has a higher code.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Outcome(pub(crate) u8);

/// The cause of a failure. A cause has the same exit code in all commands. The chapter "Operating a run" lists the causes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cause {
    /// The answer is no: two things differ, a schedule can't run, or a checkpoint has no plan.
    No,
    /// A file of a checkpoint, of weights or of a recorded model is damaged, or a step has no manifest.
    Damage,
    /// An argument is invalid, does not fit the others, is a limit that is too low, or names a file of another kind. This is
    /// the cause of every error that is not known.
    WrongUse,
    /// A file, a step, or the model in a directory does not exist.
    Missing,
    /// The machine lacks a permission, memory, disk space, the network or a reader of the output.
    Machine,
}

/// A negative answer as an error.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct No(pub(crate) String);

/// Something that was named does not exist, as an error.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Missing(pub(crate) String);

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

    /// Returns the outcome of an error by its cause.
    pub(crate) fn of(error: &anyhow::Error) -> Self {
        Cause::of(error).outcome()
    }
}

impl Cause {
    /// Returns the first known cause of an error.
    fn of(error: &anyhow::Error) -> Self {
        error.chain().find_map(of_cause).unwrap_or(Self::WrongUse)
    }

    /// The table of exit codes.
    const fn outcome(self) -> Outcome {
        match self {
            Self::No | Self::Damage => Outcome::NO,
            Self::WrongUse => Outcome::WRONG_USE,
            Self::Missing | Self::Machine => Outcome::MACHINE,
        }
    }
}

fn of_cause(cause: &(dyn Error + 'static)) -> Option<Cause> {
    if cause.is::<VerifyError>() || cause.is::<No>() {
        return Some(Cause::No);
    }
    if cause.is::<Missing>() {
        return Some(Cause::Missing);
    }
    if let Some(GraphFileError::Damaged { .. }) = cause.downcast_ref() {
        return Some(Cause::Damage);
    }
    if let Some(ToolError::UnknownMemory) = cause.downcast_ref() {
        return Some(Cause::Machine);
    }
    if let Some(error) = cause.downcast_ref::<io::Error>() {
        return Some(of_io(error.kind()));
    }
    of_load(load_error(cause)?)
}

/// Returns the load error that a cause is or wraps.
fn load_error<'a>(cause: &'a (dyn Error + 'static)) -> Option<&'a LoadError> {
    let boxed = cause.downcast_ref::<Box<LoadError>>();
    match cause.downcast_ref() {
        // It is transparent, so its cause is not in the chain.
        Some(ToolError::Load(error)) => Some(error),
        _ => cause.downcast_ref().or(boxed.map(|error| &**error)),
    }
}

/// Returns the cause of a load error; `None` if its own source decides.
fn of_load(error: &LoadError) -> Option<Cause> {
    match (error, error.class()) {
        (LoadError::OutOfMemory { .. }, _) => Some(Cause::Machine),
        (LoadError::LfsPointer { .. }, _) => Some(Cause::Missing),
        // A directory of a step without its manifest.
        (LoadError::NotPublished { exists: true, .. }, _) => Some(Cause::Damage),
        (_, ErrorClass::Damaged) => Some(Cause::Damage),
        (_, ErrorClass::Missing) => Some(Cause::Missing),
        (_, ErrorClass::Transient) => Some(Cause::Machine),
        _ => None,
    }
}

fn of_io(kind: io::ErrorKind) -> Cause {
    use io::ErrorKind as Kind;
    match kind {
        Kind::NotFound => Cause::Missing,
        Kind::InvalidData
        | Kind::InvalidInput
        | Kind::InvalidFilename
        | Kind::FileTooLarge
        | Kind::IsADirectory
        | Kind::NotADirectory
        | Kind::AlreadyExists
        | Kind::Unsupported => Cause::WrongUse,
        _ => Cause::Machine,
    }
}

/// Returns whether an error means that the output is closed.
pub(crate) fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let io = error.downcast_ref::<io::Error>();
    io.is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use tinderbox_checkpoint::{SaveError, StoreError};

    use super::*;

    #[test]
    fn a_cause_is_found_below_the_words_of_a_command() {
        let io = |kind: io::ErrorKind| StoreError {
            action: "read",
            path: PathBuf::from("a"),
            source: kind.into(),
        };
        let pointer = || LoadError::LfsPointer { path: "a".into() };
        let list = |source: LoadError| SaveError::List {
            source: Box::new(source),
        };
        let cases: [(anyhow::Error, Cause); 10] = [
            (No("no".into()).into(), Cause::No),
            (Missing("no".into()).into(), Cause::Missing),
            (anyhow::anyhow!("other"), Cause::WrongUse),
            (pointer().into(), Cause::Missing),
            (ToolError::Load(pointer()).into(), Cause::Missing),
            (list(pointer()).into(), Cause::Missing),
            (ToolError::UnknownMemory.into(), Cause::Machine),
            (
                LoadError::Io(io(io::ErrorKind::UnexpectedEof)).into(),
                Cause::Damage,
            ),
            (
                LoadError::Io(io(io::ErrorKind::PermissionDenied)).into(),
                Cause::Machine,
            ),
            (
                ToolError::Io(io(io::ErrorKind::NotADirectory)).into(),
                Cause::WrongUse,
            ),
        ];
        for (error, expected) in cases {
            let error = error.context("the words of a command");
            assert_eq!(Cause::of(&error), expected, "{error:?}");
        }
    }

    #[test]
    fn the_exit_codes_fit_a_line_of_the_help() {
        assert!(EXIT_CODES.len() <= 80 && !EXIT_CODES.contains('\n'));
    }
}
