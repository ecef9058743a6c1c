//! Runs all partitioners and chooses the fastest result.

use super::partitioner::{Partitioner, Planned, partition};
use super::reasons;
use crate::{Machine, PlannerError, Step, Work};

/// Runs all partitioners and chooses the fastest partition that fits; ties are broken by fewer crossing
/// bytes, then by the order of [`Partitioner::ALL`].
///
/// By [`predict()`](crate::predict()), the result is never slower than the result of any partitioner. The
/// time is the sum of their times.
pub(super) fn auto(work: &Work, machine: &Machine, step: &Step) -> Result<Planned, PlannerError> {
    // What each partitioner found, or why it found nothing.
    let mut tried: Vec<Result<Planned, String>> = Vec::new();
    let mut chain_error = None;
    for partitioner in Partitioner::ALL {
        if partitioner == Partitioner::Auto {
            continue;
        }
        if machine.ranks() == 1 && partitioner != Partitioner::Chain {
            let why = "one rank runs all blocks";
            tried.push(Err(reasons::not_run(partitioner, why)));
            continue;
        }
        let found = partition(partitioner, work, machine, step);
        tried.push(found.map_err(|error| {
            let why = reasons::failed(partitioner, &error);
            if partitioner == Partitioner::Chain {
                chain_error = Some(error);
            }
            why
        }));
    }
    let found = tried.iter().enumerate();
    let found = found.filter_map(|(at, tried)| Some((at, tried.as_ref().ok()?)));
    let best = found.min_by_key(|(_, found)| {
        let prediction = &found.predicted.prediction;
        (prediction.step_ns, prediction.crossing_bytes)
    });
    let best = best.map(|(at, _)| at);
    let Some(Ok(mut best)) = best.map(|at| tried.remove(at)) else {
        return Err(chain_error.expect("`chain` is always run"));
    };
    let others = tried.into_iter().map(|tried| match tried {
        Ok(found) => reasons::rejected(&found, &best),
        Err(why) => why,
    });
    let others: Vec<String> = others.collect();
    best.choice.reasons.extend(others);
    Ok(best)
}
