//! What the colours mean.

use std::collections::BTreeSet;
use std::fmt::{self, Write};

use super::layout::{LEGEND_HEIGHT, LETTER, MARGIN, Px, Xml};
use super::style::Class;
use crate::draw::palette::{SHADES, Shade};

/// Side of a square of colour, and from its left edge to the text.
const SQUARE: f64 = 12.0;
const TEXT: f64 = 17.0;
/// Between two entries.
const GAP: f64 = 20.0;

/// One entry: a colour, or the line of the curves, and what it stands for.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Entry {
    class: Option<Class>,
    text: String,
}

/// Rows of entries, each with its left edge.
#[derive(Debug)]
pub(super) struct Legend(Vec<Vec<(f64, Entry)>>);

impl Legend {
    /// The entries for the colours of a picture, broken into rows that end before `right`.
    pub(super) fn new(
        classes: &BTreeSet<Class>,
        most_chunks: usize,
        curves: bool,
        right: f64,
    ) -> Self {
        let mut rows: Vec<Vec<(f64, Entry)>> = Vec::new();
        let mut x = MARGIN;
        for entry in entries(classes, most_chunks, curves) {
            let width = TEXT + entry.text.chars().count() as f64 * LETTER * 11.0;
            if rows.is_empty() || x + width > right {
                rows.push(Vec::new());
                x = MARGIN;
            }
            if let Some(row) = rows.last_mut() {
                row.push((x, entry));
            }
            x += width + GAP;
        }
        Self(rows)
    }

    pub(super) fn rows(&self) -> usize {
        self.0.len()
    }

    pub(super) fn write(&self, out: &mut String, top: f64) -> fmt::Result {
        for (row, entries) in self.0.iter().enumerate() {
            let top = top + row as f64 * LEGEND_HEIGHT;
            let line = Px(top + 10.0);
            for (left, entry) in entries {
                let (x, y, text) = (Px(*left), Px(top), Px(left + TEXT));
                match entry.class {
                    Some(class) => writeln!(
                        out,
                        "<path class=\"{class}\" d=\"M{x} {y}h{SQUARE}v{SQUARE}h-{SQUARE}z\"/>"
                    )?,
                    None => writeln!(out, "<path class=\"line\" d=\"M{x} {line}h4v-6h4v3h4\"/>")?,
                }
                writeln!(
                    out,
                    "<text x=\"{text}\" y=\"{line}\">{}</text>",
                    Xml(&entry.text)
                )?;
            }
        }
        Ok(())
    }
}

/// Each kind in its full colour, then the shades of a rank's higher stages, then the curves.
fn entries(classes: &BTreeSet<Class>, most_chunks: usize, curves: bool) -> Vec<Entry> {
    let full = Shade::of_chunk(0);
    let kinds = classes.iter().filter(|class| class.1 == full);
    let mut entries: Vec<Entry> = kinds
        .map(|class| Entry {
            class: Some(*class),
            text: class.0.word().to_owned(),
        })
        .collect();
    if let Some(Class(kind, _)) = classes.first() {
        let ordinals = ["first", "second", "third", "fourth"];
        let higher = ordinals.into_iter().enumerate().skip(1);
        for (chunk, ordinal) in higher.take(most_chunks.clamp(1, SHADES) - 1) {
            let class = Class(*kind, Shade::of_chunk(chunk));
            // A shade that no box has is not in the style sheet.
            if classes.contains(&class) {
                entries.push(Entry {
                    class: Some(class),
                    text: format!("{ordinal} stage of a rank"),
                });
            }
        }
    }
    if curves {
        entries.push(Entry {
            class: None,
            text: "memory".to_owned(),
        });
    }
    entries
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::draw::palette::Kind;

    fn check(
        classes: &[(Kind, usize)],
        chunks: usize,
        curves: bool,
        right: f64,
        expected: &[&str],
    ) {
        let classes = classes
            .iter()
            .map(|(kind, chunk)| Class(*kind, Shade::of_chunk(*chunk)))
            .collect();
        let rows = Legend::new(&classes, chunks, curves, right).0.into_iter();
        let found: Vec<String> = rows
            .map(|row| {
                let texts = row.into_iter().map(|(_, entry)| entry.text);
                texts.collect::<Vec<_>>().join(", ")
            })
            .collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn a_legend_names_what_is_there_and_breaks() {
        use Kind::{Backward, Forward, Send};
        check(&[], 0, false, 600.0, &[]);
        let two = [(Forward, 0), (Send, 0)];
        check(&two, 1, true, 600.0, &["forward, send, memory"]);
        let shades = [(Forward, 0), (Forward, 1), (Backward, 0), (Backward, 1)];
        check(
            &shades,
            2,
            false,
            600.0,
            &["forward, backward, second stage of a rank"],
        );
        check(
            &shades,
            2,
            false,
            200.0,
            &["forward, backward", "second stage of a rank"],
        );
    }
}
