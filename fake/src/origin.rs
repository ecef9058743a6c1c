//! The place in the recorded code where a panic arose.

use std::backtrace::Backtrace;
use std::cell::RefCell;
use std::fmt;
use std::panic::PanicHookInfo;
use std::sync::{Arc, Once, OnceLock};

mod frames;

use crate::scope::Scope;
use frames::{Found, find};

thread_local! {
    /// The last panic of each recording that runs on this thread, the innermost last. Thread-local, because a panic
    /// hook has no other context.
    static WATCHED: RefCell<Vec<ErrorOrigin>> = const { RefCell::new(Vec::new()) };
}

/// Where in the recorded code an error arose: the operation of Burn that failed, and the line that called it, as far
/// as the program has debug information. Without it there are no lines, and in a stripped program no names.
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

/// Records the panics of one recording instead of printing them; ends when dropped, also while a panic unwinds.
pub(crate) struct Watch(Scope<ErrorOrigin>);

impl Watch {
    pub(crate) fn begin() -> Self {
        install();
        Self(Scope::begin(&WATCHED))
    }

    /// Returns the origin of the panic with this message. Unknown if the panic came from another thread, or if a hook
    /// that was set later does not call this one.
    pub(crate) fn origin(&self, message: &str) -> ErrorOrigin {
        let ErrorOrigin(panic) = self.0.take();
        let is_it = |panic: &Arc<Panic>| panic.message.as_ref().is_none_or(|m| m == message);
        ErrorOrigin(panic.filter(is_it))
    }

    /// Reports a panic that the recorded code caught itself: the hook did not print it.
    pub(crate) fn report_caught(&self) {
        let origin = self.0.take();
        if let Some(panic) = &origin.0 {
            let message = panic.message.as_deref();
            let message = message.unwrap_or("a panic without a message");
            tracing::warn!("the recorded code caught a panic{origin}: {message}");
        }
    }
}

/// Installs our hook in front of the present one, once per process. A hook that is set later replaces it: errors then
/// have no origin, and panics are printed again.
fn install() {
    static INSTALLED: Once = Once::new();
    // A thread that unwinds must not change the hook.
    if std::thread::panicking() {
        return;
    }
    INSTALLED.call_once(|| {
        let previous = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if !note(info) {
                previous(info);
            }
        }));
    });
}

/// Records a panic of a thread that records, and returns whether it should not be printed. It should if an earlier one
/// was not taken yet: this may be the second of two panics at once, which aborts the process.
fn note(info: &PanicHookInfo<'_>) -> bool {
    let noted = WATCHED.try_with(|recordings| {
        let mut recordings = recordings.try_borrow_mut().ok()?;
        let slot = recordings.last_mut()?;
        let is_first = slot.0.is_none();
        slot.0 = Some(Arc::new(Panic {
            message: info.payload_as_str().map(str::to_owned),
            backtrace: Backtrace::force_capture(),
            location: info.location().map(ToString::to_string),
            found: OnceLock::new(),
        }));
        Some(is_first)
    });
    noted.ok().flatten().unwrap_or(false) && cfg!(panic = "unwind")
}
