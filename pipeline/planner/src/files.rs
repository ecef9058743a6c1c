//! Machine, plan and profile files.

use std::fs;
use std::io;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::FileError;

/// Writes a file of a kind.
pub(crate) fn write(kind: &'static str, path: &Path, text: &str) -> Result<(), FileError> {
    fs::write(path, text).map_err(|source| failed(kind, path, "written", source))
}

/// Reads a file of a kind.
pub(crate) fn read(kind: &'static str, path: &Path) -> Result<String, FileError> {
    fs::read_to_string(path).map_err(|source| failed(kind, path, "read", source))
}

/// Returns a text without the byte order mark that some editors write before it.
pub fn without_mark(text: &str) -> &str {
    text.strip_prefix('\u{feff}').unwrap_or(text)
}

/// Reads the version in the JSON of a file. It is checked before the other fields, which another version may lack.
///
/// # Errors
///
/// When the text is not JSON, or has no version.
pub fn version(text: &str) -> Result<u32, serde_json::Error> {
    #[derive(Deserialize)]
    struct Versioned {
        version: u32,
    }
    let Versioned { version } = serde_json::from_str(text)?;
    Ok(version)
}

/// Returns the text of a file: JSON in lines, for people and diffs. The value's keys must be strings.
pub fn json(value: &impl Serialize) -> String {
    let text = serde_json::to_string_pretty(value);
    text.expect("the value has string keys and no floats") + "\n"
}

fn failed(kind: &'static str, path: &Path, action: &'static str, source: io::Error) -> FileError {
    FileError {
        kind,
        path: path.to_owned(),
        action,
        source,
    }
}
