//! Outcomes of a command.

use std::{io, process::ExitCode};

/// The outcome of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Outcome {
    /// Success.
    Fine,
    /// The command found damage or a difference.
    Found,
    /// The command failed.
    Failed,
}

impl From<Outcome> for ExitCode {
    fn from(outcome: Outcome) -> Self {
        Self::from(match outcome {
            Outcome::Fine => 0,
            Outcome::Found => 1,
            Outcome::Failed => 2,
        })
    }
}

/// Returns whether an error only means that the output is closed.
pub(crate) fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let io = error.downcast_ref::<io::Error>();
    io.is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}
