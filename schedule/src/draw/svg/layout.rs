//! Where everything stands, in pixels.

use std::fmt;

use super::SvgOptions;
use crate::draw::figures::length;
use crate::simulate::Timeline;

/// Bounds of the width: below, there is no room beside the labels, above no screen.
const WIDTH_PX: (u32, u32) = (600, 20_000);
/// Space around the picture.
pub(super) const MARGIN: f64 = 24.0;
/// Width of a letter as a share of the font size: of common monospace fonts the widest.
pub(super) const LETTER: f64 = 0.62;

/// What a layout depends on.
#[derive(Debug, Clone, Copy)]
pub(super) struct Content {
    /// Lines above the legend, beside the title.
    pub(super) subtitles: usize,
    /// Letters of the longest label beside a row.
    pub(super) label_letters: usize,
    pub(super) legend_rows: usize,
    pub(super) curves: bool,
    pub(super) bytes: bool,
}

/// All coordinates of a picture.
#[derive(Debug, Clone, Copy)]
pub(super) struct Layout {
    pub(super) width: f64,
    pub(super) plot_left: f64,
    pub(super) plot_right: f64,
    pub(super) plot_top: f64,
    pub(super) legend_top: f64,
    pub(super) lane_height: f64,
    pub(super) curve_height: f64,
    pub(super) length: u64,
    lane_gap: f64,
    rank_pitch: f64,
    ranks: usize,
}

/// Heights of the parts that do not depend on the timelines.
const TITLE_HEIGHT: f64 = 40.0;
pub(super) const SUBTITLE_HEIGHT: f64 = 19.0;
pub(super) const LEGEND_HEIGHT: f64 = 22.0;
const HEADING_HEIGHT: f64 = 24.0;
const AXIS_HEIGHT: f64 = 40.0;
const RANK_GAP: f64 = 12.0;
const CURVE_GAP: f64 = 3.0;

/// Widths of the figures beside the rows.
pub(super) const BUBBLE_WIDTH: f64 = 64.0;
pub(super) const HELD_WIDTH: f64 = 44.0;
pub(super) const BYTES_WIDTH: f64 = 74.0;

impl Layout {
    pub(super) fn new(timelines: &[&Timeline], options: &SvgOptions, content: Content) -> Self {
        let width = f64::from(options.width_px.clamp(WIDTH_PX.0, WIDTH_PX.1));
        let lanes = timelines.len().max(1);
        let (lane_height, lane_gap) = match lanes {
            1 => (28.0, 0.0),
            2 => (17.0, 2.0),
            _ => (14.0, 2.0),
        };
        let curve_height = if content.curves { 16.0 } else { 0.0 };
        let curve = if content.curves {
            curve_height + CURVE_GAP
        } else {
            0.0
        };
        let figures = BUBBLE_WIDTH + HELD_WIDTH + if content.bytes { BYTES_WIDTH } else { 0.0 };
        // Columns of a pixel stand on whole pixels.
        let labels = (content.label_letters as f64 * LETTER * 11.0 + 14.0).round();
        let legend_top = TITLE_HEIGHT + content.subtitles as f64 * SUBTITLE_HEIGHT + 8.0;
        Self {
            width,
            plot_left: MARGIN + labels,
            plot_right: width - MARGIN - figures,
            plot_top: legend_top + content.legend_rows as f64 * LEGEND_HEIGHT + HEADING_HEIGHT,
            legend_top,
            lane_height,
            curve_height,
            length: timelines.iter().map(|one| length(one)).max().unwrap_or(0),
            lane_gap,
            rank_pitch: lanes as f64 * (lane_height + lane_gap) + curve + RANK_GAP,
            ranks: timelines
                .iter()
                .map(|one| one.ranks.len())
                .max()
                .unwrap_or(0),
        }
    }

    pub(super) const fn left(&self) -> f64 {
        MARGIN
    }

    pub(super) fn right(&self) -> f64 {
        self.width - MARGIN
    }

    /// The left edge of a moment.
    pub(super) fn x(&self, time: u64) -> f64 {
        let share = if self.length == 0 {
            0.0
        } else {
            time.min(self.length) as f64 / self.length as f64
        };
        self.plot_left + share * (self.plot_right - self.plot_left)
    }

    pub(super) fn rank_top(&self, rank: usize) -> f64 {
        self.plot_top + rank as f64 * self.rank_pitch
    }

    /// The upper edge of a timeline's row of a rank.
    pub(super) fn lane_top(&self, rank: usize, lane: usize) -> f64 {
        self.rank_top(rank) + lane as f64 * (self.lane_height + self.lane_gap)
    }

    /// The upper edge of the curve of a rank, below its last row.
    pub(super) fn curve_top(&self, rank: usize, lanes: usize) -> f64 {
        self.lane_top(rank, lanes) - self.lane_gap + CURVE_GAP
    }

    /// The line of the axis.
    pub(super) fn axis(&self) -> f64 {
        self.rank_top(self.ranks) - RANK_GAP / 2.0
    }

    pub(super) fn height(&self) -> f64 {
        self.axis() + AXIS_HEIGHT
    }

    pub(super) const fn ranks(&self) -> usize {
        self.ranks
    }
}

/// A coordinate with at most two digits behind the point.
#[derive(Debug, Clone, Copy)]
pub(super) struct Px(pub(super) f64);

impl fmt::Display for Px {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rounded = (self.0 * 100.0).round() / 100.0;
        // A rounded number prints its shortest form; a negative zero would keep its sign.
        write!(f, "{}", if rounded == 0.0 { 0.0 } else { rounded })
    }
}

/// Text as XML takes it: escaped, without the characters that XML does not allow.
#[derive(Debug, Clone, Copy)]
pub(super) struct Xml<'a>(pub(super) &'a str);

impl fmt::Display for Xml<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for char in self.0.chars() {
            match char {
                '&' => f.write_str("&amp;")?,
                '<' => f.write_str("&lt;")?,
                '>' => f.write_str("&gt;")?,
                '"' => f.write_str("&quot;")?,
                '\'' => f.write_str("&#39;")?,
                '\u{fffe}' | '\u{ffff}' => f.write_str("\u{fffd}")?,
                char if char.is_control() => f.write_str("\u{fffd}")?,
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
    fn coordinates_are_short() {
        for (value, expected) in [(0.0, "0"), (-0.001, "0"), (12.0, "12"), (1.0 / 3.0, "0.33")] {
            assert_eq!(Px(value).to_string(), expected);
        }
    }

    #[test]
    fn names_cannot_leave_their_text() {
        let name = "a<b> & \"c\" 'd'\u{1b}[0m\n\u{ffff}é";
        let expected = "a&lt;b&gt; &amp; &quot;c&quot; &#39;d&#39;\u{fffd}[0m\u{fffd}\u{fffd}é";
        assert_eq!(Xml(name).to_string(), expected);
    }
}
