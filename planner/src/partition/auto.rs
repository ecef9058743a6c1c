//! All partitioners, and the fastest of what they find.

use super::graph::Graph;
use super::partitioner::{Candidate, Partitioner, Planned, candidate};
use super::reasons;
use crate::{Machine, PlannerError, Step, Work};

/// Runs all partitioners that apply, and takes the fastest partition that fits: of equals the one with
/// fewer crossing bytes, then the first in the order of [`Partitioner::ALL`].
///
/// So it is never slower, by [`predict()`](crate::predict()), than any of them. It takes as long as all
/// of them together.
pub(super) fn auto(work: &Work, machine: &Machine, step: &Step) -> Result<Planned, PlannerError> {
    work.check()?;
    let mut tried = Vec::new();
    let mut first_error = None;
    let is_line = is_line(work, step);
    for (_, partitioner) in Partitioner::ALL {
        if partitioner == Partitioner::Auto {
            continue;
        }
        if let Some(why) = needless(partitioner, machine, is_line) {
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
                first_error = first_error.or(Some(error));
            }
        }
    }
    choose(tried).map_err(|NothingFound| {
        first_error.expect("the chain partitioner is always run, and found nothing")
    })
}

/// What became of one partitioner.
enum Tried {
    Found(Box<Candidate>),
    /// Why there is nothing.
    Not(String),
}

struct NothingFound;

/// The best of what was found, with a sentence on each, its own first.
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
        Tried::Found(found) => reasons::loser(found, &best),
        Tried::Not(why) => why.clone(),
    });
    let reasons = [reasons::winner(&best)].into_iter().chain(others);
    let reasons = reasons.collect();
    Ok(best.planned(reasons))
}

/// Whether the blocks can run in one order only.
fn is_line(work: &Work, step: &Step) -> bool {
    Graph::of_work(work, step, false).is_line()
}

/// Why a partitioner could find nothing that `chain` does not find as well.
fn needless(partitioner: Partitioner, machine: &Machine, is_line: bool) -> Option<&'static str> {
    let is_one_way = match partitioner {
        Partitioner::Chain | Partitioner::Auto => return None,
        Partitioner::Acyclic(_) => true,
        Partitioner::Metis(options) => options.repair == super::metis::MetisRepair::Acyclic,
        Partitioner::Mixed(_) => false,
    };
    if machine.ranks() == 1 {
        Some("one rank runs all blocks")
    } else if is_one_way && is_line {
        Some("the blocks form a line, of which `chain` looks at every cut")
    } else {
        None
    }
}
