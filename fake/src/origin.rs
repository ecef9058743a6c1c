//! Where in the recorded code a panic arose.

use std::backtrace::Backtrace;
use std::cell::RefCell;
use std::fmt;
use std::panic::PanicHookInfo;
use std::sync::{Arc, Once, OnceLock};

mod frames;

use frames::{Found, find};

thread_local! {
    /// The last panic of each recording that runs on this thread, the innermost last. A panic hook gets no context
    /// of its own.
    static WATCHED: RefCell<Vec<Option<Caught>>> = const { RefCell::new(Vec::new()) };
}

/// Where in the recorded code an error arose: the operation of Burn that failed, and the line that called it, as far
/// as the program has names and lines. A build without debug information has no lines, a stripped one no names.
///
/// Names and lines are looked up when they are first asked for, which takes some milliseconds.
#[derive(Clone, Default)]
pub struct ErrorOrigin(Option<Arc<Panic>>);

struct Panic {
    backtrace: Backtrace,
    location: Option<String>,
    found: OnceLock<Found>,
}

impl ErrorOrigin {
    /// The operation of Burn that failed, such as `Tensor::one_hot` or `Linear::forward`: the outermost one, which the
    /// recorded code called itself. `None` where that code panicked itself, and where names are unknown.
    pub fn operation(&self) -> Option<&str> {
        self.found()?.operation.as_deref()
    }

    /// File, line and column in the recorded code.
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

impl fmt::Debug for ErrorOrigin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ErrorOrigin")
            .field("operation", &self.operation())
            .field("place", &self.place())
            .finish()
    }
}

/// A panic that the hook saw in a recording.
struct Caught {
    message: Option<String>,
    origin: ErrorOrigin,
}

/// Notes the panics of one recording instead of printing them; ends when dropped, also while a panic unwinds.
pub(crate) struct Watch {
    depth: usize,
}

impl Watch {
    pub(crate) fn begin() -> Self {
        install();
        WATCHED.with_borrow_mut(|recordings| {
            recordings.push(None);
            Self {
                depth: recordings.len(),
            }
        })
    }

    /// Where the panic with this text arose. Unknown where the panic came from another thread, or where a hook that
    /// was set later keeps panics for itself.
    pub(crate) fn origin(&self, message: &str) -> ErrorOrigin {
        let caught = self.take();
        let caught = caught.filter(|caught| caught.message.as_deref().is_none_or(|m| m == message));
        caught.map(|caught| caught.origin).unwrap_or_default()
    }

    /// Reports a panic that the recorded code caught itself: the hook did not print it.
    pub(crate) fn report_caught(&self) {
        if let Some(Caught { message, origin }) = self.take() {
            let message = message.unwrap_or_else(|| "a panic without a text".into());
            tracing::warn!("the recorded code caught a panic{origin}: {message}");
        }
    }

    fn take(&self) -> Option<Caught> {
        WATCHED.with_borrow_mut(|recordings| recordings.get_mut(self.depth - 1)?.take())
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        WATCHED.with_borrow_mut(|recordings| recordings.truncate(self.depth - 1));
    }
}

/// Puts our hook before the present one, once in a process. A hook that is set later replaces it: errors then have no
/// origin, and panics are printed again.
fn install() {
    static INSTALLED: Once = Once::new();
    // Hooks can't be changed by a thread that unwinds.
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

/// Notes a panic of a thread that records, and whether that is enough. It is not where an earlier one was not taken yet:
/// this may be the second of two panics at once, which ends the process.
fn note(info: &PanicHookInfo<'_>) -> bool {
    let noted = WATCHED.try_with(|recordings| {
        let mut recordings = recordings.try_borrow_mut().ok()?;
        let slot = recordings.last_mut()?;
        let is_first = slot.is_none();
        *slot = Some(Caught {
            message: info.payload_as_str().map(str::to_owned),
            origin: ErrorOrigin(Some(Arc::new(Panic {
                backtrace: Backtrace::force_capture(),
                location: info.location().map(ToString::to_string),
                found: OnceLock::new(),
            }))),
        });
        Some(is_first)
    });
    noted.ok().flatten().unwrap_or(false) && cfg!(panic = "unwind")
}
