//! The place in the recorded code where a panic arose.

use std::backtrace::Backtrace;
use std::fmt;
use std::panic::PanicHookInfo;
use std::sync::{Arc, OnceLock};

mod frames;

use frames::{Found, find};

/// The place in the recorded code where an error arose: the operation of Burn that failed, and the line that called it.
/// A program without debug information has no lines, and a stripped program no names.
///
/// Names and lines are resolved on first use, which takes a few milliseconds.
#[derive(Clone, derive_more::Debug, Default)]
#[debug("ErrorOrigin {{ operation: {:?}, place: {:?} }}", self.operation(), self.place())]
pub struct ErrorOrigin(Option<Arc<Panic>>);

struct Panic {
    message: Option<String>,
    backtrace: Backtrace,
    location: Option<String>,
    found: OnceLock<Found>,
}

impl ErrorOrigin {
    /// Captures the origin of a panic, in a panic hook.
    pub(crate) fn of(info: &PanicHookInfo<'_>) -> Self {
        Self(Some(Arc::new(Panic {
            message: info.payload_as_str().map(str::to_owned),
            backtrace: Backtrace::force_capture(),
            location: info.location().map(ToString::to_string),
            found: OnceLock::new(),
        })))
    }

    /// Returns the message of the panic; `None` without a panic.
    pub(crate) fn message(&self) -> Option<&str> {
        let message = self.0.as_ref()?.message.as_deref();
        Some(message.unwrap_or("a panic without a message"))
    }

    /// Returns the operation of Burn that failed, such as `Tensor::one_hot` or `Linear::forward`: the outermost one,
    /// which the recorded code called directly. `None` if that code panicked itself, and if names are unknown.
    pub fn operation(&self) -> Option<&str> {
        self.found()?.operation.as_deref()
    }

    /// Returns file, line and column in the recorded code.
    pub fn place(&self) -> Option<&str> {
        let found = self.found()?;
        let own_panic = found.is_in_caller && found.operation.is_none();
        let location = self.0.as_ref()?.location.as_deref();
        found.place.as_deref().or(location.filter(|_| own_panic))
    }

    fn found(&self) -> Option<&Found> {
        let panic = self.0.as_ref()?;
        let find = || find(&panic.backtrace.to_string());
        Some(panic.found.get_or_init(find))
    }
}

impl fmt::Display for ErrorOrigin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.operation(), self.place()) {
            (Some(operation), Some(place)) => write!(f, " in `{operation}`, called at {place}"),
            (Some(operation), None) => write!(f, " in `{operation}`"),
            (None, Some(place)) => write!(f, " at {place}"),
            (None, None) => Ok(()),
        }
    }
}
