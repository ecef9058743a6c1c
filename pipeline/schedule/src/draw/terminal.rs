//! A timeline as text: one row per rank, time to the right.

use std::collections::BTreeSet;

use tinderbox_ids::text::wrapped;

use super::escape::visible;
use super::palette::Kind;
use super::picture::{FIGURES, Picture, Piece, Row, marks, meanings};
use crate::simulate::Timeline;

/// Bounds of the width: labels and figures need the minimum, and the maximum limits the memory.
const WIDTHS: (usize, usize) = (40, 4096);
/// Widths of the figures: `100.0 %`, `100.5` micro-batches, `1023 MiB`, each with a space before it.
const FIGURE_WIDTHS: [usize; FIGURES.len()] = [8, 6, 10];

/// Draws a timeline as text: a header, a row per rank, a legend with the meaning of the figures. Every line ends with a line
/// break.
///
/// `width` is the maximum columns of a line; less than 40 counts as 40. With `color`, actions are coloured by escape
/// sequences for 256 colours. The caller decides whether the terminal and `NO_COLOR` allow it.
///
/// An action is its letter and micro-batch, such as `F3`, followed by `─` over its time; an overlapped
/// pair is `F3&B1`. The letters of a rank's second stage, and of every second one after it, are lower case.
/// If an action is too narrow for its micro-batch, only the letter is shown. If actions are narrower
/// than a column, kinds share the columns in proportion to their time, and a line below has the number of
/// actions that are not shown. `·` is idle time.
///
/// Next to each row are the rank's idle time as a fraction of the step, its peak, which is the maximum number of micro-batches
/// that it held at a time, and, if the costs are in bytes, the maximum of its bytes. Time and memory are linear in the number
/// of actions and the width.
pub fn terminal(timeline: &Timeline, width: usize, color: bool) -> String {
    let picture = Picture::of(timeline);
    let width = width.clamp(WIDTHS.0, WIDTHS.1);
    let shown = if picture.has_bytes { 3 } else { 2 };
    let last_rank = timeline.ranks.len().saturating_sub(1).to_string();
    let label_width = last_rank.len().max("rank".len());
    // Two strokes and a space separate the label, the columns and the figures.
    let beside = label_width + 3 + FIGURE_WIDTHS[..shown].iter().sum::<usize>();
    let count = picture.columns(width.saturating_sub(beside));
    let figures = |texts: [String; FIGURES.len()]| -> String {
        let texts = texts.iter().zip(FIGURE_WIDTHS).take(shown);
        let padded = texts.map(|(text, width)| format!("{text:>width$}"));
        padded.collect()
    };

    let mut parts = vec![visible(&timeline.name).into_owned()];
    parts.extend(picture.summary());
    let mut lines = flow(&parts, width);
    let axis = axis(&picture, count);
    let headings = figures(FIGURES.map(str::to_owned));
    let (name, axis_width) = ("rank", count + 1);
    lines.push(format!(
        "{name:>label_width$}  {axis:<axis_width$}{headings}"
    ));
    let mut hidden = 0;
    for (rank, row) in picture.rows.iter().enumerate() {
        let (cells, missing) = cells(row, picture.length, count, color);
        let figures = figures(row.figures());
        lines.push(format!("{rank:>label_width$} │{cells}│{figures}"));
        hidden += missing;
    }
    lines.extend(flow(&legend(&picture), width));
    if hidden > 0 {
        let are = if hidden == 1 { " is" } else { "s are" };
        let note = format!("{hidden} action{are} too short for a column");
        let rule = "kinds share columns by their time".to_owned();
        lines.extend(flow(&[note, rule], width));
    }
    for meaning in meanings(picture.has_bytes) {
        lines.extend(wrapped(meaning.split(' '), " ", width));
    }
    let lines = lines.iter().flat_map(|line| [line.trim_end(), "\n"]);
    lines.collect()
}

/// Returns round marks, each at the column of its time. Labels have two spaces between them and do not reach the
/// figures.
fn axis(picture: &Picture<'_>, count: usize) -> String {
    let mut line = String::new();
    let mut width = 0;
    for (time, label) in marks(picture.length, picture.timeline.unit, count as u64 / 8) {
        let at = (time as f64 / picture.length.max(1) as f64 * count as f64) as usize;
        let letters = label.chars().count();
        if (width == 0 || width + 2 <= at) && at + letters <= count + 1 {
            line = format!("{line:<at$}{label}");
            width = at + letters;
        }
    }
    line
}

