//! Round marks on the time axis.

use super::units::unit_for;
use crate::simulate::TimeUnit;

/// One mark: a time and its label.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Mark {
    pub(super) time: u64,
    pub(super) label: String,
}

/// Marks from zero to `length`, at most `most` beside zero, at multiples of 1, 2 or 5 times a power of
/// ten. Measured times carry their unit, ticks none.
pub(super) fn marks(length: u64, unit: TimeUnit, most: usize) -> Vec<Mark> {
    let step = step(length, most);
    let (name, size) = unit_for(length as f64, unit);
    let label = |time: u64| {
        let number = time as f64 / size;
        match unit {
            TimeUnit::Nanoseconds if time > 0 => format!("{number} {name}"),
            _ => number.to_string(),
        }
    };
    let times = (0..=length / step).map(|count| count * step);
    times
        .map(|time| Mark {
            time,
            label: label(time),
        })
        .collect()
}

/// The smallest round step of which at most `most` fit into `length`.
fn step(length: u64, most: usize) -> u64 {
    let most = u64::try_from(most).unwrap_or(u64::MAX).max(1);
    let mut power: u64 = 1;
    loop {
        for factor in [1, 2, 5] {
            match power.checked_mul(factor) {
                Some(step) if length / step > most => {}
                Some(step) => return step,
                // A step beyond all times leaves the zero alone.
                None => return u64::MAX,
            }
        }
        match power.checked_mul(10) {
            Some(next) => power = next,
            None => return u64::MAX,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_round_and_few() {
        let cases = [
            (0, TimeUnit::Ticks, 8, "0"),
            (1, TimeUnit::Ticks, 8, "0 | 1"),
            (33, TimeUnit::Ticks, 8, "0 | 5 | 10 | 15 | 20 | 25 | 30"),
            (33, TimeUnit::Ticks, 0, "0 | 20"),
            (1_000, TimeUnit::Nanoseconds, 3, "0 | 0.5 µs | 1 µs"),
            (
                3_400_000,
                TimeUnit::Nanoseconds,
                4,
                "0 | 1 ms | 2 ms | 3 ms",
            ),
            (u64::MAX, TimeUnit::Nanoseconds, 1, "0 | 10000000000 s"),
        ];
        for (length, unit, most, expected) in cases {
            let labels = marks(length, unit, most).into_iter().map(|mark| mark.label);
            assert_eq!(labels.collect::<Vec<_>>().join(" | "), expected);
        }
    }
}
