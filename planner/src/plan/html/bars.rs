//! Bars: the time of each stage, the memory of each rank.

use std::fmt::{self, Write};

use super::table::{Cell, Table};
use crate::plan::escape::Html;
use crate::plan::memory::{self, Held, PARTS};
use crate::plan::units::{Scale, bytes_text, share_text, time_text};
use crate::plan::{PlanFile, PlanStage};

/// Width of a picture, of the labels on its left and of the figures on its right, in pixels.
const WIDTH: u64 = 1100;
const LABELS: u64 = 90;
const FIGURES: u64 = 190;
/// Height of a row, and of the bar in it.
const ROW: u64 = 30;
const BAR: u64 = 20;
/// Pixels of the longest bar.
const PLOT: u64 = WIDTH - LABELS - FIGURES;

/// One bar.
struct Bar {
    label: String,
    /// Class, size and tooltip of each part.
    parts: Vec<(String, u64, String)>,
    figure: String,
    /// Where the limit stands, and whether the bar is beyond it.
    limit: Option<u64>,
    over: bool,
}

/// Writes bars below each other, on one scale.
fn write_bars(out: &mut String, label: &str, bars: &[Bar]) -> fmt::Result {
    let sum = |bar: &Bar| {
        bar.parts
            .iter()
            .map(|part| part.1)
            .fold(0, u64::saturating_add)
    };
    let longest = bars
        .iter()
        .map(|bar| sum(bar).max(bar.limit.unwrap_or(0)))
        .max();
    let longest = longest.unwrap_or(0).max(1);
    // Hundredths of a pixel: thin parts must not vanish.
    let place = |value: u64| {
        let hundredths =
            u128::from(value.min(longest)) * u128::from(PLOT) * 100 / u128::from(longest);
        format!("{}.{:02}", hundredths / 100, hundredths % 100)
    };
    let height = bars.len() as u64 * ROW + 6;
    writeln!(
        out,
        "<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"{0}\">\n<svg class=\"bars\" \
         role=\"img\" aria-label=\"{0}\" viewBox=\"0 0 {WIDTH} {height}\">",
        Html(label)
    )?;
    for (row, bar) in bars.iter().enumerate() {
        let top = row as u64 * ROW + (ROW - BAR) / 2 + 3;
        let line = top + BAR - 5;
        writeln!(
            out,
            "<text x=\"12\" y=\"{line}\">{}</text>",
            Html(&bar.label)
        )?;
        writeln!(
            out,
            "<g transform=\"translate({LABELS} {top})\"><rect class=\"empty\" width=\"{PLOT}\" \
             height=\"{BAR}\" rx=\"3\"/>"
        )?;
        let mut from = 0_u64;
        for (class, size, tip) in bar.parts.iter().filter(|part| part.1 > 0) {
            writeln!(
                out,
                "<rect class=\"{class}\" x=\"{}\" width=\"{}\" height=\"{BAR}\"><title>{}</title></rect>",
                place(from),
                place(*size),
                Html(tip)
            )?;
            from = from.saturating_add(*size);
        }
        if let Some(limit) = bar.limit {
            let x = place(limit);
            writeln!(out, "<path class=\"limit\" d=\"M{x} -4V{}\"/>", BAR + 4)?;
        }
        let class = if bar.over { "over" } else { "quiet" };
        writeln!(
            out,
            "<text class=\"{class}\" x=\"{}\" y=\"{}\">{}</text></g>",
            PLOT + 12,
            BAR - 5,
            Html(&bar.figure)
        )?;
    }
    writeln!(out, "</svg>\n</div>")
}

/// Writes which colour is what.
fn write_key(out: &mut String, entries: &[(&str, &str)]) -> fmt::Result {
    writeln!(out, "<ul class=\"key\">")?;
    for (class, name) in entries {
        writeln!(
            out,
            "<li><svg class=\"bars\" viewBox=\"0 0 12 12\" style=\"min-width:0;padding:0\" \
             aria-hidden=\"true\"><rect class=\"{class}\" width=\"12\" height=\"12\" \
             rx=\"2\"/></svg>{name}</li>"
        )?;
    }
    writeln!(out, "</ul>")
}