/// Returns the columns of a rank, and the number of its actions that they do not show.
fn cells(row: &Row<'_>, length: u64, count: usize, color: bool) -> (String, usize) {
    let mut text = String::new();
    let mut shown = BTreeSet::new();
    for run in row.shown(length, count).chunk_by(|a, b| a == b) {
        let Some(at) = run[0] else {
            let [on, off] = if color {
                ["\x1b[90m", "\x1b[0m"]
            } else {
                [""; 2]
            };
            text += &format!("{on}{}{off}", "·".repeat(run.len()));
            continue;
        };
        shown.insert(at);
        let pieces = &row.actions[at].pieces;
        let label = format!("{:─<1$}", label(pieces, run.len()), run.len());
        if !color {
            text += &label;
            continue;
        }
        // The backward of a pair has the second half.
        let letters: Vec<char> = label.chars().collect();
        let parts = letters.chunks(run.len().div_ceil(pieces.len()));
        for (piece, part) in pieces.iter().zip(parts) {
            let color = piece.kind.terminal_color(piece.chunk);
            let part = part.iter().collect::<String>();
            text += &format!("\x1b[48;5;{color};38;5;16m{part}\x1b[0m");
        }
    }
    (text, row.actions.len() - shown.len())
}

fn legend(picture: &Picture<'_>) -> Vec<String> {
    let kinds: BTreeSet<Kind> = picture.pieces().map(|piece| piece.kind).collect();
    let named = |kind: &Kind| format!("{} {}", kind.letter(), kind.word());
    let mut parts: Vec<String> = kinds.iter().map(named).collect();
    let mut actions = picture.rows.iter().flat_map(|row| &row.actions);
    if actions.any(|action| action.pieces.len() > 1) {
        parts.push("& overlapped".to_owned());
    }
    parts.push("· idle".to_owned());
    match picture.chunks {
        0 | 1 => {}
        2 => parts.push("small letters: a rank's second stage".to_owned()),
        _ => parts.push("small letters: 2nd, 4th, ... of a rank".to_owned()),
    }
    parts
}

/// Returns the longest form of an action's name that fits; numbers are never truncated.
fn label(pieces: &[Piece], width: usize) -> String {
    let named = |has_numbers: bool| {
        let names = pieces.iter().map(|piece| {
            let letter = match piece.chunk % 2 {
                0 => piece.kind.letter(),
                _ => piece.kind.letter().to_ascii_lowercase(),
            };
            let number = piece.micro_batch.filter(|_| has_numbers);
            number.map_or_else(|| letter.to_string(), |number| format!("{letter}{number}"))
        });
        names.collect::<Vec<String>>().join("&")
    };
    let short = if pieces.len() > 1 { "&" } else { "" };
    let mut forms = [named(true), named(false), short.to_owned()].into_iter();
    forms.find(|form| form.len() <= width).unwrap_or_default()
}

