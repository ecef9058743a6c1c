//! Partitions within the memory that the simulator counts.

use super::partitioner::Found;
use crate::{Machine, PlannerError, Predicted, Step, Work, predict};

/// The maximum number of runs of a partitioner.
const ATTEMPTS: usize = 3;

/// The messages that wait to be read explain an excess of at most the limit divided by this number.
const MOST_EXCESS_DIVISOR: u64 = 8;

/// Finds a partition within the ranks' memory by the simulator, or the closest one.
///
/// Partitioners count two waiting messages, and in some schedules more messages wait. If a rank exceeds
/// its limit, the partitioner runs again with a lower limit, while that helps. The limit is lowered by the excess, or by the
/// bytes of all waiting messages if that is more.
pub(super) fn within_limits(
    work: &Work,
    machine: &Machine,
    step: &Step,
    find: impl Fn(&Work, &Machine, &Step) -> Result<Found, PlannerError>,
) -> Result<Found, PlannerError> {
    let sum = |predicted: &Predicted| -> u128 {
        let excesses = predicted.prediction.excesses(machine);
        excesses.map(|excess| u128::from(excess.bytes())).sum()
    };
    let mut best = find(work, machine, step)?;
    let mut tighter = machine.clone();
    for _ in 1..ATTEMPTS {
        let prediction = &best.1.prediction;
        let is_far = prediction.excesses(machine).any(|excess| {
            let limit = tighter.rank(excess.rank).memory_bytes;
            excess.bytes() > limit.unwrap_or(u64::MAX) / MOST_EXCESS_DIVISOR
        });
        if is_far || sum(&best.1) == 0 {
            break;
        }
        for excess in prediction.excesses(machine) {
            let waiting = prediction.ranks[excess.rank.index()].memory.buffers;
            tighter.lower_limit(excess.rank, excess.bytes().max(waiting));
        }
        // Lower limits may exclude every partition: then the earlier result is returned. The prediction is for the lower
        // limits, so it is not used.
        let Ok((partition, _)) = find(work, &tighter, step) else {
            break;
        };
        let Ok(predicted) = predict(work, machine, step, &partition) else {
            break;
        };
        if sum(&predicted) >= sum(&best.1) {
            break;
        }
        best = (partition, predicted);
    }
    Ok(best)
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use tinderbox_schedule::ScheduleKind;

    use super::*;
    use crate::partition::tests::works;
    use crate::{Partition, RankModel};

    /// Runs it with a partitioner that begins the second rank at each of these blocks in turn, and from then on at the last
    /// of them. Returns the begin in the result, and the limits of the runs.
    fn run(starts: &[usize], spare: i64) -> (usize, Vec<u64>) {
        let mut work = works::line(24, 3);
        for parameter in &mut work.parameters {
            (parameter.bytes, parameter.is_trainable) = (10_000, false);
        }
        let step = Step::new(ScheduleKind::GPipe, 4);
        let cut = |machine: &Machine, start: usize| {
            Partition::contiguous(24, &[0, start], machine.stage_to_rank(), vec![false; 2])
        };
        let plain = Machine::local(2).unwrap();
        let found = predict(&work, &plain, &step, &cut(&plain, 12)).unwrap();
        let needed = found.prediction.ranks[1].memory.total();
        let mut ranks = [RankModel::default(); 2];
        ranks[1].memory_bytes = Some(needed.saturating_add_signed(spare));
        let machine = Machine::of_ranks(ranks.to_vec()).unwrap();
        let limits = RefCell::new(Vec::new());
        let found = within_limits(&work, &machine, &step, |work, machine, step| {
            let mut limits = limits.borrow_mut();
            let at = limits.len().min(starts.len() - 1);
            limits.push(machine.rank_models()[1].memory_bytes.unwrap());
            let partition = cut(machine, starts[at]);
            let predicted = predict(work, machine, step, &partition)?;
            Ok((partition, predicted))
        });
        let (found, _) = found.unwrap();
        let start = found.stage_of.partition_point(|stage| *stage == 0);
        (start, limits.into_inner())
    }

    #[test]
    fn a_rank_that_is_over_gets_a_lower_limit() {
        let (start, limits) = run(&[12, 14], -1000);
        assert_eq!((start, limits.len()), (14, 2));
        assert!(limits[1] <= limits[0] - 1000);
    }

    #[test]
    fn a_partition_that_fits_is_returned_at_once() {
        let (start, limits) = run(&[12, 14], 0);
        assert_eq!((start, limits.len()), (12, 1));
    }

    #[test]
    fn a_partition_that_does_not_help_is_not_returned() {
        let (start, limits) = run(&[12, 11], -1000);
        assert_eq!((start, limits.len()), (12, 2));
    }

    #[test]
    fn a_rank_that_is_far_over_is_left() {
        let (start, limits) = run(&[12, 20], -100_000);
        assert_eq!((start, limits.len()), (12, 1));
    }
}
