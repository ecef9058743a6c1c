//! Text files of the command line.

use std::{borrow::Cow, fs, io, path::Path};

use anyhow::Context;

/// Reads a text file, or standard input for `-`.
pub(crate) fn read_text(path: &Path) -> anyhow::Result<String> {
    let text = match path.to_str() {
        Some("-") => io::read_to_string(io::stdin()),
        _ => fs::read_to_string(path),
    };
    text.with_context(|| format!("{} can't be read", name_of(path)))
}

/// Returns the name of a text file for messages.
pub(crate) fn name_of(path: &Path) -> Cow<'_, str> {
    match path.to_str() {
        Some("-") => "standard input".into(),
        _ => path.to_string_lossy(),
    }
}