/// Joins parts, truncated to `width` characters, with two spaces between them.
fn flow(parts: &[String], width: usize) -> Vec<String> {
    let cut = parts.iter().map(|part| {
        let end = part.char_indices().nth(width);
        end.map_or(part.as_str(), |(end, _)| &part[..end])
    });
    wrapped(cut, "  ", width)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::draw::tests::samples::{
        measured_sample, one_f_one_b_sample, pairs_sample, split_sample,
    };

    fn check(timeline: &Timeline, width: usize) -> String {
        terminal(timeline, width, false)
    }

    #[test]
    fn a_short_step_shows_every_action() {
        insta::assert_snapshot!(check(&one_f_one_b_sample(4, 8), 100), @r"
        1f1b  4 ranks  33 ticks  largest bubble 9 ticks (27.3 %)  idle 27.3 %
        rank  0         5         10        15        20        25        30         idle  peak
           0 │F0F1F2F3············B0──F4B1──F5B2──F6B3──F7B4──··B5──··B6──··B7──│  27.3 %   4.0
           1 │··F0F1F2········B0──F3B1──F4B2──F5B3──F6B4──F7B5──··B6──··B7──····│  27.3 %   3.0
           2 │····F0F1····B0──F2B1──F3B2──F4B3──F5B4──F6B5──F7B6──··B7──········│  27.3 %   2.0
           3 │······F0B0──F1B1──F2B2──F3B3──F4B4──F5B5──F6B6──F7B7──············│  27.3 %   1.0
        F forward  B backward  · idle
        idle: the part of the step in which a rank runs nothing
        bubble: the idle time of a rank between its first and its last action
        peak: the most micro-batches whose activations a rank holds
        ");
        insta::assert_snapshot!(check(&split_sample(), 60), @r"
        split  2 ranks  7 ticks  largest bubble 1 tick (14.3 %)
        idle 14.3 %
        rank  0         2         4         6         idle  peak
           0 │F0───F1───·····I0───W0───I1───W1───│  14.3 %   2.0
           1 │·····F0───I0───F1───I1───W0───W1───│  14.3 %   2.0
        F forward  I input gradient  W weight gradient  · idle
        idle: the part of the step in which a rank runs nothing
        bubble: the idle time of a rank between its first and its
        last action
        peak: the most micro-batches whose activations a rank holds
        ");
    }

    #[test]
    fn a_long_step_shows_kinds_and_a_note() {
        insta::assert_snapshot!(check(&one_f_one_b_sample(3, 24), 40), @r"
        1f1b  3 ranks  78 ticks
        largest bubble 6 ticks (7.7 %)
        idle 7.7 %
        rank  0           50          idle  peak
           0 │FBFBBFBBFBBFBBFBBBB│   7.7 %   3.0
           1 │FBBFBBFBBFBBFBBFBBB│   7.7 %   2.0
           2 │BFBBFBBFBBFBBFBFBB·│   7.7 %   1.0
        F forward  B backward  · idle
        88 actions are too short for a column
        kinds share columns by their time
        idle: the part of the step in which a
        rank runs nothing
        bubble: the idle time of a rank between
        its first and its last action
        peak: the most micro-batches whose
        activations a rank holds
        ");
    }

    #[test]
    fn stages_of_a_rank_and_pairs_are_distinguishable() {
        insta::assert_snapshot!(check(&pairs_sample(), 72), @r"
        pairs  2 ranks  40 ticks  largest bubble 16 ticks (40.0 %)  idle 40.0 %
        rank  0         10        20        30             idle  peak
           0 │FF·fi&─·IWfb1F·····f&Bb2·····f&Bb3····B3│  40.0 %   2.0
           1 │·FfF·iwIWfF··b1Ff&B·····b2f&B·····b3B3··│  40.0 %   2.0
        F forward  B backward  I input gradient  W weight gradient  & overlapped
        · idle  small letters: a rank's second stage
        idle: the part of the step in which a rank runs nothing
        bubble: the idle time of a rank between its first and its last action
        peak: the most micro-batches whose activations a rank holds
        ");
    }

    #[test]
    fn an_empty_timeline_is_drawn_too() {
        let mut empty = split_sample();
        empty.ranks.clear();
        empty.name = "a\u{1b}[31m\nname".to_owned();
        insta::assert_snapshot!(check(&empty, 80), @r"
        a\u{1b}[31m\nname  0 ranks  0 ticks  largest bubble 0 ticks (0.0 %)  idle 0.0 %
        rank  0    idle  peak
        · idle
        idle: the part of the step in which a rank runs nothing
        bubble: the idle time of a rank between its first and its last action
        peak: the most micro-batches whose activations a rank holds
        ");
    }

    #[test]
    fn no_line_is_too_long_and_colour_changes_nothing_else() {
        let samples = [
            one_f_one_b_sample(4, 8),
            one_f_one_b_sample(12, 40),
            pairs_sample(),
            measured_sample(),
        ];
        for (timeline, width) in samples
            .iter()
            .flat_map(|t| [0, 40, 59, 60, 97, 300].map(|w| (t, w)))
        {
            let plain = check(timeline, width);
            for line in plain.lines() {
                assert!(line.chars().count() <= width.max(40), "{width}: {line}");
            }
            let colored = terminal(timeline, width, true);
            assert_ne!(colored, plain);
            assert_eq!(without_escapes(&colored), plain, "{width}");
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
        let found = terminal(&pairs_sample(), 72, true);
        let row = found.lines().find(|line| line.contains(" 0 │")).unwrap();
        for (kind, chunk) in [(Kind::Forward, 0), (Kind::Forward, 1), (Kind::Backward, 0)] {
            let code = format!("48;5;{};", kind.terminal_color(chunk));
            assert!(row.contains(&code), "{kind:?} {chunk}: {row:?}");
        }
    }
}
