//! Bytes, times and shares as text, by whole numbers alone.

/// Units of bytes, and how many bytes each is.
const BYTES: [(&str, u64); 7] = [
    ("B", 1),
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("TiB", 1 << 40),
    ("PiB", 1 << 50),
    ("EiB", 1 << 60),
];
/// Units of times, and how many nanoseconds each is.
const TIMES: [(&str, u64); 4] = [
    ("ns", 1),
    ("µs", 1_000),
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
];

/// The unit and the digits behind the point that all numbers of a column have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Scale {
    /// The name of the unit.
    pub(super) unit: &'static str,
    size: u64,
    digits: u32,
}

impl Scale {
    /// For a column of bytes.
    pub(super) fn bytes(values: impl IntoIterator<Item = u64>) -> Self {
        Self::column(&BYTES, values)
    }

    /// For a column of nanoseconds.
    pub(super) fn times(values: impl IntoIterator<Item = u64>) -> Self {
        Self::column(&TIMES, values)
    }

    /// The largest unit that the largest number reaches, with four digits of it, so that smaller
    /// numbers still show.
    fn column(units: &[(&'static str, u64)], values: impl IntoIterator<Item = u64>) -> Self {
        let largest = values.into_iter().max().unwrap_or(0);
        let fits = |(_, size): &&(&str, u64)| largest / size >= 1;
        Self::of(
            units.iter().rev().find(fits).unwrap_or(&units[0]),
            |size| match largest / size {
                1000.. => 0,
                100..1000 => 1,
                10..100 => 2,
                _ => 3,
            },
        )
    }

    /// The unit that gives one number three digits.
    fn single(units: &[(&'static str, u64)], value: u64) -> Self {
        let fits = |(_, size): &&(&str, u64)| value >= *size;
        Self::of(
            units.iter().rev().find(fits).unwrap_or(&units[0]),
            |size| match value / size {
                100.. => 0,
                10..100 => 1,
                _ => 2,
            },
        )
    }

    fn of((unit, size): &(&'static str, u64), digits: impl Fn(u64) -> u32) -> Self {
        Self {
            unit,
            size: *size,
            // Nothing is smaller than the smallest unit.
            digits: if *size == 1 { 0 } else { digits(*size) },
        }
    }

    /// A number of the column, rounded, without the unit.
    pub(super) fn number(&self, value: u64) -> String {
        let ten = 10_u128.pow(self.digits);
        let size = u128::from(self.size);
        let parts = (u128::from(value) * ten + size / 2) / size;
        match self.digits {
            0 => parts.to_string(),
            digits => {
                let (whole, rest) = (parts / ten, parts % ten);
                format!("{whole}.{rest:0digits$}", digits = digits as usize)
            }
        }
    }
}

/// Bytes to three digits: `512 B`, `1.50 GiB`.
pub(super) fn bytes_text(bytes: u64) -> String {
    let scale = Scale::single(&BYTES, bytes);
    format!("{} {}", scale.number(bytes), scale.unit)
}

/// A time to three digits: `33 ns`, `1.25 ms`.
pub(super) fn time_text(nanoseconds: u64) -> String {
    let scale = Scale::single(&TIMES, nanoseconds);
    format!("{} {}", scale.number(nanoseconds), scale.unit)
}

/// Thousandths as percent: `12.3 %`.
pub(super) fn permille_text(permille: u64) -> String {
    format!("{}.{} %", permille / 10, permille % 10)
}

/// A part of a whole in thousandths, rounded; of nothing, nothing.
pub(super) fn permille(part: u64, whole: u64) -> u64 {
    let whole = u128::from(whole);
    let share = (u128::from(part) * 1000 + whole / 2).checked_div(whole);
    u64::try_from(share.unwrap_or(0)).unwrap_or(u64::MAX)
}

/// A part of a whole in percent: `12.3 %`.
pub(super) fn share_text(part: u64, whole: u64) -> String {
    permille_text(permille(part, whole))
}

/// A count with its noun: `1 rank`, `2 ranks`.
pub(super) fn count_text(count: usize, noun: &str) -> String {
    let plural = if count == 1 { "" } else { "s" };
    format!("{count} {noun}{plural}")
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
