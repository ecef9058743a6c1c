//! Lines and text files of the command line.

use std::borrow::Cow;
use std::fs;
use std::io::{self, Write};
use std::path::Path;

use anyhow::{Context, bail, ensure};

// Tensor names can contain any characters.
pub(crate) use tinderbox_schedule::draw::escape::visible;

/// Reads a text file, or standard input for `-`.
pub(crate) fn read_text(path: &Path) -> anyhow::Result<String> {
    let text = match path.to_str() {
        Some("-") => io::read_to_string(io::stdin()),
        _ => fs::read_to_string(path),
    };
    match text {
        Err(error) if error.kind() == io::ErrorKind::InvalidData => {
            bail!("{} is not a text file", name_of(path))
        }
        text => text.with_context(|| format!("{} can't be read", name_of(path))),
    }
}

/// Returns an error if both files of a comparison are standard input.
pub(crate) fn one_input(files: [&Path; 2]) -> anyhow::Result<()> {
    let is_twice = files == [Path::new("-"); 2];
    ensure!(
        !is_twice,
        "only one of the files can be read from standard input"
    );
    Ok(())
}

/// Returns the name of a text file for messages.
pub(crate) fn name_of(path: &Path) -> Cow<'_, str> {
    match path.to_str() {
        Some("-") => "standard input".into(),
        _ => path.to_string_lossy(),
    }
}

/// Joins the lines of a text, up to the first one that `is_kept` rejects.
pub(crate) fn joined_while(text: &str, is_kept: impl Fn(&str) -> bool) -> String {
    let lines = text.lines().map(str::trim).take_while(|line| is_kept(line));
    let lines = lines.filter(|line| !line.is_empty());
    lines.collect::<Vec<_>>().join(" ")
}

/// Formats a text on one line.
pub(crate) fn one_line(text: &str) -> String {
    visible(&joined_while(text, |_| true)).into_owned()
}

/// Prints a line such as `error: ...` to standard error, in one write, so that lines of processes do not mix.
pub(crate) fn say(kind: &str, text: &str) {
    let line = format!("{kind}: {}\n", one_line(text));
    // A failure to write to standard error can't be reported.
    let _ = io::stderr().write_all(line.as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_terminal_obeys_no_name() {
        for (text, expected) in [
            ("blocks.0.weight", "blocks.0.weight"),
            ("größe", "größe"),
            ("a\x1b[2Jb", "a\\u{1b}[2Jb"),
            ("a\nb", "a\\nb"),
        ] {
            assert_eq!(visible(text), expected);
        }
        assert_eq!(one_line("two\n  lines\x07"), "two lines\\u{7}");
    }
}
