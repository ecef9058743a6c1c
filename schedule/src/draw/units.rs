//! Times, bytes and shares in words.

use crate::simulate::TimeUnit;

/// Units of measured times, and how many nanoseconds each is.
const NANOSECOND_UNITS: [(&str, f64); 4] = [("s", 1e9), ("ms", 1e6), ("µs", 1e3), ("ns", 1.0)];

/// The unit in which times up to `longest` are short: its name and how many of the timeline's units
/// it is.
pub(super) fn unit_for(longest: f64, unit: TimeUnit) -> (&'static str, f64) {
    match unit {
        TimeUnit::Ticks => ("ticks", 1.0),
        TimeUnit::Nanoseconds => {
            let fits = NANOSECOND_UNITS
                .into_iter()
                .find(|(_, size)| longest >= *size);
            fits.unwrap_or(("ns", 1.0))
        }
    }
}

/// A time to three digits: `33 ticks`, `1.25 ms`.
pub(super) fn time_text(time: f64, unit: TimeUnit) -> String {
    let (name, size) = unit_for(time, unit);
    let number = three_digits(time / size);
    let name = match name {
        "ticks" if number == "1" => "tick",
        other => other,
    };
    format!("{number} {name}")
}

/// Bytes to three digits: `512 B`, `1.5 GiB`.
pub(super) fn bytes_text(bytes: u64) -> String {
    const UNITS: [&str; 7] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    // The number may not round up to four digits, so a unit ends a little below the next.
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 1023.5 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    format!("{} {}", three_digits(value), UNITS[unit])
}

/// A share of one in percent, with one digit behind the point.
pub(super) fn percent_text(share: f64) -> String {
    format!("{:.1}%", share * 100.0)
}

/// Three digits, or all that stand before the point, without closing zeros.
fn three_digits(value: f64) -> String {
    let text = if value >= 99.95 {
        format!("{value:.0}")
    } else if value >= 9.995 {
        format!("{value:.1}")
    } else {
        format!("{value:.2}")
    };
    if text.contains('.') {
        text.trim_end_matches('0').trim_end_matches('.').to_owned()
    } else {
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_three_digits_and_a_unit() {
        let cases = [
            (0.0, "0 ticks", "0 ns"),
            (1.0, "1 tick", "1 ns"),
            (3.2, "3.2 ticks", "3.2 ns"),
            (33.0, "33 ticks", "33 ns"),
            (1_254.0, "1254 ticks", "1.25 µs"),
            (99_960.0, "99960 ticks", "100 µs"),
            (2_000_000.0, "2000000 ticks", "2 ms"),
            (61_700_000_000.0, "61700000000 ticks", "61.7 s"),
        ];
        for (time, ticks, nanoseconds) in cases {
            assert_eq!(time_text(time, TimeUnit::Ticks), ticks);
            assert_eq!(time_text(time, TimeUnit::Nanoseconds), nanoseconds);
        }
    }

    #[test]
    fn bytes_have_three_digits_and_a_unit() {
        let cases = [
            (0, "0 B"),
            (1023, "1023 B"),
            (1536, "1.5 KiB"),
            (1_048_575, "1 MiB"),
            (13 << 30, "13 GiB"),
            (u64::MAX, "16 EiB"),
        ];
        for (bytes, expected) in cases {
            assert_eq!(bytes_text(bytes), expected);
        }
    }

    #[test]
    fn shares_are_percent() {
        for (share, expected) in [(0.0, "0.0%"), (3.0 / 11.0, "27.3%"), (1.0, "100.0%")] {
            assert_eq!(percent_text(share), expected);
        }
    }
}
