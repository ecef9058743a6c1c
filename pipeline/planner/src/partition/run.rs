//! Runs one partitioner, or all of them.

use super::chain::chain;
use super::limits::within_limits;
#[cfg(feature = "metis")]
use super::metis::metis;
use super::mixed::mixed;
use super::partitioner::{Choice, Partitioner, Planned};
use super::reasons;
use crate::{Machine, PlannerError, Step, Work, predict};

/// Partitions work and predicts the step.
///
/// ```
/// use tinderbox_planner::{Block, Machine, Partitioner, Step, Value, Work, partition};
/// use tinderbox_schedule::ScheduleKind;
///
/// let block = |index: usize| Block {
///     name: format!("blocks.{index}"),
///     forward: 1_000_000,
///     backward: 2_000_000,
///     input_gradient: 1_000_000,
///     weight_gradient: 1_000_000,
///     ..Block::default()
/// };
/// let value = |maker: usize| Value {
///     bytes: 4096,
///     gradient_bytes: 4096,
///     maker,
///     readers: vec![maker + 1],
///     ..Value::default()
/// };
/// let work = Work {
///     blocks: (0..8).map(block).collect(),
///     values: (0..7).map(value).collect(),
///     ..Work::default()
/// };
/// let step = Step::new(ScheduleKind::OneFOneB, 8);
/// let planned = partition(Partitioner::Chain, &work, &Machine::local(2)?, &step)?;
/// assert_eq!(planned.partition.stage_of, [0, 0, 0, 0, 1, 1, 1, 1]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
///
/// The error of the partitioner; [`Infeasible`](crate::Infeasible) where the partition does not fit the memory of the
/// ranks; [`PlannerError::NotBuiltIn`] for METIS without the feature `metis`. `auto` fails where all
/// partitioners do, with the error of `chain`.
pub fn partition(
    partitioner: Partitioner,
    work: &Work,
    machine: &Machine,
    step: &Step,
) -> Result<Planned, PlannerError> {
    work.check()?;
    let (stages, blocks) = (machine.ranks(), work.blocks.len());
    if blocks < stages {
        return Err(PlannerError::TooManyStages { stages, blocks });
    }
    let mut optimal_ns = None;
    let (partition, predicted) = match partitioner {
        Partitioner::Auto => return auto(work, machine, step),
        Partitioner::Chain => {
            let chained = chain(work, machine, step)?;
            optimal_ns = chained.is_optimal.then_some(chained.model_ns);
            let predicted = predict(work, machine, step, &chained.partition)?;
            (chained.partition, predicted)
        }
        Partitioner::Mixed => within_limits(work, machine, step, mixed)?,
        Partitioner::Metis => within_limits(work, machine, step, metis)?,
    };
    if let Some(over) = predicted.prediction.over_limit(machine) {
        return Err(over.into());
    }
    let choice = Choice {
        partitioner: partitioner.name().to_owned(),
        reasons: vec![reasons::chosen(partitioner, &predicted, optimal_ns)],
    };
    Ok(Planned {
        partition,
        predicted,
        choice,
    })
}

/// Runs all partitioners and chooses the fastest partition that fits; ties are broken by fewer crossing
/// bytes, then by the order of [`Partitioner::ALL`].
///
/// By [`predict()`](crate::predict()), the result is never slower than the result of any partitioner. The
/// time is the sum of their times.
fn auto(work: &Work, machine: &Machine, step: &Step) -> Result<Planned, PlannerError> {
    // The result of each partitioner, or the reason why it found nothing.
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
    let best = (0..tried.len()).min_by_key(|at| {
        let found = tried[*at].as_ref().ok();
        let prediction = found.map(|found| &found.predicted.prediction);
        let key = prediction.map(|of| (of.step_ns, of.crossing_bytes));
        (key.is_none(), key)
    });
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

/// Fails where METIS is not built in.
#[cfg(not(feature = "metis"))]
fn metis(_: &Work, _: &Machine, _: &Step) -> Result<super::partitioner::Found, PlannerError> {
    Err(PlannerError::NotBuiltIn {
        partitioner: Partitioner::Metis.name(),
        feature: "metis",
    })
}
