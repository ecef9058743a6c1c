//! The reasons for choosing a partition, in sentences.

use tinderbox_ids::text::permille_text;
use tinderbox_ids::with_causes;

use super::partitioner::{Partitioner, Planned};
use crate::{PlannerError, Predicted};

/// The prediction of a chosen partition, and its time by the cost model of `chain` if its stages are optimal.
pub(super) fn chosen(
    partitioner: Partitioner,
    predicted: &Predicted,
    optimal_ns: Option<u64>,
) -> String {
    let prediction = &predicted.prediction;
    // Stages that are not placed as the step's schedule requires run under lists that were searched for
    // them.
    let schedule = match predicted.schedule.name.as_str() {
        "auto" => " under a schedule found for it",
        _ => "",
    };
    let optimal = optimal_ns.map(|ns| {
        let time = duration(ns);
        format!("; optimal for its cost model, which predicts {time}")
    });
    format!(
        "{partitioner}: {} per step{schedule}, idle {}, {} cross, fits{}",
        duration(prediction.step_ns),
        permille_text(prediction.idle_permille),
        bytes(prediction.crossing_bytes),
        optimal.unwrap_or_default(),
    )
}

/// The reason why another partition that fits was not chosen.
pub(super) fn rejected(candidate: &Planned, chosen: &Planned) -> String {
    let [name, other] = [candidate, chosen].map(|one| &one.choice.partitioner);
    if candidate.partition == chosen.partition {
        return format!("{name}: the same as {other}");
    }
    let [own, best] = [candidate, chosen].map(|one| &one.predicted.prediction);
    let slower = u128::from(own.step_ns.saturating_sub(best.step_ns));
    let permille = (slower * 1000).div_ceil(u128::from(best.step_ns.max(1)));
    if slower > 0 {
        let permille = u64::try_from(permille).unwrap_or(u64::MAX);
        return format!("{name}: {} slower than {other}", permille_text(permille));
    }
    match own.crossing_bytes.saturating_sub(best.crossing_bytes) {
        0 => format!("{name}: as fast as {other}, which comes first"),
        more => format!("{name}: as fast as {other}, but {} more cross", bytes(more)),
    }
}

/// The reason why a partitioner that is not built in, found nothing, or exceeded memory was not chosen.
pub(super) fn failed(partitioner: Partitioner, error: &PlannerError) -> String {
    if let PlannerError::NotBuiltIn { .. } = error {
        return not_run(partitioner, &error.to_string());
    }
    format!("{partitioner}: no plan, {}", with_causes(error))
}

/// The reason why a partitioner was not run.
pub(super) fn not_run(partitioner: Partitioner, why: &str) -> String {
    format!("{partitioner}: not run, {why}")
}

/// Nanoseconds in the largest unit with a value of at least ten, with one decimal.
fn duration(ns: u64) -> String {
    let units = [(1_000_000_000, "s"), (1_000_000, "ms"), (1_000, "µs")];
    scaled(ns, 10, &units).unwrap_or(format!("{ns} ns"))
}

/// Bytes in the largest unit with a value of at least one, with one decimal.
fn bytes(bytes: u64) -> String {
    let units = [(1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
    scaled(bytes, 1, &units).unwrap_or(format!("{bytes} bytes"))
}

fn scaled(number: u64, least: u64, units: &[(u64, &str)]) -> Option<String> {
    let mut units = units.iter();
    let (unit, name) = units.find(|(unit, _)| number / unit >= least)?;
    let tenths = u128::from(number) * 10 / u128::from(*unit);
    Some(format!("{}.{} {name}", tenths / 10, tenths % 10))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_units() {
        assert_eq!(duration(12_345_678), "12.3 ms");
        assert_eq!(duration(9_999), "9999 ns");
        assert_eq!(duration(10_000), "10.0 µs");
        assert_eq!(duration(9_999_999_999), "9999.9 ms");
        assert_eq!(duration(u64::MAX), "18446744073.7 s");
        assert_eq!(bytes(1_258_291), "1.1 MiB");
        assert_eq!(bytes(5 << 30), "5.0 GiB");
        assert_eq!(bytes(0), "0 bytes");
    }
}
