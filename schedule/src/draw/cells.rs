//! A row of the terminal as columns: which span each of them shows.

use super::figures::length;
use super::palette::Kind;
use super::pieces::Drawn;
use crate::simulate::Timeline;

/// The shortest common time has at most so many columns, so that a short step stays short.
const MAX_COLUMNS_PER_QUANTUM: u64 = 8;

/// How time is divided into columns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Columns {
    length: u64,
    count: usize,
}

/// The time that the spans of one kind have of a column.
#[derive(Debug, Clone, Copy, Default)]
struct Share {
    time: u128,
    largest: u128,
    position: usize,
}

/// The shares of all kinds in a column.
#[derive(Debug, Clone, Copy, Default)]
struct Cell {
    shares: [Share; Kind::ALL.len()],
    /// Whether a span that is narrower than a column lies in it, wholly or with an end.
    mixed: bool,
    /// Whether such a span has its middle here: then the column is not idle.
    busy: bool,
}

impl Columns {
    /// So many columns for so much time.
    pub(super) const fn new(length: u64, count: usize) -> Self {
        Self { length, count }
    }

    /// Columns for a timeline, at most `available`.
    ///
    /// Where all times are multiples of some time and each multiple gets a column, every multiple
    /// gets the same number of columns, so that equal times look equal. Else the whole width is used.
    pub(super) fn fit(timeline: &Timeline, available: usize) -> Self {
        let length = length(timeline);
        let quantum = common_divisor(timeline);
        let wanted = u64::try_from(available).unwrap_or(u64::MAX);
        let count = match length.checked_div(quantum) {
            None | Some(0) => 0,
            Some(quanta) if quanta <= wanted => {
                quanta * (wanted / quanta).min(MAX_COLUMNS_PER_QUANTUM)
            }
            Some(_) => wanted,
        };
        let count = usize::try_from(count).unwrap_or(available);
        Self { length, count }
    }

    /// The number of columns.
    pub(super) const fn count(self) -> usize {
        self.count
    }

    /// The time of the whole row.
    pub(super) const fn length(self) -> u64 {
        self.length
    }

    /// The time of one column; zero without columns.
    pub(super) fn time(self) -> f64 {
        if self.count == 0 {
            0.0
        } else {
            self.length as f64 / self.count as f64
        }
    }

    /// The column in which a moment lies; that of the end is one behind the last.
    pub(super) fn at(self, time: u64) -> usize {
        let scaled = u128::from(time) * self.count as u128;
        let column = scaled.checked_div(u128::from(self.length)).unwrap_or(0);
        usize::try_from(column).map_or(self.count, |column| column.min(self.count))
    }

    /// For each column the span that it shows, by its place in the list, or `None` for idle.
    ///
    /// A column shows the kind that has most of its time, and of it the longest span. Where spans are
    /// narrower than a column, kinds and idle time take turns in proportion to their times, but a
    /// column in which such a span has its middle is never idle.
    /// Time: linear in the spans and the columns.
    pub(super) fn row(self, spans: impl Iterator<Item = Drawn>) -> Vec<Option<usize>> {
        let mut cells = vec![Cell::default(); self.count];
        let width = u128::from(self.length);
        // Times are multiplied by the number of columns: then a column is as wide as the step is long.
        let scale = |time: u64| u128::from(time.min(self.length)) * self.count as u128;
        for span in spans {
            let (start, end) = (scale(span.start), scale(span.end));
            let (first, last) = (self.at(span.start), self.at(span.end));
            let middle = self.at(span.start + span.end.saturating_sub(span.start) / 2);
            let narrow = end.saturating_sub(start) < width;
            for (column, cell) in cells.iter_mut().enumerate().take(last + 1).skip(first) {
                let left = column as u128 * width;
                let time = end.min(left + width).saturating_sub(start.max(left));
                let share = &mut cell.shares[span.kind.slot()];
                share.time += time;
                if time > share.largest {
                    (share.largest, share.position) = (time, span.position);
                }
                cell.mixed |= narrow && time > 0;
                cell.busy |= narrow && time > 0 && column == middle;
            }
        }
        let mut turns = Turns::default();
        cells.iter().map(|cell| turns.take(cell, width)).collect()
    }
}

/// The time that each kind, and idle time at last, has had of the last columns and was not shown for.
#[derive(Debug, Default)]
struct Turns([i128; Kind::ALL.len() + 1]);

