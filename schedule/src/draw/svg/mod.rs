//! Timelines as SVG.

mod boxes;
mod curves;
mod document;
mod layout;
mod legend;
mod style;
#[cfg(test)]
mod tests;

use super::pieces::Chunks;
use crate::simulate::Timeline;
use document::Document;

/// How an SVG looks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SvgOptions {
    /// The width in pixels, figures and labels included; from 600 to 20,000.
    pub width_px: u32,
    /// The line above; without it, the names of the timelines.
    pub title: Option<String>,
    /// Whether a thin line joins each send's program with the program that reads the values.
    pub messages: bool,
}

impl Default for SvgOptions {
    /// 1200 pixels, no lines for messages.
    fn default() -> Self {
        Self {
            width_px: 1200,
            title: None,
            messages: false,
        }
    }
}

/// Draws timelines as one SVG: a row per rank, a box per action, one time axis.
///
/// The text stands alone: no script, no font, no other file, and colours for light and dark pages. A
/// box has the colour of its kind, in a shade for each of the rank's stages, its micro-batch where
/// there is room, and action, start, end and duration as a tooltip. An overlapped pair is a forward
/// above and a backward below. Beside each row stand the rank's bubble as a share of the step, the
/// most micro-batches that it held at a time and, where the costs are in bytes, its peak bytes; below
/// it runs the curve of its bytes, for all ranks on one scale.
///
/// Several timelines, such as a predicted and a measured one, give each rank a row of each, labelled
/// with the timeline's name. They share the axis of the first, so times in other units are
/// [scaled](Timeline::scaled) before.
///
/// More than 20,000 boxes have neither micro-batches nor tooltips nor lines of messages. They are
/// drawn in columns of a pixel, which kinds share in proportion to their time, so the size of the text
/// is bounded by the picture's. Below that an action takes up to 250 bytes. Time and memory are linear
/// in the number of actions.
#[must_use]
pub fn svg(timelines: &[&Timeline], options: &SvgOptions) -> String {
    let chunks: Vec<Chunks> = timelines.iter().map(|one| Chunks::of(one)).collect();
    Document::new(timelines, &chunks, options).text()
}
