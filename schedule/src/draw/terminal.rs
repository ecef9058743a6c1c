//! A timeline as text: one row per rank, time to the right.

use std::collections::BTreeSet;

use super::axis::marks;
use super::cells::Columns;
use super::figures::{Figures, summary};
use super::palette::{Kind, Rgb, Shade};
use super::pieces::{Chunks, Piece};
use super::units::{bytes_text, percent_text, time_text};
use crate::simulate::{RankTimeline, TimeUnit, Timeline};

/// Narrower pictures have no room for time.
const MIN_WIDTH: usize = 40;
/// Wider ones have no terminal; it bounds the memory.
const MAX_WIDTH: usize = 4096;
/// From this width on, there is room for bytes beside the number of micro-batches.
const MIN_WIDTH_FOR_BYTES: usize = 60;
/// Widths of the figures: `100.0%`, micro-batches, `1023 MiB`, each with a space before it.
const BUBBLE_WIDTH: usize = 7;
const HELD_WIDTH: usize = 6;
const BYTES_WIDTH: usize = 10;

/// How the terminal's picture looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TerminalOptions {
    /// The most columns that a line may take; less than 40 counts as 40.
    pub width: usize,
    /// Whether kinds and stages are coloured, by escape sequences for 256 colours. Whether the
    /// terminal and `NO_COLOR` allow it is for the caller to know.
    pub color: bool,
}

impl Default for TerminalOptions {
    /// 100 columns without colour.
    fn default() -> Self {
        Self {
            width: 100,
            color: false,
        }
    }
}

/// Draws a timeline as text: a header, a row per rank, a legend. Every line ends with a line break.
///
/// An action is its letter and micro-batch, such as `F3`, drawn out with `─` over its time; an
/// overlapped pair is `F3&B1`. A rank's second stage, and every second one after it, has small
/// letters. Where an action is too narrow for its micro-batch, the letter stands alone. Where actions
/// are narrower than a column, kinds share the columns in proportion to their time, and a line below says
/// how many actions this hides. `·` is idle time.
///
/// Beside each row stand the rank's bubble as a share of the step, the most micro-batches that it
/// held at a time and, where the costs are in bytes, its peak bytes. Time and memory are linear in
/// the number of actions and the width.
#[must_use]
pub fn terminal(timeline: &Timeline, options: &TerminalOptions) -> String {
    Picture::of(timeline, options).text()
}

/// A timeline and how its picture is laid out.
struct Picture<'a> {
    timeline: &'a Timeline,
    chunks: Chunks,
    figures: Vec<Figures>,
    columns: Columns,
    width: usize,
    color: bool,
    label_width: usize,
    show_held: bool,
    show_bytes: bool,
}

impl<'a> Picture<'a> {
    fn of(timeline: &'a Timeline, options: &TerminalOptions) -> Self {
        let width = options.width.clamp(MIN_WIDTH, MAX_WIDTH);
        let figures = Figures::of(timeline);
        let show_bytes = Figures::say_bytes(&figures);
        let show_held = !show_bytes || width >= MIN_WIDTH_FOR_BYTES;
        let last = timeline.ranks.len().saturating_sub(1);
        let label_width = last.to_string().len().max("rank".len());
        // Two strokes and a space between the label, the columns and the figures.
        let mut taken = label_width + 3 + BUBBLE_WIDTH;
        taken += if show_held { HELD_WIDTH } else { 0 };
        taken += if show_bytes { BYTES_WIDTH } else { 0 };
        Self {
            timeline,
            chunks: Chunks::of(timeline),
            figures,
            columns: Columns::fit(timeline, width.saturating_sub(taken)),
            width,
            color: options.color,
            label_width,
            show_held,
            show_bytes,
        }
    }

    fn text(&self) -> String {
        let mut lines = self.header();
        lines.push(self.axis());
        let mut hidden = 0;
        let mut kinds = BTreeSet::new();
        let mut pairs = false;
        for (rank, list) in self.timeline.ranks.iter().enumerate() {
            let spans = list.spans.iter();
            for pieces in spans.map(|span| self.chunks.pieces(span).collect::<Vec<_>>()) {
                kinds.extend(pieces.iter().map(|piece| piece.kind));
                pairs |= pieces.len() > 1;
            }
            let (row, missing) = self.row(rank, list);
            lines.push(row);
            hidden += missing;
        }
        lines.extend(self.legend(&kinds, pairs));
        if hidden > 0 {
            let plural = if hidden == 1 { " is" } else { "s are" };
            let note = format!("{hidden} action{plural} too short for a column");
            lines.extend(flow(
                &[note, "kinds share columns by their time".to_owned()],
                self.width,
            ));
        }
        lines
            .iter()
            .flat_map(|line| [line.trim_end(), "\n"])
            .collect()
    }

