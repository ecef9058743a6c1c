//! Text with brackets: names of Rust items, and debug texts.

/// Returns the text before the bracket that closes an open one.
pub(crate) fn inside(text: &str) -> Option<&str> {
    let mut depth = 1;
    let end = text.char_indices().find(|(at, c)| {
        depth += step(text, *at, *c);
        depth == 0
    });
    end.map(|(at, _)| &text[..at])
}

/// Splits at the separators that are not inside brackets.
pub(crate) fn parts<'a>(text: &'a str, separator: &str) -> Vec<&'a str> {
    let (mut parts, mut depth, mut start) = (Vec::new(), 0, 0);
    for (at, c) in text.char_indices() {
        depth += step(text, at, c);
        if depth == 0 && at >= start && text[at..].starts_with(separator) {
            parts.push(&text[start..at]);
            start = at + separator.len();
        }
    }
    parts.push(&text[start..]);
    parts
}

/// Returns by how much a character changes the nesting depth; the `>` of an arrow does not.
fn step(text: &str, at: usize, c: char) -> i32 {
    match c {
        '<' | '(' | '[' | '{' => 1,
        '>' if text[..at].ends_with('-') => 0,
        '>' | ')' | ']' | '}' => -1,
        _ => 0,
    }
}
