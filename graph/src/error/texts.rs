//! Lists in errors.

use std::fmt::Display;

/// Joins texts by commas.
pub fn joined<T: ToString>(items: impl IntoIterator<Item = T>) -> String {
    let texts = items.into_iter().map(|item| item.to_string());
    texts.collect::<Vec<_>>().join(", ")
}

/// Puts names in backquotes, and joins them by commas.
pub fn quoted(names: &[impl Display]) -> String {
    joined(names.iter().map(|name| format!("`{name}`")))
}