impl Turns {
    fn take(&mut self, cell: &Cell, width: u128) -> Option<usize> {
        // Only narrow spans wait for a turn; wide ones get the columns that they fill.
        if !cell.mixed {
            self.0 = Default::default();
        }
        let signed = |time: u128| i128::try_from(time).unwrap_or(i128::MAX);
        let busy: u128 = cell.shares.iter().map(|share| share.time).sum();
        let idle = width.saturating_sub(busy);
        let times = cell.shares.iter().map(|share| share.time).chain([idle]);
        let mut most: Option<(usize, i128)> = None;
        for (slot, (time, waiting)) in times.zip(&mut self.0).enumerate() {
            *waiting = waiting.saturating_add(signed(time));
            let may = time > 0 && !(cell.busy && slot == Kind::ALL.len());
            if may && most.is_none_or(|(_, longest)| *waiting > longest) {
                most = Some((slot, *waiting));
            }
        }
        let (slot, _) = most?;
        self.0[slot] = self.0[slot].saturating_sub(signed(width));
        cell.shares.get(slot).map(|share| share.position)
    }
}

/// The largest time of which all times of a timeline are multiples; zero without any.
fn common_divisor(timeline: &Timeline) -> u64 {
    let mut divisor = 0;
    for span in timeline.ranks.iter().flat_map(|rank| &rank.spans) {
        for time in [span.start, span.end] {
            divisor = euclid(divisor, time);
            if divisor == 1 {
                return 1;
            }
        }
    }
    divisor
}

fn euclid(mut a: u64, mut b: u64) -> u64 {
    while b > 0 {
        (a, b) = (b, a % b);
    }
    a
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn drawn(position: usize, start: u64, end: u64, kind: Kind) -> Drawn {
        Drawn {
            position,
            start,
            end,
            kind,
        }
    }

    fn check(columns: Columns, spans: &[Drawn], expected: &str) {
        let row = columns.row(spans.iter().copied()).into_iter();
        let text: String = row
            .map(|cell| cell.map_or("·".to_owned(), |position| position.to_string()))
            .collect();
        assert_eq!(text, expected);
    }

    #[test]
    fn a_column_shows_what_has_most_of_it() {
        use Kind::{Backward, Forward};
        let ten = Columns {
            length: 100,
            count: 10,
        };
        check(ten, &[], "··········");
        check(ten, &[drawn(0, 0, 100, Forward)], "0000000000");
        // Less than half of the third column.
        check(ten, &[drawn(0, 0, 24, Forward)], "00········");
        check(ten, &[drawn(0, 0, 25, Forward)], "000·······");
        // Narrow, so it shows though most of its column is idle.
        check(ten, &[drawn(0, 42, 43, Forward)], "····0·····");
        // Two forwards have more of the first column than the backward, whose middle is in the next.
        let mixed = [
            drawn(0, 0, 3, Forward),
            drawn(1, 3, 6, Forward),
            drawn(2, 6, 15, Backward),
        ];
        check(ten, &mixed, "02········");
        // Beyond the end, backwards and empty.
        check(
            ten,
            &[drawn(0, 95, 900, Forward), drawn(1, 30, 20, Backward)],
            "·········0",
        );
    }

    /// Forwards have a third of the time, so they have a third of the columns.
    #[test]
    fn narrow_kinds_take_turns() {
        let spans = (0..32).flat_map(|at: usize| {
            let start = 3 * at as u64;
            [
                drawn(0, start, start + 1, Kind::Forward),
                drawn(1, start + 1, start + 3, Kind::Backward),
            ]
        });
        let columns = Columns {
            length: 96,
            count: 24,
        };
        let spans: Vec<Drawn> = spans.collect();
        check(columns, &spans, "011011011011011011011011");
    }

    proptest! {
        /// Spans one after the other, each at least a column long, all show, in their order.
        #[test]
        fn wide_spans_are_never_lost(times in prop::collection::vec(10_u64..50, 1..30), scale in 1_u64..1000) {
            let mut spans = Vec::new();
            let mut now = 0;
            for (position, time) in times.iter().enumerate() {
                spans.push(drawn(position, now, now + time * scale, Kind::ALL[position % 4]));
                now += time * scale;
            }
            let count = usize::try_from(now / scale).unwrap() / 9;
            let columns = Columns { length: now, count };
            let mut row = columns.row(spans.into_iter());
            row.dedup();
            prop_assert_eq!(row, (0..times.len()).map(Some).collect::<Vec<_>>());
        }

        /// Any times at all, as a file may have them.
        #[test]
        fn no_times_are_refused(
            times in prop::collection::vec((any::<u64>(), any::<u64>()), 0..20),
            length in any::<u64>(),
            count in 0_usize..50,
        ) {
            let spans = times.iter().enumerate();
            let spans = spans.map(|(at, (start, end))| drawn(at, *start, *end, Kind::Forward));
            let row = Columns { length, count }.row(spans);
            prop_assert_eq!(row.len(), count);
        }
    }
}
