//! Timelines as SVG: a row per rank, a box per action, one time axis.

use std::collections::{BTreeMap, BTreeSet};

use tinderbox_ids::text::wrapped;

use super::escape::xml;
use super::palette::{Kind, SHADES};
use super::picture::{FIGURES, Picture, Row, marks, meanings, time_in};
use crate::simulate::{RankTimeline, TimeUnit, Timeline};

/// Above this number of boxes a picture has neither tooltips nor micro-batches: browsers become slow,
/// and a box is less than a pixel wide.
pub(super) const MAX_DETAILED: usize = 20_000;

/// The width of a picture in pixels, figures and labels included.
const WIDTH: f64 = 1200.0;
/// Space around the picture.
const MARGIN: f64 = 24.0;
/// Widths of the figures next to the rows.
const FIGURE_WIDTHS: [f64; FIGURES.len()] = [64.0, 44.0, 74.0];
/// Height of the curve of bytes, and the space below it.
const CURVE: f64 = 16.0;
const RANK_GAP: f64 = 12.0;
/// Width of a letter of 11 pixels, in the widest of the common monospace fonts.
const LETTER: f64 = 6.8;
/// The usual font size of the label of a box in pixels, and the smallest that can be read.
const LABEL_SIZES: (f64, f64) = (10.0, 6.0);
/// Longer names are truncated.
const MAX_NAME: usize = 18;

/// The style of every picture. Fills of boxes are the same on light and on dark pages.
const STYLE: &str = include_str!("style.css");

/// Draws timelines as one SVG, 1200 pixels wide, with the names of the timelines as its title: a row per rank, a box per
/// action, one time axis.
///
/// The SVG needs no script, font or other file, and has colours for light and dark pages. A box
/// has the colour of its kind, in a shade for each of the rank's stages, its micro-batch if the largest number fits, and
/// action, start, end and duration as a tooltip. An overlapped pair is a forward above a backward.
/// Next to each row are the rank's idle time as a fraction of the step, its peak, which is the maximum number of micro-batches
/// that it held at a time, and, if the costs are in bytes, the maximum of its bytes. Below each row is the curve of its bytes,
/// with one scale for all ranks. Below all rows is the meaning of the figures.
///
/// Several timelines, such as a predicted and a measured one, have a row each for every rank, labelled
/// with the timeline's name. They share the axis of the first, so their times must have one unit.
///
/// More than 20,000 boxes have neither micro-batches nor tooltips. They are drawn in columns of a pixel,
/// which kinds share in proportion to their time, so the size of the text is bounded by the size of the picture.
/// Below that number an action has up to 300 bytes. Time and memory are linear in the number of actions.
pub fn svg(timelines: &[&Timeline]) -> String {
    svg_of_width(timelines, WIDTH)
}

/// Draws timelines as one SVG of a width in pixels.
pub(super) fn svg_of_width(timelines: &[&Timeline], width: f64) -> String {
    let pictures: Vec<Picture<'_>> = timelines.iter().map(|one| Picture::of(one)).collect();
    let plot = Plot::new(&pictures, width);
    let names = timelines.iter().map(|one| one.name.as_str());
    let title = names.collect::<Vec<_>>().join(" | ");
    // The number of letters that fit in the width.
    let fit = |size: f64| ((width - 2.0 * MARGIN) / (LETTER * size / 11.0)) as usize;
    let mut out = text("title", MARGIN, 32.0, &cut(&title, fit(16.0)));
    let mut y = 33.0;
    for picture in &pictures {
        let mut parts = picture.summary();
        if pictures.len() > 1 {
            parts.insert(0, cut(&picture.timeline.name, MAX_NAME));
        }
        y += 19.0;
        out += &text("sub muted", MARGIN, y, &cut(&parts.join(" · "), fit(12.0)));
    }
    y += 15.0;
    out += &legend(&pictures, &plot, width, &mut y);
    y += 40.0;

    let ranks = pictures.iter().map(|one| one.rows.len()).max().unwrap_or(0);
    let bottom = y + ranks as f64 * plot.pitch;
    let unit = timelines.first().map_or(TimeUnit::Ticks, |one| one.unit);
    out += &plot.axis(unit, y - 6.0, bottom);
    out += &plot.figures(FIGURES.map(str::to_owned), y - 10.0);
    for rank in 0..ranks {
        out += &plot.rank(&pictures, rank, y + rank as f64 * plot.pitch);
    }
    let mut foot = bottom + 20.0;
    let meanings = meanings(plot.figures == FIGURES.len());
    for line in wrapped(meanings, " · ", fit(9.0)) {
        foot += 13.0;
        out += &text("small muted", MARGIN, foot, &line);
    }
    let (title, height) = (xml(&title), px(foot + 14.0));
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
         viewBox=\"0 0 {width} {height}\" role=\"img\" aria-label=\"{title}\">\n<title>{title}</title>\n\
         <style>\n{STYLE}</style>\n<rect class=\"page\" width=\"{width}\" height=\"{height}\"/>\n{out}</svg>\n"
    )
}

