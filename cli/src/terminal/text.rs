//! Lines and text files of the command line.

use std::borrow::Cow;
use std::fs;
use std::io::{self, Write};
use std::path::Path;

use anyhow::Context;

// Tensor names can contain any characters.
pub(crate) use tinderbox_schedule::draw::escape::visible;

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

/// Prints a line such as `error: ...` to standard error.
pub(crate) fn say(kind: &str, text: &str) {
    // A failure to write to standard error can't be reported.
    let _ = writeln!(io::stderr(), "{kind}: {}", one_line(text));
}

/// Shortens a name to at most `width` characters (at least 5) by replacing its middle with `...`.
pub(super) fn shorten(name: &str, width: usize) -> Cow<'_, str> {
    let count = name.chars().count();
    if count <= width {
        return name.into();
    }
    let kept = width.max(5) - 3;
    // The end is longer, because it has the field names of modules.
    let first = kept / 2;
    let last = kept - first;
    let head = name.chars().take(first);
    let tail = name.chars().skip(count - last);
    let text: String = head.chain("...".chars()).chain(tail).collect();
    text.into()
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

    #[test]
    fn names_are_shortened_in_the_middle() {
        for (name, width, expected) in [
            ("abcdefghij", 10, "abcdefghij"),
            ("abcdefghij", 9, "abc...hij"),
            ("abcdefghij", 8, "ab...hij"),
            ("äöüäöüäöü", 5, "ä...ü"),
            ("abcdefghij", 0, "a...j"),
        ] {
            assert_eq!(shorten(name, width), expected, "{width}");
        }
    }
}
