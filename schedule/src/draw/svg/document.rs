//! The whole picture: title, legend, rows, figures, axis.

use std::collections::BTreeSet;
use std::fmt::{self, Write};

use super::SvgOptions;
use super::boxes::Lane;
use super::curves::{write_curves, write_messages};
use super::layout::{
    BUBBLE_WIDTH, BYTES_WIDTH, Content, HELD_WIDTH, LETTER, Layout, Px, SUBTITLE_HEIGHT, Xml,
};
use super::legend::Legend;
use super::style::{Class, write_style};
use crate::draw::axis::marks;
use crate::draw::figures::{Figures, summary};
use crate::draw::palette::Shade;
use crate::draw::pieces::{Chunks, stage_labels};
use crate::draw::units::{bytes_text, percent_text};
use crate::simulate::{TimeUnit, Timeline};

/// Above this number of boxes a picture has neither tooltips nor micro-batches: browsers become slow,
/// and a box is less than a pixel wide.
pub(super) const MAX_DETAILED: usize = 20_000;
/// Longer labels are cut: they would leave no room for time.
const MAX_LABEL: usize = 24;

/// A picture before it is written.
pub(super) struct Document<'a> {
    timelines: &'a [&'a Timeline],
    chunks: &'a [Chunks],
    options: &'a SvgOptions,
    figures: Vec<Vec<Figures>>,
    /// The stages of each rank, as the first timeline has them.
    stages: Vec<String>,
    classes: BTreeSet<Class>,
    boxes: usize,
    bytes: bool,
    most_bytes: u64,
    legend: Legend,
    layout: Layout,
}

