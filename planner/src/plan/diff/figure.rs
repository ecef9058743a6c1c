//! A figure of a plan that may be different in another.

use std::fmt;

use serde::Serialize;

use super::Change;
use crate::plan::escape::visible;
use crate::plan::units::{bytes_text, permille, permille_text, time_text};

/// A figure of a plan, with its unit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "unit", content = "value", rename_all = "snake_case")]
pub enum Figure {
    /// Words.
    Text(String),
    /// A number of things.
    Count(u64),
    /// A time in nanoseconds.
    Nanoseconds(u64),
    /// Bytes.
    Bytes(u64),
    /// Thousandths.
    Permille(u64),
    /// Not there.
    None,
}

impl Figure {
    /// Words without what a terminal obeys.
    pub(super) fn text(text: &str) -> Self {
        Self::Text(visible(text).into_owned())
    }

    /// A number of things of this process.
    pub(super) fn count(count: usize) -> Self {
        Self::Count(count as u64)
    }

    /// Bytes that may have no limit.
    pub(super) fn limit(bytes: Option<u64>) -> Self {
        bytes.map_or(Self::None, Self::Bytes)
    }

    /// The number and its unit, to the last digit.
    fn exact(&self) -> Option<(u64, &'static str)> {
        match self {
            Self::Count(count) => Some((*count, "")),
            Self::Nanoseconds(time) => Some((*time, " ns")),
            Self::Bytes(bytes) => Some((*bytes, " B")),
            Self::Permille(permille) => Some((*permille, " in a thousand")),
            Self::Text(_) | Self::None => None,
        }
    }
}

impl fmt::Display for Figure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(text) if text.is_empty() => f.write_str("none"),
            Self::Text(text) => f.write_str(&visible(text)),
            Self::Count(count) => write!(f, "{count}"),
            Self::Nanoseconds(time) => f.write_str(&time_text(*time)),
            Self::Bytes(bytes) => f.write_str(&bytes_text(*bytes)),
            Self::Permille(permille) => f.write_str(&permille_text(*permille)),
            Self::None => f.write_str("none"),
        }
    }
}

impl Change {
    /// A change, if there is one.
    pub(super) fn of(what: impl Into<String>, before: Figure, after: Figure) -> Option<Self> {
        let what = what.into();
        (before != after).then_some(Self {
            what,
            before,
            after,
        })
    }
}

/// `1.20 ms -> 1.40 ms (+16.7 %)`; numbers that round to the same are written to the last digit.
impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (before, after) = (self.before.to_string(), self.after.to_string());
        let (Some((from, unit)), Some((to, to_unit))) = (self.before.exact(), self.after.exact())
        else {
            return write!(f, "{before} -> {after}");
        };
        match before == after {
            true => write!(f, "{from}{unit} -> {to}{to_unit}")?,
            false => write!(f, "{before} -> {after}")?,
        }
        // A difference of shares is no share of anything.
        if from == 0 || unit != to_unit || matches!(self.before, Figure::Permille(_)) {
            return Ok(());
        }
        let sign = if to < from { '-' } else { '+' };
        match permille(from.abs_diff(to), from) {
            0 => write!(f, " ({sign}less than 0.1 %)"),
            change => write!(f, " ({sign}{})", permille_text(change)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_tell_the_difference() {
        for (before, after, expected) in [
            (
                Figure::Bytes(4 << 20),
                Figure::Bytes(3 << 20),
                "4.00 MiB -> 3.00 MiB (-25.0 %)",
            ),
            (
                Figure::Nanoseconds(0),
                Figure::Nanoseconds(1500),
                "0 ns -> 1.50 µs",
            ),
            (
                Figure::Nanoseconds(1_000_000),
                Figure::Nanoseconds(1_000_001),
                "1000000 ns -> 1000001 ns (+less than 0.1 %)",
            ),
            (Figure::None, Figure::Bytes(1), "none -> 1 B"),
            (
                Figure::Permille(100),
                Figure::Permille(105),
                "10.0 % -> 10.5 %",
            ),
            (
                Figure::text("a\u{1b}"),
                Figure::text(""),
                "a\\u{1b} -> none",
            ),
            (
                Figure::Count(1),
                Figure::Count(u64::MAX),
                "1 -> 18446744073709551615 (+1844674407370955161.5 %)",
            ),
        ] {
            let change = Change::of("it", before.clone(), after).unwrap();
            assert_eq!(change.to_string(), expected);
            assert_eq!(Change::of("it", before.clone(), before), None);
        }
    }
}