    fn header(&self) -> Vec<String> {
        let mut parts = vec![harmless(&self.timeline.name)];
        parts.extend(summary(self.timeline));
        let unit = self.timeline.unit;
        let per_tick = self.columns.count() as u64 / self.columns.length().max(1);
        if unit == TimeUnit::Ticks && per_tick > 1 {
            parts.push(format!("1 tick = {per_tick} columns"));
        } else {
            parts.push(format!(
                "1 column = {}",
                time_text(self.columns.time(), unit)
            ));
        }
        flow(&parts, self.width)
    }

    /// Round marks over the rows, each label at the column in which its moment lies, and the names of
    /// the figures.
    fn axis(&self) -> String {
        let count = self.columns.count();
        let mut most = count / 8;
        let line = loop {
            let mut line = String::new();
            let mut fits = true;
            for mark in marks(self.columns.length(), self.timeline.unit, most) {
                let at = self.columns.at(mark.time);
                let taken = line.chars().count();
                // The first stands at zero; between labels there are four spaces at least.
                fits &= taken == 0 || taken + 4 <= at;
                // A label may stand over the end of the time, but not over the figures.
                if at + mark.label.chars().count() <= count + 1 {
                    line.push_str(&" ".repeat(at.saturating_sub(taken)));
                    line.push_str(&mark.label);
                }
            }
            if fits || most <= 1 {
                break line;
            }
            most -= 1;
        };
        let mut text = format!("{:>1$}  {line:<2$}", "rank", self.label_width, count + 1);
        text.push_str(&format!("{:>BUBBLE_WIDTH$}", "bubble"));
        if self.show_held {
            text.push_str(&format!("{:>HELD_WIDTH$}", "held"));
        }
        if self.show_bytes {
            text.push_str(&format!("{:>BYTES_WIDTH$}", "peak"));
        }
        text
    }

    /// A rank's row, and how many of its actions show nowhere in it.
    fn row(&self, rank: usize, list: &RankTimeline) -> (String, usize) {
        let count = self.chunks.drawn(list).count();
        let cells = self.columns.row(self.chunks.drawn(list));
        let mut text = format!("{rank:>0$} │", self.label_width);
        let mut shown = BTreeSet::new();
        for run in cells.chunk_by(|a, b| a == b) {
            let span = run[0].and_then(|position| list.spans.get(position).map(|s| (position, s)));
            match span {
                None => text.push_str(&self.idle(run.len())),
                Some((position, span)) => {
                    shown.insert(position);
                    let pieces: Vec<Piece> = self.chunks.pieces(span).collect();
                    text.push_str(&self.action(&pieces, run.len()));
                }
            }
        }
        text.push('│');
        if let Some(figures) = self.figures.get(rank) {
            text.push_str(&format!("{:>BUBBLE_WIDTH$}", percent_text(figures.bubble)));
            if self.show_held {
                text.push_str(&format!("{:>HELD_WIDTH$}", figures.held));
            }
            if self.show_bytes {
                text.push_str(&format!("{:>BYTES_WIDTH$}", bytes_text(figures.peak_bytes)));
            }
        }
        (text, count - shown.len())
    }

    fn idle(&self, width: usize) -> String {
        let dots = "·".repeat(width);
        if self.color {
            format!("\x1b[38;5;244m{dots}\x1b[0m")
        } else {
            dots
        }
    }

    /// An action over its columns; the backward of a pair takes the second half.
    fn action(&self, pieces: &[Piece], width: usize) -> String {
        let label = label(pieces, width);
        if !self.color {
            return format!("{label:─<width$}");
        }
        let label: Vec<char> = format!("{label:<width$}").chars().collect();
        let (left, right) = label.split_at(match pieces.len() {
            2.. => width.div_ceil(2),
            _ => width,
        });
        let halves = pieces.iter().zip([left, right]);
        halves
            .map(|(piece, text)| paint(piece.kind, piece.shade(), text.iter().collect()))
            .collect()
    }

