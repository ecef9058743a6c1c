//! Partitions within the memory that the simulator counts.

use crate::{Machine, Partition, PlannerError, RankModel, Step, Work, predict};

/// How often a partitioner is asked again.
const ATTEMPTS: usize = 3;

/// A rank that is over by more than this part of its limit is not so because of what waits to be read.
const MOST_EXCESS_DIVISOR: u64 = 8;

/// What a partitioner finds within the ranks' memory by the simulator, or what comes closest.
///
/// Partitioners reckon what waits to be read as two messages, and a schedule may let more of them wait.
/// So where a rank is over its limit, the partitioner is asked again with a limit that is lower by as
/// much, or by all that waits if that is more, as long as that helps.
pub(super) fn within_limits(
    work: &Work,
    machine: &Machine,
    step: &Step,
    find: impl Fn(&Machine) -> Result<Partition, PlannerError>,
) -> Result<Partition, PlannerError> {
    let mut best = find(machine)?;
    let mut over = excess(work, machine, step, &best)?;
    let mut tight = machine.rank_models().to_vec();
    for _ in 1..ATTEMPTS {
        let is_far = tight.iter().zip(&over).any(|(rank, over)| {
            let limit = rank.memory_bytes.unwrap_or(u64::MAX);
            over.bytes > limit / MOST_EXCESS_DIVISOR
        });
        if is_far || over.iter().all(|over| over.bytes == 0) {
            break;
        }
        for (rank, over) in tight.iter_mut().zip(&over) {
            let less = |limit: u64| limit.saturating_sub(over.lower_bytes);
            rank.memory_bytes = rank.memory_bytes.map(less);
        }
        let tighter = of_ranks(machine, &tight)?;
        // Lower limits may leave nothing; what was found before stands.
        let Ok(found) = find(&tighter) else {
            break;
        };
        let Ok(left) = excess(work, machine, step, &found) else {
            break;
        };
        let sum = |over: &[Excess]| over.iter().map(|over| u128::from(over.bytes)).sum::<u128>();
        if sum(&left) >= sum(&over) {
            break;
        }
        (best, over) = (found, left);
    }
    Ok(best)
}

/// How far a rank is over its limit.
#[derive(Debug, Clone, Copy)]
struct Excess {
    bytes: u64,
    /// What its limit is lowered by for the next attempt.
    lower_bytes: u64,
}

/// The excess of each rank.
fn excess(
    work: &Work,
    machine: &Machine,
    step: &Step,
    partition: &Partition,
) -> Result<Vec<Excess>, PlannerError> {
    let predicted = predict(work, machine, step, partition)?;
    let ranks = predicted.prediction.ranks.iter();
    let over = ranks.map(|rank| {
        let limit = machine.rank(rank.rank).memory_bytes.unwrap_or(u64::MAX);
        let bytes = rank.memory.total().saturating_sub(limit);
        let lower_bytes = match bytes {
            0 => 0,
            over => over.max(rank.memory.buffers),
        };
        Excess { bytes, lower_bytes }
    });
    Ok(over.collect())
}

/// The same machine with other ranks.
fn of_ranks(machine: &Machine, ranks: &[RankModel]) -> Result<Machine, PlannerError> {
    let mut same =
        Machine::of_ranks(ranks.to_vec())?.with_chunks(machine.chunks(), machine.placement())?;
    same.link = machine.link;
    same.action_ns = machine.action_ns;
    same.rates = machine.rates;
    Ok(same)
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use tinderbox_schedule::ScheduleKind;

    use super::*;
    use crate::partition::tests::works;

    /// Runs it with a partitioner that begins the second rank at each of these blocks in turn, the last
    /// one again and again; says where it began at last, and the limits that it was given.
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
        let machine = of_ranks(&plain, &ranks).unwrap();
        let limits = RefCell::new(Vec::new());
        let found = within_limits(&work, &machine, &step, |machine| {
            let mut limits = limits.borrow_mut();
            let at = limits.len().min(starts.len() - 1);
            limits.push(machine.rank_models()[1].memory_bytes.unwrap());
            Ok(cut(machine, starts[at]))
        });
        let found = found.unwrap();
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
    fn what_fits_is_taken_at_once() {
        let (start, limits) = run(&[12, 14], 0);
        assert_eq!((start, limits.len()), (12, 1));
    }

    #[test]
    fn what_does_not_help_is_not_taken() {
        let (start, limits) = run(&[12, 11], -1000);
        assert_eq!((start, limits.len()), (12, 2));
    }

    #[test]
    fn a_rank_that_is_far_over_is_left() {
        let (start, limits) = run(&[12, 20], -100_000);
        assert_eq!((start, limits.len()), (12, 1));
    }
}
