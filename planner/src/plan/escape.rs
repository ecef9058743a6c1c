//! Names of a file as harmless text: plans come from anywhere, and modules may be called anything.

use std::borrow::Cow;
use std::fmt;

/// Whether a character does something instead of being seen: controls that a terminal obeys, and marks
/// that turn the direction of the text that follows, so that a name looks like another.
fn is_hidden(char: char) -> bool {
    let turns =
        matches!(char, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    char.is_control() || turns
}

/// A text without hidden characters: `\u{1b}` stands for one.
pub(super) fn visible(text: &str) -> Cow<'_, str> {
    if !text.contains(is_hidden) {
        return text.into();
    }
    let escape = |c: char| match is_hidden(c) {
        true => c.escape_default().collect(),
        false => c.to_string(),
    };
    text.chars().map(escape).collect::<String>().into()
}

/// Text as HTML takes it, between tags and in quoted attributes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Html<'a>(pub(super) &'a str);

impl fmt::Display for Html<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rest = self.0;
        while let Some(at) =
            rest.find(|c: char| matches!(c, '&' | '<' | '>' | '"' | '\'') || is_hidden(c))
        {
            f.write_str(&rest[..at])?;
            let special = rest[at..].chars().next().unwrap_or_default();
            f.write_str(match special {
                '&' => "&amp;",
                '<' => "&lt;",
                '>' => "&gt;",
                '"' => "&quot;",
                '\'' => "&#39;",
                _ => "\u{fffd}",
            })?;
            rest = &rest[at + special.len_utf8()..];
        }
        f.write_str(rest)
    }
}

/// Text inside a quoted string of Graphviz, which reads `\` and the entities of HTML there.
#[derive(Debug, Clone, Copy)]
pub(super) struct Dot<'a>(pub(super) &'a str);

impl fmt::Display for Dot<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for char in self.0.chars() {
            match char {
                '"' => f.write_str("\\\"")?,
                '\\' => f.write_str("\\\\")?,
                '&' => f.write_str("&amp;")?,
                char if is_hidden(char) => f.write_str("\u{fffd}")?,
                char => write!(f, "{char}")?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_cannot_leave_their_text() {
        let name = "a<b> & \"c\" 'd'\\\u{1b}[0m\né\u{202e}";
        assert_eq!(visible(name), "a<b> & \"c\" 'd'\\\\u{1b}[0m\\né\\u{202e}");
        assert_eq!(visible("größe"), "größe");
        assert_eq!(
            Html(name).to_string(),
            "a&lt;b&gt; &amp; &quot;c&quot; &#39;d&#39;\\\u{fffd}[0m\u{fffd}é\u{fffd}"
        );
        assert_eq!(
            Dot(name).to_string(),
            "a<b> &amp; \\\"c\\\" 'd'\\\\\u{fffd}[0m\u{fffd}é\u{fffd}"
        );
    }
}
