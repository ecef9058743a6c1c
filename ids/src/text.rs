//! Bytes, times, fractions and errors as text.

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
}

/// Returns bytes with three digits and a unit: `512 B`, `3.91 GiB`. A half is rounded to the even digit.
#[must_use]
pub fn human_bytes(bytes: u64) -> String {
    let scale = Scale::of(&BYTES, bytes, 3);
    let number = bytes as f64 / scale.size as f64;
    format!("{number:.digits$} {}", scale.unit, digits = scale.decimals)
}

/// Returns bytes as [`human_bytes`] does, or with all digits if another number has the same three: two numbers in one
/// sentence that differ never look the same.
#[must_use]
pub fn human_bytes_distinct(bytes: u64, other: u64) -> String {
    match human_bytes(bytes) {
        same if same == human_bytes(other) => format!("{bytes} B"),
        distinct => distinct,
    }
}

/// Returns a time to three digits: `33 ns`, `1.25 ms`.
#[must_use]
pub fn time_text(nanoseconds: u64) -> String {
    let scale = Scale::of(&TIMES, nanoseconds, 3);
    format!("{} {}", scale.number(nanoseconds), scale.unit)
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
    u64::try_from(share.unwrap_or(0)).unwrap_or(u64::MAX)
}

/// Returns a part of a whole in percent: `12.3 %`.
#[must_use]
pub fn share_text(part: u64, whole: u64) -> String {
    permille_text(permille(part, whole))
}

/// Formats a number with a comma between groups of three digits.
#[must_use]
pub fn group_digits(number: u64) -> String {
    let digits = number.to_string().into_bytes();
    let groups = digits.rchunks(3).rev().map(String::from_utf8_lossy);
    groups.collect::<Vec<_>>().join(",")
}

/// Returns a count with its noun: `1 rank`, `2 ranks`, `2 micro-batches`.
#[must_use]
pub fn count_text(count: usize, noun: &str) -> String {
    let plural = match count {
        1 => "",
        _ if noun.ends_with("ch") => "es",
        _ => "s",
    };
    format!("{count} {noun}{plural}")
}

/// Joins parts with a gap between them, in lines of at most `width` characters if no part is longer.
#[must_use]
pub fn wrapped<'p>(all: impl IntoIterator<Item = &'p str>, gap: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for part in all {
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

/// An error of parsing a number of bytes.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not a size: write a number of bytes with a unit, such as 600MiB or 4GB")]
pub struct UnknownSize {
    /// The text.
    pub text: String,
}

/// Parses a number of bytes, such as `600MiB`, `4GB` or `1073741824`.
///
/// # Errors
///
/// When the text is not a number with a unit, or the number is less than a byte.
pub fn parse_bytes(text: &str) -> Result<u64, UnknownSize> {
    const DECIMAL: [(&str, u64); 5] = [
        ("KB", 1_000),
        ("kB", 1_000),
        ("MB", 1_000_000),
        ("GB", 1_000_000_000),
        ("TB", 1_000_000_000_000),
    ];
    let unknown = || UnknownSize { text: text.into() };
    // `B` is the end of all other units, so it comes after them.
    let units = DECIMAL.iter().chain(BYTES.iter().rev());
    let mut units = units.chain(&[("", 1)]);
    let split = units.find_map(|(unit, bytes)| Some((text.strip_suffix(unit)?, *bytes)));
    let (number, unit) = split.ok_or_else(unknown)?;
    let number: f64 = number.trim().parse().map_err(|_| unknown())?;
    let bytes = number * unit as f64;
    let is_size = bytes >= 1.0 && bytes < u64::MAX as f64;
    is_size.then_some(bytes as u64).ok_or_else(unknown)
}

/// Returns an error with its causes, as one line.
pub fn with_causes(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(error.source(), |&cause| cause.source());
    causes.fold(error.to_string(), |text, cause| {
        let next = cause.to_string();
        // A transparent error repeats its source.
        match text.ends_with(&next) {
            true => text,
            false => format!("{text}: {next}"),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_digits() {
        for (number, text) in [
            (0, "0"),
            (999, "999"),
            (1000, "1,000"),
            (1234567, "1,234,567"),
        ] {
            assert_eq!(group_digits(number), text);
        }
    }

    #[test]
    fn times_have_three_digits() {
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
    fn bytes_have_three_digits() {
        for (bytes, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.00 KiB"),
            (1152, "1.12 KiB"),
            (10 * 1024, "10.0 KiB"),
            (1536 * 1024, "1.50 MiB"),
            (200 << 20, "200 MiB"),
            (13 << 30, "13.0 GiB"),
            (282_214_825_984, "263 GiB"),
            (u64::MAX, "16.0 EiB"),
        ] {
            assert_eq!(human_bytes(bytes), text);
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
        assert_eq!(count_text(2, "micro-batch"), "2 micro-batches");
    }
}
