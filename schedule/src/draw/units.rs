//! Bytes, times and fractions as text, in integer arithmetic.

use crate::arithmetic::narrow;

/// Units of bytes, and their sizes in bytes.
const BYTES: [(&str, u64); 7] = [
    ("B", 1),
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("TiB", 1 << 40),
    ("PiB", 1 << 50),
    ("EiB", 1 << 60),
];
/// Units of time, and their lengths in nanoseconds.
const TIMES: [(&str, u64); 4] = [
    ("ns", 1),
    ("µs", 1_000),
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
];

/// The unit and the number of decimals of all numbers in a column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub struct Scale {
    /// The name of the unit.
    pub unit: &'static str,
    size: u64,
    decimals: usize,
}

impl Scale {
    /// Returns the scale of a column of bytes: four digits for the largest, so that smaller ones are visible.
    pub fn bytes(values: impl IntoIterator<Item = u64>) -> Self {
        Self::of(&BYTES, values.into_iter().max().unwrap_or(0), 4)
    }

    /// Returns the scale of a column of nanoseconds, as [`Scale::bytes`].
    pub fn times(values: impl IntoIterator<Item = u64>) -> Self {
        Self::of(&TIMES, values.into_iter().max().unwrap_or(0), 4)
    }

    /// Returns the largest unit that `largest` reaches, with this many digits of it.
    fn of(units: &[(&'static str, u64)], largest: u64, digits: usize) -> Self {
        let reached = units.iter().rfind(|(_, size)| largest >= *size);
        let (unit, size) = *reached.unwrap_or(&units[0]);
        let decimals = match size {
            1 => 0,
            _ => digits.saturating_sub((largest / size).to_string().len()),
        };
        Self {
            unit,
            size,
            decimals,
        }
    }

    /// Returns a number of the column, rounded, without the unit.
    #[must_use]
    pub fn number(&self, value: u64) -> String {
        let (size, decimals) = (u128::from(self.size), self.decimals);
        let rounded = (u128::from(value) * 10_u128.pow(decimals as u32) + size / 2) / size;
        let mut text = format!("{rounded:0>0$}", decimals + 1);
        if decimals > 0 {
            text.insert(text.len() - decimals, '.');
        }
        text
    }

    fn text(&self, value: u64) -> String {
        format!("{} {}", self.number(value), self.unit)
    }
}

/// Returns bytes to three digits: `512 B`, `1.50 GiB`.
#[must_use]
pub fn bytes_text(bytes: u64) -> String {
    Scale::of(&BYTES, bytes, 3).text(bytes)
}

/// Returns a time to three digits: `33 ns`, `1.25 ms`.
#[must_use]
pub fn time_text(nanoseconds: u64) -> String {
    Scale::of(&TIMES, nanoseconds, 3).text(nanoseconds)
}

/// Returns thousandths as percent: `12.3 %`.
#[must_use]
pub fn permille_text(permille: u64) -> String {
    format!("{}.{} %", permille / 10, permille % 10)
}

/// Returns a part of a whole in thousandths, rounded; zero if the whole is zero.
#[must_use]
pub fn permille(part: u64, whole: u64) -> u64 {
    let whole = u128::from(whole);
    let share = (u128::from(part) * 1000 + whole / 2).checked_div(whole);
    narrow(share.unwrap_or(0))
}

/// Returns a part of a whole in percent: `12.3 %`.
#[must_use]
pub fn share_text(part: u64, whole: u64) -> String {
    permille_text(permille(part, whole))
}

/// Returns a count with its noun: `1 rank`, `2 ranks`.
#[must_use]
pub fn count_text(count: usize, noun: &str) -> String {
    let plural = if count == 1 { "" } else { "s" };
    format!("{count} {noun}{plural}")
}

/// Joins parts with a gap between them, in lines of at most `width` characters if no part is longer.
#[must_use]
pub fn wrapped<'p>(
    parts: impl IntoIterator<Item = &'p str>,
    gap: &str,
    width: usize,
) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for part in parts {
        let length = |text: &str| text.chars().count();
        match lines.last_mut() {
            Some(line) if length(line) + length(gap) + length(part) <= width => {
                *line += gap;
                *line += part;
            }
            _ => lines.push(part.to_owned()),
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn single_numbers_have_three_digits_and_a_unit() {
        for (bytes, expected) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1536, "1.50 KiB"),
            (10 << 20, "10.0 MiB"),
            (13 << 30, "13.0 GiB"),
            (200 << 20, "200 MiB"),
            (u64::MAX, "16.0 EiB"),
        ] {
            assert_eq!(bytes_text(bytes), expected);
        }
        for (time, expected) in [
            (0, "0 ns"),
            (999, "999 ns"),
            (1_255, "1.26 µs"),
            (12_340_000, "12.3 ms"),
            (61_700_000_000, "61.7 s"),
            (u64::MAX, "18446744074 s"),
        ] {
            assert_eq!(time_text(time), expected);
        }
    }

    #[test]
    fn a_column_has_one_unit_that_shows_its_small_numbers_too() {
        let found = |values: &[u64]| {
            let scale = Scale::times(values.iter().copied());
            let numbers: Vec<String> = values.iter().map(|value| scale.number(*value)).collect();
            format!("{} {}", numbers.join(" "), scale.unit)
        };
        for (values, expected) in [
            (&[][..], " ns"),
            (&[0, 0], "0 0 ns"),
            (&[999], "999 ns"),
            (&[10_000, 40], "10.00 0.04 µs"),
            (&[1_234_567, 100_000], "1.235 0.100 ms"),
            (&[123_456_789, 1_000_000], "123.5 1.0 ms"),
            (&[u64::MAX, 0], "18446744074 0 s"),
        ] {
            assert_eq!(found(values), expected);
        }
        assert_eq!(Scale::bytes([u64::MAX]).number(u64::MAX), "16.00");
    }

    #[test]
    fn shares_are_percent() {
        for (part, whole, expected) in [
            (0, 0, "0.0 %"),
            (5, 0, "0.0 %"),
            (1, 3, "33.3 %"),
            (2, 3, "66.7 %"),
            (3, 2, "150.0 %"),
            (u64::MAX, u64::MAX, "100.0 %"),
        ] {
            assert_eq!(share_text(part, whole), expected);
        }
        assert_eq!(permille(u64::MAX, 1), u64::MAX);
        assert_eq!(
            [0, 1, 2].map(|n| count_text(n, "rank")),
            ["0 ranks", "1 rank", "2 ranks"]
        );
    }
}