/// The time of each stage: where one is longer than the others, it sets the pace.
pub(super) fn write_times(out: &mut String, plan: &PlanFile) -> fmt::Result {
    write_key(out, &[("forward", "forward"), ("backward", "backward")])?;
    let bar = |stage: &PlanStage| {
        let (forward, backward) = (stage.costs.forward, stage.costs.backward);
        let both = forward.saturating_add(backward);
        let slowest = match plan.prediction.bottleneck == stage.stage {
            true => ", the bottleneck",
            false => "",
        };
        Bar {
            label: format!("stage {}", stage.stage),
            parts: vec![
                (
                    "forward".to_owned(),
                    forward,
                    format!("F {}", time_text(forward)),
                ),
                (
                    "backward".to_owned(),
                    backward,
                    format!("B {}", time_text(backward)),
                ),
            ],
            figure: format!("{}{slowest}", time_text(both)),
            limit: None,
            over: false,
        }
    };
    let bars: Vec<Bar> = plan.stages.iter().map(bar).collect();
    write_bars(
        out,
        "Time of one micro-batch on each stage, forward and backward",
        &bars,
    )
}

/// Writes the section: what each rank holds, as bars and as a table.
pub(super) fn write_memory(out: &mut String, plan: &PlanFile) -> fmt::Result {
    let ranks = memory::of_ranks(plan);
    if ranks.is_empty() {
        return writeln!(out, "<p>The file predicts no ranks.</p>");
    }
    let classes: Vec<String> = (0..PARTS.len()).map(|part| format!("p{part}")).collect();
    let key: Vec<(&str, &str)> = classes
        .iter()
        .zip(PARTS)
        .map(|(class, (name, _))| (class.as_str(), name))
        .collect();
    write_key(out, &key)?;
    if ranks.iter().any(|rank| rank.limit.is_some()) {
        writeln!(out, "<p>The dashed line is what the rank may hold.</p>")?;
    }
    let bars: Vec<Bar> = ranks
        .iter()
        .map(|rank| memory_bar(rank, &classes))
        .collect();
    write_bars(
        out,
        "Memory of each rank at its peak, by what it is for",
        &bars,
    )?;
    writeln!(out, "<h3>In numbers</h3>")?;
    memory_table(&ranks).write(out)
}

fn memory_bar(rank: &Held, classes: &[String]) -> Bar {
    let parts = rank.parts.iter().zip(classes).zip(PARTS);
    let parts = parts.map(|((bytes, class), (name, _))| {
        (
            class.clone(),
            *bytes,
            format!("{name} {}", bytes_text(*bytes)),
        )
    });
    let over = rank.limit.is_some_and(|limit| rank.total > limit);
    let total = bytes_text(rank.total);
    Bar {
        label: format!("rank {}", rank.rank),
        parts: parts.collect(),
        figure: match rank.limit {
            Some(limit) => format!("{total}, {} full", share_text(rank.total, limit)),
            None => total,
        },
        limit: rank.limit,
        over,
    }
}

fn memory_table(ranks: &[Held]) -> Table<'static> {
    let scale = Scale::bytes(ranks.iter().map(|rank| rank.total));
    let limited = ranks.iter().any(|rank| rank.limit.is_some());
    let mut header = vec!["rank".to_owned()];
    let names = PARTS.iter().map(|(name, _)| *name).chain(["total"]);
    header.extend(names.map(|name| format!("{name}, {}", scale.unit)));
    if limited {
        header.extend([format!("limit, {}", scale.unit), "full".to_owned()]);
    }
    let rows = ranks.iter().map(|rank| {
        let mut cells = vec![Cell::Number(rank.rank.to_string())];
        let sizes = rank.parts.iter().chain([&rank.total]);
        cells.extend(sizes.map(|bytes| Cell::Number(scale.number(*bytes))));
        if limited {
            let limit = |text: fn(&Scale, u64, u64) -> String| {
                rank.limit
                    .map_or_else(String::new, |limit| text(&scale, limit, rank.total))
            };
            cells.push(Cell::Number(limit(|scale, limit, _| scale.number(limit))));
            cells.push(Cell::Number(limit(|_, limit, total| {
                share_text(total, limit)
            })));
        }
        ("", cells)
    });
    Table {
        caption: "Each part at its own peak, so the total is at most too large",
        header,
        rows: rows.collect(),
    }
}
