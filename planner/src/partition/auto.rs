//! Runs all partitioners and chooses the fastest result.

use super::partitioner::{Partitioner, Planned, partition};
use super::reasons;
use crate::{Machine, PlannerError, Step, Work};

/// Runs all partitioners and chooses the fastest partition that fits; ties are broken by fewer crossing
/// bytes, then by the order of [`Partitioner::ALL`].
///
/// By [`predict()`](crate::predict()), the result is never slower than that of any partitioner. The
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
    let best = tried.iter().flatten().min_by_key(|found| {
        let prediction = &found.predicted.prediction;
        (prediction.step_ns, prediction.crossing_bytes)
    });
    let Some(best) = best else {
        return Err(chain_error.expect("`chain` is always run"));
    };
    let others = tried.iter().filter_map(|tried| match tried {
        Ok(found) if std::ptr::eq(found, best) => None,
        Ok(found) => Some(reasons::rejected(found, best)),
        Err(why) => Some(why.clone()),
    });
    let mut planned = best.clone();
    planned.choice.reasons.extend(others);
    Ok(planned)
}
