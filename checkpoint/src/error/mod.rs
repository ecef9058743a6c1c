//! Errors of this crate: [`SaveError`], [`LoadError`] and the errors that they wrap.

mod format;
mod load;
mod save;
mod store;

pub use format::{FormatError, HeaderError, LayoutError};
pub(crate) use load::class_of_io;
pub use load::{ErrorClass, LoadError};
pub use save::SaveError;
pub use store::StoreError;

/// Truncates a text of unknown length, to keep messages readable.
pub(crate) fn short(text: &str) -> String {
    const MOST: usize = 80;
    match text.char_indices().nth(MOST) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text.to_owned(),
    }
}

/// Returns the first dimensions of a shape.
pub(crate) fn short_shape(shape: &[u64]) -> Vec<u64> {
    shape.iter().copied().take(33).collect()
}