/// The layout of times and ranks.
struct Plot {
    left: f64,
    right: f64,
    /// Height of a row of one timeline, and of all rows and the curve of a rank.
    lane: f64,
    pitch: f64,
    /// The time at the right end.
    length: u64,
    /// The bytes at the top of a curve.
    most_bytes: u64,
    is_detailed: bool,
    /// The number of digits of the largest micro-batch.
    digits: usize,
    /// The number of figures next to each row.
    figures: usize,
}

impl Plot {
    fn new(pictures: &[Picture<'_>], width: f64) -> Self {
        let (labels, lane) = match pictures.len() {
            0 | 1 => (90.0, 28.0),
            _ => (220.0, 17.0),
        };
        let has_bytes = pictures.iter().any(|picture| picture.has_bytes);
        let figures = FIGURES.len() - usize::from(!has_bytes);
        let rows = pictures.iter().flat_map(|picture| &picture.rows);
        let most_bytes = rows.map(|row| row.list.peak_bytes()).max().unwrap_or(0);
        let curve = if most_bytes > 0 { CURVE + 1.0 } else { 0.0 };
        let pieces = || pictures.iter().flat_map(Picture::pieces);
        let largest = pieces().filter_map(|piece| piece.micro_batch).max();
        Self {
            left: MARGIN + labels,
            right: width - MARGIN - FIGURE_WIDTHS[..figures].iter().sum::<f64>(),
            lane,
            pitch: (lane + 2.0) * pictures.len() as f64 + curve + RANK_GAP,
            length: pictures.iter().map(|one| one.length).max().unwrap_or(0),
            most_bytes,
            is_detailed: pieces().count() <= MAX_DETAILED,
            digits: largest.unwrap_or(0).to_string().len(),
            figures,
        }
    }

    /// Draws a rank: its name and stages, a row of each timeline with its figures, and the curves of bytes.
    fn rank(&self, pictures: &[Picture<'_>], rank: usize, top: f64) -> String {
        let mut out = text("rank", MARGIN, top + 12.0, &format!("rank {rank}"));
        let first = pictures.first().and_then(|picture| picture.rows.get(rank));
        let stages = first.map_or("", |row| &row.stages);
        let stages = cut(stages, MAX_NAME - 3);
        out += &text("small muted", MARGIN, top + 25.0, &stages);
        let base = top + self.pitch - RANK_GAP;
        let mut curves = String::new();
        for (lane, picture) in pictures.iter().enumerate() {
            let y = top + lane as f64 * (self.lane + 2.0);
            let line = y + self.lane / 2.0 + 4.0;
            let (x, width, height) = (self.left, self.right - self.left, self.lane);
            out += &format!(
                "<rect class=\"track\" x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{height}\"/>\n"
            );
            if pictures.len() > 1 {
                let name = cut(&picture.timeline.name, MAX_NAME);
                out += &text("e muted", self.left - 8.0, line, &name);
            }
            if let Some(row) = picture.rows.get(rank) {
                out += &match self.is_detailed {
                    true => self.boxes(row, picture.timeline.unit, y),
                    false => self.dense(row, y),
                };
                out += &self.figures(row.figures(), line);
                curves += &self.curve(lane, row.list, base);
            }
        }
        out + &curves
    }

    /// Draws the figures next to a row, or their names.
    fn figures(&self, texts: [String; FIGURES.len()], y: f64) -> String {
        let mut x = self.right;
        let texts = texts.iter().zip(FIGURE_WIDTHS).take(self.figures);
        let figure = |(figure, width): (&String, f64)| {
            x += width;
            text("e muted", x, y, figure)
        };
        texts.map(figure).collect()
    }

    fn x(&self, time: u64) -> f64 {
        let share = time.min(self.length) as f64 / self.length.max(1) as f64;
        px(self.left + share * (self.right - self.left))
    }

    /// Draws lines at round times, and their labels below the rows.
    fn axis(&self, unit: TimeUnit, top: f64, bottom: f64) -> String {
        let mut out = String::new();
        let most = ((self.right - self.left) / 90.0) as u64;
        for (time, label) in marks(self.length, unit, most) {
            let x = self.x(time);
            out += &format!("<path class=\"grid\" d=\"M{x} {top}V{}\"/>\n", bottom + 1.0);
            out += &text("n muted", x, bottom + 15.0, &label);
        }
        if unit == TimeUnit::Ticks {
            out += &text("e muted", self.left - 14.0, bottom + 15.0, "ticks");
        }
        out
    }

    /// Draws a group per action, with tooltip and micro-batch.
    fn boxes(&self, row: &Row<'_>, unit: TimeUnit, top: f64) -> String {
        let mut out = String::new();
        for action in &row.actions {
            let span = action.span;
            let [start, end, time] =
                [span.start, span.end, span.duration()].map(|time| time_in(time, unit));
            let name = xml(&span.action.to_string());
            out += &format!("<g><title>{name}: {start} to {end}, {time}</title>");
            let (x, right) = (self.x(span.start), self.x(span.end));
            // Boxes have a pixel between them, narrow ones less; a box is at least half a pixel wide.
            let width = px((right - x - 1.0).max((right - x) * 0.8).max(0.5));
            let height = self.lane / action.pieces.len() as f64;
            let mut y = top;
            for piece in &action.pieces {
                let fill = piece.kind.fill(piece.chunk);
                out += &format!(
                    "<rect x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{height}\" fill=\"{fill}\"/>"
                );
                // All numbers have the size that the largest one needs: otherwise labels would stop at 9 or 99.
                let (label, letters) = match piece.micro_batch {
                    Some(number) => (number.to_string(), self.digits),
                    None => (piece.kind.letter().to_string(), 1),
                };
                let size = width / letters as f64 * 11.0 / LETTER;
                if size >= LABEL_SIZES.1 && height >= 11.0 {
                    out += &label_of_box(x + width / 2.0, y + height / 2.0, size, &label);
                }
                y += height;
            }
            out += "</g>\n";
        }
        out
    }

    /// Draws one path per colour, in columns of a pixel. Browsers need minutes for a hundred thousand boxes.
    fn dense(&self, row: &Row<'_>, top: f64) -> String {
        let shown = row.shown(self.length, (self.right - self.left) as usize);
        let mut paths: BTreeMap<String, String> = BTreeMap::new();
        let mut x = self.left;
        for run in shown.chunk_by(|a, b| a == b) {
            let pieces = run[0].map_or(&[][..], |at| &row.actions[at].pieces);
            let (width, height) = (run.len(), self.lane / pieces.len().max(1) as f64);
            for (at, piece) in pieces.iter().enumerate() {
                let path = paths.entry(piece.kind.fill(piece.chunk)).or_default();
                let y = top + at as f64 * height;
                *path += &format!("M{x} {y}h{width}v{height}h-{width}z");
            }
            x += width as f64;
        }
        let path = |(fill, path)| {
            format!("<path fill=\"{fill}\" shape-rendering=\"crispEdges\" d=\"{path}\"/>\n")
        };
        paths.into_iter().map(path).collect()
    }

    /// Draws the bytes of a rank over time. Values at the same pixel become one line up to the largest, so that
    /// no peak is lost and a long step has a short path.
    fn curve(&self, lane: usize, list: &RankTimeline, base: f64) -> String {
        if list.peak_bytes() == 0 {
            return String::new();
        }
        let y = |bytes: u64| px(base - bytes as f64 / self.most_bytes as f64 * CURVE);
        let mut path = format!("M{} {base}", self.left);
        let pixel = |point: &(u64, u64)| self.x(point.0).round();
        for points in list.bytes.chunk_by(|a, b| pixel(a) == pixel(b)) {
            let peak = points.iter().map(|point| point.1).max().unwrap_or(0);
            path += &format!("H{}V{}", self.x(points[0].0), y(peak));
            let last = points[points.len() - 1].1;
            if last != peak {
                path += &format!("V{}", y(last));
            }
        }
        let (class, right) = (if lane == 0 { "" } else { " dash" }, self.right);
        format!("<path class=\"memory{class}\" d=\"{path}H{right}V{base}\"/>\n")
    }
}

/// Draws the legend: each kind, the shades of a rank's higher stages, the curves, and the labels of boxes. Moves `y` below
/// the last line.
fn legend(pictures: &[Picture<'_>], plot: &Plot, width: f64, y: &mut f64) -> String {
    let pieces = || pictures.iter().flat_map(Picture::pieces);
    let kinds: BTreeSet<Kind> = pieces().map(|piece| piece.kind).collect();
    let chunks: BTreeSet<usize> = pieces().map(|piece| piece.chunk % SHADES.len()).collect();
    let mut entries: Vec<(String, &str)> = Vec::new();
    let filled = |fill: String| format!("fill=\"{fill}\"");
    entries.extend(kinds.iter().map(|kind| (filled(kind.fill(0)), kind.word())));
    if let Some(first) = kinds.first() {
        let names = ["second stage of a rank", "third stage", "fourth stage"];
        let shades = (1..).zip(names).filter(|(chunk, _)| chunks.contains(chunk));
        entries.extend(shades.map(|(chunk, name)| (filled(first.fill(chunk)), name)));
    }
    if plot.most_bytes > 0 {
        let curve = match plot.figures == FIGURES.len() {
            true => "memory",
            false => "micro-batches held",
        };
        entries.push(("class=\"memory\"".to_owned(), curve));
    }
    if plot.is_detailed {
        entries.push(("fill=\"none\"".to_owned(), "number: micro-batch"));
    }
    let mut out = String::new();
    let mut x = MARGIN;
    for (color, name) in entries {
        let end = x + 17.0 + name.len() as f64 * LETTER;
        if end > width - MARGIN {
            (x, *y) = (MARGIN, *y + 22.0);
        }
        out += &format!("<path {color} d=\"M{} {y}h12v12h-12z\"/>\n", px(x));
        out += &text("legend", x + 17.0, *y + 10.0, name);
        x += 37.0 + name.len() as f64 * LETTER;
    }
    out
}

fn text(class: &str, x: f64, y: f64, text: &str) -> String {
    let (x, y, text) = (px(x), px(y), xml(text));
    format!("<text class=\"{class}\" x=\"{x}\" y=\"{y}\">{text}</text>\n")
}

/// Draws the label of a box around its middle, in at most this font size in pixels.
fn label_of_box(x: f64, middle: f64, size: f64, label: &str) -> String {
    let size = size.min(LABEL_SIZES.0);
    let (x, y, label) = (px(x), px(middle + 0.35 * size), xml(label));
    let style = match size < LABEL_SIZES.0 {
        true => format!(" style=\"font-size:{size:.1}px\""),
        false => String::new(),
    };
    format!("<text class=\"box\"{style} x=\"{x}\" y=\"{y}\">{label}</text>\n")
}

/// Rounds a coordinate to two decimals; the shortest form of such a number is written.
fn px(value: f64) -> f64 {
    // A negative zero would keep its sign.
    (value * 100.0).round() / 100.0 + 0.0
}

/// Truncates a text to at most this many letters, with an ellipsis.
fn cut(text: &str, letters: usize) -> String {
    if text.chars().count() <= letters {
        return text.to_owned();
    }
    let kept = text.chars().take(letters.saturating_sub(1));
    kept.chain(['…']).collect()
}
