//! Errors of this crate: [`SaveError`] and [`LoadError`], and what they wrap.

mod format;
mod load;
mod save;

pub use format::{FormatError, HeaderError, LayoutError};
pub use load::LoadError;
pub use save::SaveError;

/// An error with its sources, on one line.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(source) = next {
        text = format!("{text}: {source}");
        next = source.source();
    }
    text
}
