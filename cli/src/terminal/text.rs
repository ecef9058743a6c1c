//! Formatting and printing of single lines.

use std::{
    borrow::Cow,
    fmt,
    io::Write,
    path::{Path, PathBuf},
};

use serde::{Serialize, Serializer};

// Tensor names can contain any characters.
pub(crate) use tinderbox_schedule::draw::escape::visible;

/// Formats a text on one line.
pub(crate) fn one_line(text: &str) -> String {
    let lines: Vec<&str> = text
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty())
        .collect();
    visible(&lines.join(" ")).into_owned()
}

/// A path in an answer, as text and in JSON: what is not UTF-8 is replaced by U+FFFD. Serde's own form of a path fails then, after
/// the work is done.
#[derive(Clone, Debug)]
pub(crate) struct ShownPath(PathBuf);

impl From<&Path> for ShownPath {
    fn from(path: &Path) -> Self {
        Self(path.to_owned())
    }
}

impl fmt::Display for ShownPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0.display())
    }
}

impl Serialize for ShownPath {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// Prints a line such as `error: ...` to standard error.
pub(crate) fn say(kind: &str, text: &str) {
    // A failure to write to standard error can't be reported.
    let _ = writeln!(std::io::stderr(), "{kind}: {}", one_line(text));
}

/// Prints an error with its sources.
pub(crate) fn say_error(error: &anyhow::Error) {
    say("error", &format!("{error:#}"));
}

/// Shortens a name to at most `width` characters (at least 5) by replacing its middle with `...`.
pub(super) fn shorten(name: &str, width: usize) -> Cow<'_, str> {
    let count = name.chars().count();
    if count <= width {
        return name.into();
    }
    let kept = width.max(5) - 3;
    // The end is longer, because it contains the field names of modules.
    let first = kept / 2;
    let last = kept - first;
    let head = name.chars().take(first);
    let tail = name.chars().skip(count - last);
    head.chain("...".chars())
        .chain(tail)
        .collect::<String>()
        .into()
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