    fn legend(&self, kinds: &BTreeSet<Kind>, pairs: bool) -> Vec<String> {
        let mut parts: Vec<String> = kinds
            .iter()
            .map(|kind| format!("{} {}", kind.letter(), kind.word()))
            .collect();
        if pairs {
            parts.push("& overlapped".to_owned());
        }
        parts.push("· idle".to_owned());
        match self.chunks.most() {
            0 | 1 => {}
            2 => parts.push("small letters: a rank's second stage".to_owned()),
            _ => parts.push("small letters: 2nd, 4th, ... of a rank".to_owned()),
        }
        let lines = flow(&parts, self.width);
        if !self.color {
            return lines;
        }
        // Colour has no width, so it is put in when the lines are broken.
        let paint_line = |line: &String| {
            kinds.iter().fold(line.clone(), |line, kind| {
                let plain = format!("{} {}", kind.letter(), kind.word());
                let letter = paint(*kind, Shade::of_chunk(0), kind.letter().to_string());
                line.replace(&plain, &format!("{letter} {}", kind.word()))
            })
        };
        lines.iter().map(paint_line).collect()
    }
}

/// The longest form of an action's name that fits; no number is ever cut.
fn label(pieces: &[Piece], width: usize) -> String {
    let letter = |piece: &Piece| match piece.chunk % 2 {
        0 => piece.kind.letter(),
        _ => piece.kind.letter().to_ascii_lowercase(),
    };
    let named = |piece: &Piece| {
        let number = piece.micro_batch.map_or(String::new(), |k| k.to_string());
        format!("{}{number}", letter(piece))
    };
    let forms = match pieces {
        [] => return String::new(),
        [one] => vec![named(one), letter(one).to_string()],
        [forward, backward, ..] => vec![
            format!("{}&{}", named(forward), named(backward)),
            format!("{}&{}", letter(forward), letter(backward)),
            "&".to_owned(),
        ],
    };
    let mut fitting = forms.into_iter().filter(|form| form.len() <= width);
    fitting.next().unwrap_or_default()
}

/// Text on the colour of its kind.
fn paint(kind: Kind, shade: Shade, text: String) -> String {
    let cell = kind.cell(shade);
    let ink = if Rgb::of_terminal(cell).wants_white() {
        231
    } else {
        16
    };
    format!("\x1b[48;5;{cell};38;5;{ink}m{text}\x1b[0m")
}

/// Parts with two spaces between them, broken into lines that fit.
fn flow(parts: &[String], width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for part in parts {
        let part: String = part.chars().take(width).collect();
        match lines.last_mut() {
            Some(line) if line.chars().count() + 2 + part.chars().count() <= width => {
                line.push_str("  ");
                line.push_str(&part);
            }
            _ => lines.push(part),
        }
    }
    lines
}

