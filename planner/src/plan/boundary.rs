//! Texts for the ends of values that cross between stages.

use std::fmt::Display;

use tinderbox_schedule::{Compute, Edge, Endpoint};

use super::PlanFile;

/// The program of an end.
pub(super) const fn program_text(compute: Compute) -> &'static str {
    match compute {
        Compute::Forward => "forward",
        Compute::Backward => "backward",
        Compute::InputGradient => "input gradient",
        Compute::WeightGradient => "weight gradient",
        _ => "program",
    }
}

/// The ranks of an edge: `0 -> 1`, or `within 0`.
pub(super) fn route_text(plan: &PlanFile, edge: &Edge) -> String {
    let rank = |end: Endpoint| plan.stages.get(end.stage.index()).map(|stage| stage.rank);
    match (rank(edge.from), rank(edge.to)) {
        (Some(from), Some(to)) if from == to => format!("within {from}"),
        (Some(from), Some(to)) => format!("{from} -> {to}"),
        _ => "no such stage".to_owned(),
    }
}

/// A list with its noun: `stage 1`, `stages 1 and 4`.
pub(super) fn joined<T: Display>(noun: &str, all: &[T]) -> String {
    let texts: Vec<String> = all.iter().map(ToString::to_string).collect();
    match texts.as_slice() {
        [] => format!("no {noun}"),
        [one] => format!("{noun} {one}"),
        [firsts @ .., last] => format!("{noun}s {} and {last}", firsts.join(", ")),
    }
}
