//! The boxes of a row.

use std::collections::BTreeMap;
use std::fmt::{self, Write};

use super::layout::{LETTER, Layout, Px, Xml};
use super::style::Class;
use crate::draw::cells::Columns;
use crate::draw::pieces::{Chunks, Piece};
use crate::draw::units::time_text;
use crate::simulate::{RankTimeline, Span, TimeUnit};

/// The narrowest box that is still seen, and the space between two boxes.
const MIN_WIDTH: f64 = 0.5;
const GAP: f64 = 1.0;
/// Font sizes of micro-batches, from the preferred to the smallest that can be read.
const FONT_SIZES: [(f64, &str); 2] = [(11.0, ""), (9.0, " class=\"n small\"")];

/// The rectangle of a box.
#[derive(Debug, Clone, Copy)]
struct Area {
    x: f64,
    y: f64,
    width: f64,
    height: f64,
}

/// A rank's row of one timeline.
#[derive(Debug, Clone, Copy)]
pub(super) struct Lane<'a> {
    pub(super) layout: &'a Layout,
    pub(super) chunks: &'a Chunks,
    pub(super) unit: TimeUnit,
    pub(super) top: f64,
}

impl Lane<'_> {
    /// Writes a group per action, with tooltip and micro-batch.
    pub(super) fn write_boxes(&self, out: &mut String, list: &RankTimeline) -> fmt::Result {
        for span in &list.spans {
            let pieces: Vec<Piece> = self.chunks.pieces(span).collect();
            if pieces.is_empty() {
                continue;
            }
            out.push_str("<g>");
            self.write_tooltip(out, span)?;
            for (piece, area) in pieces.iter().zip(self.areas(span, pieces.len())) {
                write_box(out, *piece, area)?;
            }
            out.push_str("</g>\n");
        }
        Ok(())
    }

    /// Writes one path per colour, without tooltips and micro-batches: in columns of a pixel, which
    /// narrow actions share in proportion to the time of their kinds.
    ///
    /// Paths of a hundred thousand boxes would keep a browser busy for minutes.
    pub(super) fn write_dense(&self, out: &mut String, list: &RankTimeline) -> fmt::Result {
        let pieces_at = |position: usize| {
            let span = list.spans.get(position).into_iter();
            let pieces = span.flat_map(|span| self.chunks.pieces(span));
            pieces.map(|piece| Class(piece.kind, piece.shade()))
        };
        let count = (self.layout.plot_right - self.layout.plot_left) as usize;
        let columns = Columns::new(self.layout.length, count).row(self.chunks.drawn(list));
        let classes: Vec<Vec<Class>> = columns
            .into_iter()
            .map(|column| column.map_or(Vec::new(), |position| pieces_at(position).collect()))
            .collect();
        let mut paths: BTreeMap<Class, String> = BTreeMap::new();
        let mut column = 0;
        for run in classes.chunk_by(|a, b| a == b) {
            let (x, width) = (Px(self.layout.plot_left + column as f64), run.len());
            column += width;
            let classes = run.first().map_or(&[][..], Vec::as_slice);
            let height = self.layout.lane_height / classes.len().max(1) as f64;
            for (at, class) in classes.iter().enumerate() {
                let path = paths.entry(*class).or_default();
                let (top, height) = (Px(self.top + at as f64 * height), Px(height));
                write!(path, "M{x} {top}h{width}v{height}h-{width}z")?;
            }
        }
        for (class, path) in paths {
            writeln!(
                out,
                "<path class=\"{class}\" shape-rendering=\"crispEdges\" d=\"{path}\"/>"
            )?;
        }
        Ok(())
    }

    /// The rectangles of an action, one above the other.
    fn areas(&self, span: &Span, count: usize) -> impl Iterator<Item = Area> {
        let (left, right) = (self.layout.x(span.start), self.layout.x(span.end));
        // Narrow boxes give less than a pixel to the space between them.
        let gap = GAP.min((right - left) * 0.2).max(0.0);
        let height = self.layout.lane_height / count.max(1) as f64;
        let width = (right - left - gap).max(MIN_WIDTH);
        let top = self.top;
        (0..count).map(move |at| Area {
            x: left,
            y: top + at as f64 * height,
            width,
            height,
        })
    }

    fn write_tooltip(&self, out: &mut String, span: &Span) -> fmt::Result {
        let text = |time: u64| time_text(time as f64, self.unit);
        let name = span.action.to_string();
        write!(
            out,
            "<title>{}: {} to {}, {}</title>",
            Xml(&name),
            text(span.start),
            text(span.end),
            text(span.duration())
        )
    }
}

fn write_box(out: &mut String, piece: Piece, area: Area) -> fmt::Result {
    let class = Class(piece.kind, piece.shade());
    let Area {
        x,
        y,
        width,
        height,
    } = area;
    write!(
        out,
        "<g class=\"{class}\"><rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\"{}/>",
        Px(x),
        Px(y),
        Px(width),
        Px(height),
        if width >= 6.0 { " rx=\"2\"" } else { "" }
    )?;
    let label = match piece.micro_batch {
        Some(micro_batch) => micro_batch.to_string(),
        None => piece.kind.letter().to_string(),
    };
    let fits = |size: f64| label.len() as f64 * LETTER * size + 2.0 <= width && size <= height;
    if let Some((size, class)) = FONT_SIZES.into_iter().find(|(size, _)| fits(*size)) {
        // Digits stand on the line and are about 0.7 of the font size high.
        let (middle, line) = (Px(x + width / 2.0), Px(y + height / 2.0 + 0.36 * size));
        let class = if class.is_empty() {
            " class=\"n\""
        } else {
            class
        };
        write!(
            out,
            "<text{class} x=\"{middle}\" y=\"{line}\">{}</text>",
            Xml(&label)
        )?;
    }
    out.push_str("</g>");
    Ok(())
}