/// A name without line breaks and without escape sequences that would speak to the terminal.
fn harmless(name: &str) -> String {
    let harmless = |char: char| if char.is_control() { '\u{fffd}' } else { char };
    name.chars().map(harmless).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::draw::samples::{one_f_one_b_sample, pairs_sample, split_sample};

    fn check(timeline: &Timeline, width: usize) -> String {
        let color = false;
        terminal(timeline, &TerminalOptions { width, color })
    }

    #[test]
    fn a_short_step_shows_every_action() {
        insta::assert_snapshot!(check(&one_f_one_b_sample(4, 8), 100), @r#"
        1f1b  4 ranks  33 ticks  largest bubble 9 ticks (27.3%)  idle 27.3%  1 tick = 2 columns
        rank  0         5         10        15        20        25        30      bubble  held
           0 │F0F1F2F3············B0──F4B1──F5B2──F6B3──F7B4──··B5──··B6──··B7──│  27.3%     4
           1 │··F0F1F2········B0──F3B1──F4B2──F5B3──F6B4──F7B5──··B6──··B7──····│  18.2%     3
           2 │····F0F1····B0──F2B1──F3B2──F4B3──F5B4──F6B5──F7B6──··B7──········│   9.1%     2
           3 │······F0B0──F1B1──F2B2──F3B3──F4B4──F5B5──F6B6──F7B7──············│   0.0%     1
        F forward  B backward  · idle
        "#);
        insta::assert_snapshot!(check(&split_sample(), 60), @r#"
        split  2 ranks  7 ticks  largest bubble 1 tick (14.3%)
        idle 14.3%  1 tick = 5 columns
        rank  0         2         4         6      bubble  held
           0 │F0───F1───·····I0───W0───I1───W1───│  14.3%     2
           1 │·····F0───I0───F1───I1───W0───W1───│   0.0%     2
        F forward  I input gradient  W weight gradient  · idle
        "#);
    }

    #[test]
    fn a_long_step_shows_kinds_and_says_so() {
        insta::assert_snapshot!(check(&one_f_one_b_sample(3, 24), 40), @r#"
        1f1b  3 ranks  78 ticks
        largest bubble 6 ticks (7.7%)  idle 7.7%
        1 column = 3.9 ticks
        rank  0           50        bubble  held
           0 │F·BBFBBFBBFBBFBBFBBB│   7.7%     3
           1 │FBBFBBFBBFBBFBBFBBFB│   3.8%     2
           2 │FBBFBBFBBFBBFBBBFBB·│   0.0%     1
        F forward  B backward  · idle
        86 actions are too short for a column
        kinds share columns by their time
        "#);
    }

    #[test]
    fn stages_of_a_rank_and_pairs_are_told_apart() {
        insta::assert_snapshot!(check(&pairs_sample(), 72), @r#"
        pairs  2 ranks  40 ticks  largest bubble 16 ticks (40.0%)  idle 40.0%
        1 column = 1 tick
        rank  0         10        20        30          bubble  held
           0 │FF·fi&─·IWfb1F·····f&Bb2·····f&Bb3····B3│  40.0%     4
           1 │·FfF·iwIWfF··b1Ff&B·····b2f&B·····b3B3··│  32.5%     4
        F forward  B backward  I input gradient  W weight gradient  & overlapped
        · idle  small letters: a rank's second stage
        "#);
    }

    #[test]
    fn an_empty_timeline_is_drawn_too() {
        let mut empty = split_sample();
        empty.ranks.clear();
        empty.name = "a\u{1b}[31m\nname".to_owned();
        insta::assert_snapshot!(check(&empty, 80), @r#"
        a�[31m�name  0 ranks  0 ticks  largest bubble 0 ticks (0.0%)  idle 0.0%
        1 column = 0 ticks
        rank  0 bubble  held
        · idle
        "#);
    }

    #[test]
    fn no_line_is_too_long_and_colour_changes_nothing_else() {
        let samples = [
            one_f_one_b_sample(4, 8),
            one_f_one_b_sample(12, 40),
            pairs_sample(),
        ];
        for (timeline, width) in samples
            .iter()
            .flat_map(|t| [0, 40, 59, 60, 97, 300].map(|w| (t, w)))
        {
            let plain = check(timeline, width);
            for line in plain.lines() {
                assert!(line.chars().count() <= width.max(40), "{width}: {line}");
            }
            let color = true;
            let colored = terminal(timeline, &TerminalOptions { width, color });
            assert_ne!(colored, plain);
            // In colour an action is drawn out by its background.
            assert_eq!(
                without_escapes(&colored),
                plain.replace('─', " "),
                "{width}"
            );
        }
    }

    fn without_escapes(text: &str) -> String {
        let mut parts = text.split('\u{1b}');
        let first = parts.next().unwrap_or_default().to_owned();
        let rest = parts.map(|part| part.split_once('m').unwrap().1);
        first + &rest.collect::<String>()
    }

    #[test]
    fn a_kind_and_a_stage_have_their_colour() {
        let color = true;
        let found = terminal(&pairs_sample(), &TerminalOptions { width: 72, color });
        let row = found.lines().find(|line| line.contains(" 0 │")).unwrap();
        for (kind, chunk) in [(Kind::Forward, 0), (Kind::Forward, 1), (Kind::Backward, 0)] {
            let code = format!("48;5;{};", kind.cell(Shade::of_chunk(chunk)));
            assert!(row.contains(&code), "{kind:?} {chunk}: {row:?}");
        }
    }
}
