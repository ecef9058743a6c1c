//! Charts of horizontal bars for the page.

use tinderbox_schedule::arithmetic::{add, sum};

use super::escape::xml;

/// Pixels of a chart: its width, the labels on its left, the longest bar, a row.
const WIDTH: u64 = 1100;
const LABELS: u64 = 90;
const PLOT: u64 = 820;
const ROW: u64 = 30;

/// The name and the colour of a part of each bar.
type Key<'k> = (&'k str, &'k str);

/// One bar of a chart.
pub(super) struct Bar {
    pub(super) label: String,
    /// The size of each part, in the order of the key.
    pub(super) sizes: Vec<u64>,
    pub(super) figure: String,
    pub(super) limit: Option<u64>,
}

/// A chart of bars on one scale, with the name and the colour of each part above it.
pub(super) fn chart(label: &str, key: &[Key<'_>], text: fn(u64) -> String, bars: &[Bar]) -> String {
    let key_of = |(name, color): &Key<'_>| {
        format!(
            "<li><svg viewBox=\"0 0 12 12\" aria-hidden=\"true\"><rect width=\"12\" height=\"12\" rx=\"2\" \
             fill=\"{color}\"/></svg>{name}</li>\n"
        )
    };
    let legend: String = key.iter().map(key_of).collect();
    let size = |bar: &Bar| sum(bar.sizes.iter().copied());
    let longest = bars.iter().map(|bar| size(bar).max(bar.limit.unwrap_or(0)));
    let longest = longest.max().unwrap_or(0).max(1);
    // Hundredths of a pixel, so that thin parts stay visible.
    let place = |size: u64| {
        let share = size.min(longest) as f64 / longest as f64;
        (share * PLOT as f64 * 100.0).round() / 100.0
    };
    let rows = (0..).zip(bars).map(|(row, bar)| {
        let (top, label, figure) = (row * ROW + 8, xml(&bar.label), xml(&bar.figure));
        let mut from = 0_u64;
        let parts = bar.sizes.iter().zip(key).filter(|(size, _)| **size > 0);
        let parts = parts.map(|(size, (name, color))| {
            let (x, width, size_text) = (place(from), place(*size), text(*size));
            add(&mut from, *size);
            format!(
                "<rect fill=\"{color}\" x=\"{x}\" width=\"{width}\" height=\"20\"><title>{name} \
                 {size_text}</title></rect>\n"
            )
        });
        let parts: String = parts.collect();
        let line = |limit| format!("<path class=\"limit\" d=\"M{} -4V24\"/>\n", place(limit));
        let limit = bar.limit.map_or(String::new(), line);
        let is_over = bar.limit.is_some_and(|limit| size(bar) > limit);
        let class = if is_over { "over" } else { "quiet" };
        format!(
            "<g transform=\"translate({LABELS} {top})\"><text x=\"-78\" y=\"15\">{label}</text>\
             <rect class=\"empty\" width=\"{PLOT}\" height=\"20\" rx=\"3\"/>\n{parts}{limit}\
             <text class=\"{class}\" x=\"{}\" y=\"15\">{figure}</text></g>\n",
            PLOT + 12
        )
    });
    let (rows, height) = (rows.collect::<String>(), bars.len() as u64 * ROW + 6);
    format!(
        "<ul class=\"key\">\n{legend}</ul>\n\
         <div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"{label}\">\n<svg class=\"bars\" \
         role=\"img\" aria-label=\"{label}\" viewBox=\"0 0 {WIDTH} {height}\">\n{rows}</svg>\n</div>\n"
    )
}
