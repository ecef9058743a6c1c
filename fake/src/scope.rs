//! The recordings that run on a thread: the marks and the last panic of each.

use std::cell::RefCell;
use std::panic::PanicHookInfo;
use std::sync::Once;

use burn_ir::TensorId;

use crate::ErrorOrigin;

thread_local! {
    /// The notes of the recordings, the innermost last. A recording runs its closure on the calling thread, and neither the
    /// recorded code nor a panic hook has a parameter for them.
    static RECORDINGS: RefCell<Vec<Notes>> = const { RefCell::new(Vec::new()) };
}

#[derive(Default)]
struct Notes {
    marks: Vec<TensorId>,
    panic: ErrorOrigin,
}

/// The notes of one recording, whose panics are noted instead of printed. Ends when dropped, also while a panic unwinds.
pub(crate) struct Scope {
    depth: usize,
}

impl Scope {
    pub(crate) fn begin() -> Self {
        install();
        let depth = RECORDINGS.with_borrow_mut(|all| {
            all.push(Notes::default());
            all.len()
        });
        Self { depth }
    }

    /// Removes and returns a note of this recording; nested recordings have their own.
    fn take<T: Default>(&self, field: fn(&mut Notes) -> &mut T) -> T {
        let note = |notes: &mut Notes| std::mem::take(field(notes));
        let noted = RECORDINGS.with_borrow_mut(|all| all.get_mut(self.depth - 1).map(note));
        noted.unwrap_or_default()
    }

    /// Removes and returns the marked tensors, in order.
    pub(crate) fn marks(&self) -> Vec<TensorId> {
        self.take(|notes| &mut notes.marks)
    }

    /// Removes and returns the origin of the last panic.
    pub(crate) fn panic(&self) -> ErrorOrigin {
        self.take(|notes| &mut notes.panic)
    }
}

impl Drop for Scope {
    fn drop(&mut self) {
        RECORDINGS.with_borrow_mut(|all| all.truncate(self.depth - 1));
    }
}

/// Adds a mark to the innermost recording of this thread; does nothing without a recording.
pub(crate) fn add_mark(id: impl FnOnce() -> Option<TensorId>) {
    RECORDINGS.with_borrow_mut(|all| {
        if let Some(notes) = all.last_mut() {
            notes.marks.extend(id());
        }
    });
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

/// Notes a panic of a recording thread, and returns whether the panic should stay silent. It should be printed if an
/// earlier panic was not reported yet: this may be the second of two panics at once, which aborts the process.
fn note(info: &PanicHookInfo<'_>) -> bool {
    let noted = RECORDINGS.try_with(|all| {
        let mut all = all.try_borrow_mut().ok()?;
        let notes = all.last_mut()?;
        let is_first = notes.panic.message().is_none();
        notes.panic = ErrorOrigin::of(info);
        Some(is_first)
    });
    noted.ok().flatten().unwrap_or(false) && cfg!(panic = "unwind")
}
