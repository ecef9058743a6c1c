//! Values of the recordings that run on a thread.

use std::cell::RefCell;
use std::thread::LocalKey;

/// The values of the recordings of a thread, the innermost last. A recording runs its closure on the calling thread.
pub(crate) type Scopes<T> = LocalKey<RefCell<Vec<T>>>;

/// The value of one recording; dropped with it, also while a panic unwinds.
pub(crate) struct Scope<T: 'static> {
    scopes: &'static Scopes<T>,
    depth: usize,
}

impl<T: Default> Scope<T> {
    pub(crate) fn begin(scopes: &'static Scopes<T>) -> Self {
        let depth = scopes.with_borrow_mut(|values| {
            values.push(T::default());
            values.len()
        });
        Self { scopes, depth }
    }

    /// Takes the value of this recording, without the values of nested recordings.
    pub(crate) fn take(&self) -> T {
        let value = |values: &mut Vec<T>| values.get_mut(self.depth - 1).map(std::mem::take);
        self.scopes.with_borrow_mut(value).unwrap_or_default()
    }
}

impl<T> Drop for Scope<T> {
    fn drop(&mut self) {
        self.scopes
            .with_borrow_mut(|values| values.truncate(self.depth - 1));
    }
}
