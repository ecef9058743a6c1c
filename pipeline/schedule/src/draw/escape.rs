//! Escaping of names: timelines and plans may be read from any file, and a name may be any text.

use std::borrow::Cow;

/// Returns whether a character is a control and not printable: terminal controls, marks that change the direction
/// of the text after them, and the two characters that XML does not allow.
fn is_hidden(char: char) -> bool {
    char.is_control()
        || matches!(char, '\u{200e}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
        || matches!(char, '\u{fffe}'..='\u{ffff}')
}

/// Returns the text for a terminal: hidden characters are written as `\u{1b}`.
pub fn visible(text: &str) -> Cow<'_, str> {
    if !text.contains(is_hidden) {
        return text.into();
    }
    let escape = |char: char| match is_hidden(char) {
        true => char.escape_default().to_string(),
        false => char.to_string(),
    };
    text.chars().map(escape).collect::<String>().into()
}

/// Returns the text for XML, between tags and in quoted attributes.
pub(super) fn xml(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for char in text.chars() {
        match char {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            _ if is_hidden(char) => out.push('\u{fffd}'),
            _ => out.push(char),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_cannot_leave_their_text() {
        let name = "a<b> & \"c\" 'd'\\\u{1b}[0m\né\u{202e}\u{ffff}";
        assert_eq!(
            visible(name),
            "a<b> & \"c\" 'd'\\\\u{1b}[0m\\né\\u{202e}\\u{ffff}"
        );
        assert_eq!(visible("größe"), "größe");
        assert_eq!(
            xml(name),
            "a&lt;b&gt; &amp; &quot;c&quot; &#39;d&#39;\\\u{fffd}[0m\u{fffd}é\u{fffd}\u{fffd}"
        );
    }
}
