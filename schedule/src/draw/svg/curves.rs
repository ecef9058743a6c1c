//! The curves of bytes below the rows, and the lines of messages over them.

use std::fmt::{self, Write};

use super::layout::{Layout, Px};
use crate::draw::arrows::{At, arrows};
use crate::simulate::{RankTimeline, Timeline};

/// A curve in steps, as path commands from the first value to the end of the picture, over the height
/// of a curve for `most` bytes.
///
/// Values at the same pixel become one line up to the largest, so that a long step stays small and
/// no peak is lost.
fn steps(layout: &Layout, list: &RankTimeline, bottom: f64, most: u64) -> String {
    let mut path = String::new();
    let y = |bytes: u64| {
        let share = bytes.min(most) as f64 / most.max(1) as f64;
        Px(bottom - share * layout.curve_height)
    };
    let pixel = |time: u64| (layout.x(time) * 4.0).round() / 4.0;
    for points in list.bytes.chunk_by(|a, b| pixel(a.0) == pixel(b.0)) {
        let (Some(first), Some(last)) = (points.first(), points.last()) else {
            continue;
        };
        let peak = points.iter().map(|point| point.1).max().unwrap_or(0);
        let x = Px(pixel(first.0));
        path.push_str(&if path.is_empty() {
            format!("M{x} {}", y(peak))
        } else {
            format!("H{x}V{}", y(peak))
        });
        if last.1 != peak {
            path.push_str(&format!("V{}", y(last.1)));
        }
    }
    path.push_str(&format!("H{}", Px(layout.plot_right)));
    path
}

/// Writes the curves of a rank: the first timeline's filled, the others as dashed lines.
pub(super) fn write_curves(
    out: &mut String,
    layout: &Layout,
    timelines: &[&Timeline],
    rank: usize,
    most: u64,
) -> fmt::Result {
    let bottom = layout.curve_top(rank, timelines.len()) + layout.curve_height;
    let base = Px(bottom);
    for (lane, timeline) in timelines.iter().enumerate() {
        let Some(list) = timeline
            .ranks
            .get(rank)
            .filter(|list| list.peak_bytes() > 0)
        else {
            continue;
        };
        let steps = steps(layout, list, bottom, most);
        if lane == 0 {
            let left = Px(layout.x(list.bytes.first().map_or(0, |point| point.0)));
            writeln!(out, "<path class=\"area\" d=\"{steps}V{base}H{left}z\"/>")?;
        }
        let dash = if lane == 0 { "" } else { " dash" };
        writeln!(out, "<path class=\"line{dash}\" d=\"{steps}\"/>")?;
    }
    Ok(())
}

/// Writes one line per message of a timeline, from the end of a program to the start of another.
pub(super) fn write_messages(
    out: &mut String,
    layout: &Layout,
    timeline: &Timeline,
    lane: usize,
) -> fmt::Result {
    let mut path = String::new();
    // A line leaves a row at the edge that faces the other row.
    let edge = |at: At, other: At| {
        let top = layout.lane_top(at.rank, lane);
        top + if at.rank < other.rank {
            layout.lane_height
        } else {
            0.0
        }
    };
    for arrow in arrows(timeline) {
        let span = |at: At| timeline.ranks[at.rank].spans[at.position];
        let (from, to) = (arrow.from, arrow.to);
        write!(
            path,
            "M{} {}L{} {}",
            Px(layout.x(span(from).end)),
            Px(edge(from, to)),
            Px(layout.x(span(to).start)),
            Px(edge(to, from))
        )?;
    }
    if !path.is_empty() {
        writeln!(out, "<path class=\"msg\" opacity=\"0.55\" d=\"{path}\"/>")?;
    }
    Ok(())
}