impl<'a> Document<'a> {
    pub(super) fn new(
        timelines: &'a [&'a Timeline],
        chunks: &'a [Chunks],
        options: &'a SvgOptions,
    ) -> Self {
        let figures: Vec<_> = timelines.iter().map(|one| Figures::of(one)).collect();
        let mut classes = BTreeSet::new();
        let mut boxes = 0;
        for (timeline, chunks) in timelines.iter().zip(chunks) {
            let spans = timeline.ranks.iter().flat_map(|rank| &rank.spans);
            for piece in spans.flat_map(|span| chunks.pieces(span)) {
                // The legend shows the full colour, also of a kind that only higher stages run.
                classes.insert(Class(piece.kind, Shade::of_chunk(0)));
                classes.insert(Class(piece.kind, piece.shade()));
                boxes += 1;
            }
        }
        let all = figures.iter().flatten();
        let most_bytes = all.map(|one| one.peak_bytes).max().unwrap_or(0);
        let bytes = figures.iter().any(|one| Figures::say_bytes(one));
        let stages = timelines
            .first()
            .map_or(Vec::new(), |first| stage_labels(first));
        let mut content = Content {
            subtitles: timelines.len(),
            label_letters: label_letters(timelines, &stages),
            legend_rows: 0,
            curves: most_bytes > 0,
            bytes,
        };
        let width = Layout::new(timelines, options, content).right();
        let most_chunks = chunks.iter().map(Chunks::most).max().unwrap_or(0);
        let legend = Legend::new(&classes, most_chunks, content.curves, width);
        content.legend_rows = legend.rows();
        Self {
            timelines,
            chunks,
            options,
            figures,
            stages,
            classes,
            boxes,
            bytes,
            most_bytes,
            legend,
            layout: Layout::new(timelines, options, content),
        }
    }

    pub(super) fn text(&self) -> String {
        let mut out = String::new();
        self.write(&mut out).expect("a string takes all text");
        out
    }

    fn write(&self, out: &mut String) -> fmt::Result {
        let (width, height) = (Px(self.layout.width), Px(self.layout.height()));
        let title = self.title();
        writeln!(
            out,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
             viewBox=\"0 0 {width} {height}\" role=\"img\">"
        )?;
        writeln!(out, "<title>{}</title>", Xml(&title))?;
        write_style(out, &self.classes)?;
        writeln!(
            out,
            "<rect class=\"page\" width=\"{width}\" height=\"{height}\"/>"
        )?;
        self.write_header(out, &title)?;
        self.legend.write(out, self.layout.legend_top)?;
        self.write_axis(out)?;
        for rank in 0..self.layout.ranks() {
            self.write_rank(out, rank)?;
        }
        if self.options.messages && self.boxes <= MAX_DETAILED {
            for (lane, timeline) in self.timelines.iter().enumerate() {
                write_messages(out, &self.layout, timeline, lane)?;
            }
        }
        out.push_str("</svg>\n");
        Ok(())
    }

    fn title(&self) -> String {
        let names = || self.timelines.iter().map(|one| one.name.as_str());
        let title = self.options.title.clone();
        title.unwrap_or_else(|| names().collect::<Vec<_>>().join(" | "))
    }

    fn write_header(&self, out: &mut String, title: &str) -> fmt::Result {
        let left = Px(self.layout.left());
        // A title is wider than the monospace text of its size would be.
        let room = (self.layout.right() - self.layout.left()) / (16.0 * LETTER);
        let title = shortened(title, room as usize);
        writeln!(
            out,
            "<text class=\"title\" x=\"{left}\" y=\"32\">{}</text>",
            Xml(&title)
        )?;
        for (line, timeline) in self.timelines.iter().enumerate() {
            let mut parts = summary(timeline);
            if self.timelines.len() > 1 {
                parts.insert(0, shortened(&timeline.name, MAX_LABEL));
            }
            let y = Px(52.0 + line as f64 * SUBTITLE_HEIGHT);
            let text = parts.join(" · ");
            writeln!(
                out,
                "<text class=\"sub muted\" x=\"{left}\" y=\"{y}\">{}</text>",
                Xml(&text)
            )?;
        }
        Ok(())
    }

    /// Grid, axis and the names of the figures.
    fn write_axis(&self, out: &mut String) -> fmt::Result {
        let layout = &self.layout;
        let unit = self
            .timelines
            .first()
            .map_or(TimeUnit::Ticks, |one| one.unit);
        let room = (layout.plot_right - layout.plot_left) / 90.0;
        let (top, bottom) = (layout.plot_top - 6.0, layout.axis());
        for mark in marks(layout.length, unit, room.max(1.0) as usize) {
            let x = Px(layout.x(mark.time));
            writeln!(
                out,
                "<path class=\"grid\" d=\"M{x} {}V{}\"/>",
                Px(top),
                Px(bottom + 5.0)
            )?;
            writeln!(
                out,
                "<text class=\"n muted\" x=\"{x}\" y=\"{}\">{}</text>",
                Px(bottom + 19.0),
                Xml(&mark.label)
            )?;
        }
        let (left, right) = (Px(layout.plot_left), Px(layout.plot_right));
        writeln!(
            out,
            "<path class=\"axis\" d=\"M{left} {}H{right}\"/>",
            Px(bottom)
        )?;
        if unit == TimeUnit::Ticks {
            let (x, y) = (Px(layout.plot_left - 14.0), Px(bottom + 19.0));
            writeln!(
                out,
                "<text class=\"e muted\" x=\"{x}\" y=\"{y}\">ticks</text>"
            )?;
        }
        let names = ["bubble", "held", "peak"].map(str::to_owned);
        self.write_figures(out, layout.plot_top - 10.0, names)
    }

    /// Bubble, held micro-batches and peak bytes, each in its column, on one line.
    fn write_figures(&self, out: &mut String, y: f64, texts: [String; 3]) -> fmt::Result {
        let widths = [BUBBLE_WIDTH, HELD_WIDTH, BYTES_WIDTH];
        let shown = if self.bytes { 3 } else { 2 };
        let mut x = self.layout.plot_right;
        for (width, text) in widths.into_iter().zip(texts).take(shown) {
            x += width;
            writeln!(
                out,
                "<text class=\"e muted\" x=\"{}\" y=\"{}\">{}</text>",
                Px(x),
                Px(y),
                Xml(&text)
            )?;
        }
        Ok(())
    }

    fn write_rank(&self, out: &mut String, rank: usize) -> fmt::Result {
        let layout = &self.layout;
        let top = layout.rank_top(rank);
        let left = Px(layout.left());
        writeln!(
            out,
            "<text x=\"{left}\" y=\"{}\">rank {rank}</text>",
            Px(top + 12.0)
        )?;
        if let Some(stages) = self.stages.get(rank) {
            let stages = shortened(stages, MAX_LABEL);
            let y = Px(top + 25.0);
            writeln!(
                out,
                "<text class=\"small muted\" x=\"{left}\" y=\"{y}\">{}</text>",
                Xml(&stages)
            )?;
        }
        for (lane, timeline) in self.timelines.iter().enumerate() {
            self.write_lane(out, rank, lane, timeline)?;
        }
        if layout.curve_height > 0.0 {
            write_curves(out, layout, self.timelines, rank, self.most_bytes)?;
        }
        Ok(())
    }

    fn write_lane(
        &self,
        out: &mut String,
        rank: usize,
        lane: usize,
        timeline: &Timeline,
    ) -> fmt::Result {
        let layout = &self.layout;
        let top = layout.lane_top(rank, lane);
        let line = top + layout.lane_height / 2.0 + 4.0;
        writeln!(
            out,
            "<rect class=\"track\" x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" rx=\"2\"/>",
            Px(layout.plot_left),
            Px(top),
            Px(layout.plot_right - layout.plot_left),
            Px(layout.lane_height)
        )?;
        if self.timelines.len() > 1 {
            let name = shortened(&timeline.name, MAX_LABEL);
            let x = Px(layout.plot_left - 8.0);
            writeln!(
                out,
                "<text class=\"e muted\" x=\"{x}\" y=\"{}\">{}</text>",
                Px(line),
                Xml(&name)
            )?;
        }
        let (Some(list), Some(chunks)) = (timeline.ranks.get(rank), self.chunks.get(lane)) else {
            return Ok(());
        };
        let boxes = Lane {
            layout,
            chunks,
            unit: timeline.unit,
            top,
        };
        if self.boxes > MAX_DETAILED {
            boxes.write_dense(out, list)?;
        } else {
            boxes.write_boxes(out, list)?;
        }
        let figures = self.figures.get(lane).and_then(|ranks| ranks.get(rank));
        let texts = figures.map(|one| {
            let held = one.held.to_string();
            [percent_text(one.bubble), held, bytes_text(one.peak_bytes)]
        });
        texts.map_or(Ok(()), |texts| self.write_figures(out, line, texts))
    }
}

/// Letters of the longest label on the left: rank and stages, and beside them the timelines' names.
fn label_letters(timelines: &[&Timeline], stages: &[String]) -> usize {
    let ranks = timelines
        .iter()
        .map(|one| one.ranks.len())
        .max()
        .unwrap_or(0);
    let rank = format!("rank {}", ranks.saturating_sub(1)).len();
    let stages = stages.iter().map(|label| label.chars().count()).max();
    // Stages are written smaller: nine pixels instead of eleven.
    let mut letters = rank.max((stages.unwrap_or(0).min(MAX_LABEL) * 9).div_ceil(11));
    if timelines.len() > 1 {
        let names = timelines.iter().map(|one| one.name.chars().count());
        letters += 2 + names.max().unwrap_or(0).min(MAX_LABEL);
    }
    letters
}

/// A text of at most so many letters, with an ellipsis where it was cut.
fn shortened(text: &str, letters: usize) -> String {
    if text.chars().count() <= letters {
        return text.to_owned();
    }
    let kept = text.chars().take(letters.saturating_sub(1));
    kept.chain(['…']).collect()
}
