//! Runs all partitioners and chooses the fastest result.

use super::partitioner::{Candidate, Partitioner, Planned, candidate};
use super::reasons;
use crate::{Machine, PlannerError, Step, Work};

/// Runs all partitioners and chooses the fastest partition that fits; ties are broken by fewer crossing
/// bytes, then by the order of [`Partitioner::ALL`].
///
/// By [`predict()`](crate::predict()), the result is never slower than that of any partitioner. The
/// time is the sum of their times.
pub(super) fn auto(work: &Work, machine: &Machine, step: &Step) -> Result<Planned, PlannerError> {
    let mut tried = Vec::new();
    let mut chain_error = None;
    for partitioner in Partitioner::ALL {
        if partitioner == Partitioner::Auto {
            continue;
        }
        if machine.ranks() == 1 && partitioner != Partitioner::Chain {
            let why = "one rank runs all blocks";
            tried.push(Tried::Not(reasons::not_run(partitioner, why)));
            continue;
        }
        let found = candidate(partitioner, work, machine, step);
        let found = found.and_then(|found| match found.over() {
            Some(over) => Err(over.into()),
            None => Ok(found),
        });
        match found {
            Ok(found) => tried.push(Tried::Found(Box::new(found))),
            Err(error) => {
                tried.push(Tried::Not(match &error {
                    PlannerError::NotBuiltIn { .. } => {
                        reasons::not_run(partitioner, &error.to_string())
                    }
                    error => reasons::failed(partitioner, error),
                }));
                if partitioner == Partitioner::Chain {
                    chain_error = Some(error);
                }
            }
        }
    }
    choose(tried).map_err(|NothingFound| chain_error.expect("`chain` is always run"))
}

/// The result of one partitioner.
enum Tried {
    Found(Box<Candidate>),
    /// It found no plan.
    Not(String),
}

struct NothingFound;

/// The best result, with one sentence for each partitioner, that of the chosen one first.
fn choose(mut tried: Vec<Tried>) -> Result<Planned, NothingFound> {
    let key = |tried: &Tried| match tried {
        Tried::Found(found) => {
            let prediction = &found.predicted.prediction;
            Some((prediction.step_ns, prediction.crossing_bytes))
        }
        Tried::Not(_) => None,
    };
    let keys = tried.iter().enumerate();
    let keys = keys.filter_map(|(at, tried)| key(tried).map(|key| (key, at)));
    let (_, best) = keys.min().ok_or(NothingFound)?;
    let Tried::Found(best) = tried.remove(best) else {
        return Err(NothingFound);
    };
    let others = tried.iter().map(|tried| match tried {
        Tried::Found(found) => reasons::rejected(found, &best),
        Tried::Not(why) => why.clone(),
    });
    let reasons = [reasons::chosen(&best)].into_iter().chain(others);
    let reasons = reasons.collect();
    Ok(best.planned(reasons))
}
