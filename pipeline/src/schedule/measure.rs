//! What a schedule costs in activations and idle time, without running it.

use super::action::{Action, Compute, Task};
use super::dependencies::Dependencies;
use super::error::VerifyError;
use super::lists::{Mode, Schedule};
use super::table::Table;
use super::verify::verified_order;

/// Per rank, the largest number of micro-batches that wait for their backward, each counted once per
/// stage of the rank.
///
/// A forward keeps its activations until the `B` or `W` of its micro-batch. Without a backward pass
/// they are dropped at once, so a rank never has more than one.
#[must_use]
pub fn peak_activations(schedule: &Schedule) -> Vec<usize> {
    let peak = |actions: &Vec<_>| {
        let (mut now, mut peak) = (0_usize, 0_usize);
        for task in actions.iter().flat_map(Action::tasks) {
            if task.compute == Compute::Forward {
                now += 1;
            } else if task.compute.ends_backward() {
                now = now.saturating_sub(1);
            }
            peak = peak.max(now);
        }
        match schedule.mode {
            Mode::Training => peak,
            Mode::ForwardOnly => peak.min(1),
        }
    };
    schedule.ranks.iter().map(peak).collect()
}

/// The time of each program in ticks, the same for every stage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ComputeTimes {
    /// `F`, in ticks.
    pub forward: u64,
    /// `I`, in ticks.
    pub input_gradient: u64,
    /// `W`, in ticks.
    pub weight_gradient: u64,
}

impl ComputeTimes {
    /// `B`, in ticks: the sum of both parts.
    #[must_use]
    pub const fn backward(self) -> u64 {
        self.input_gradient.saturating_add(self.weight_gradient)
    }

    const fn of(self, task: Task) -> u64 {
        match task.compute {
            Compute::Forward => self.forward,
            Compute::Backward => self.backward(),
            Compute::InputGradient => self.input_gradient,
            Compute::WeightGradient => self.weight_gradient,
        }
    }
}

/// When ranks stand still, in ticks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bubble {
    /// From the first start to the last end.
    pub makespan: u64,
    /// Per rank, the idle time between its first start and its last end.
    pub idle: Vec<u64>,
}

impl Bubble {
    /// The idle time of the rank that has most.
    #[must_use]
    pub fn largest(&self) -> u64 {
        self.idle.iter().copied().max().unwrap_or(0)
    }
}

/// The idle time of every rank when only compute takes time.
///
/// # Errors
///
/// What [`verify`](super::verify) says of the schedule's compute actions.
pub fn bubble(
    schedule: &Schedule,
    dependencies: &Dependencies,
    times: ComputeTimes,
) -> Result<Bubble, VerifyError> {
    let schedule = schedule.compute_only();
    let order = verified_order(&schedule, dependencies)?;
    let table = Table::build(&schedule, dependencies)?;
    let mut ends: Vec<Vec<u64>> = schedule
        .ranks
        .iter()
        .map(|list| vec![0; list.len()])
        .collect();
    let mut starts = vec![None; schedule.world_size()];
    let mut busy = vec![0_u64; schedule.world_size()];
    for (rank, position) in order {
        let free = position
            .checked_sub(1)
            .map_or(0, |before| ends[rank.index()][before]);
        let tasks = schedule.actions(rank)[position].tasks();
        let producers = tasks.iter().flat_map(|task| table.producers(*task));
        let start = producers
            .map(|(rank, at)| ends[rank.index()][at])
            .fold(free, u64::max);
        let time = tasks
            .iter()
            .map(|task| times.of(*task))
            .fold(0, u64::saturating_add);
        starts[rank.index()].get_or_insert(start);
        busy[rank.index()] = busy[rank.index()].saturating_add(time);
        ends[rank.index()][position] = start.saturating_add(time);
    }
    let last = |list: &Vec<u64>| list.last().copied().unwrap_or(0);
    let idle = |rank: usize| {
        let span = last(&ends[rank]).saturating_sub(starts[rank].unwrap_or(0));
        span.saturating_sub(busy[rank])
    };
    Ok(Bubble {
        makespan: ends.iter().map(last).max().unwrap_or(0),
        idle: (0..schedule.world_size()).map(idle).collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::super::{RankIndex, forward_only, gpipe, lower, one_f_one_b};
    use super::*;

    const TIMES: [ComputeTimes; 4] = [
        ComputeTimes {
            forward: 1,
            input_gradient: 1,
            weight_gradient: 1,
        },
        ComputeTimes {
            forward: 1,
            input_gradient: 1,
            weight_gradient: 0,
        },
        ComputeTimes {
            forward: 5,
            input_gradient: 1,
            weight_gradient: 1,
        },
        ComputeTimes {
            forward: 3,
            input_gradient: 4,
            weight_gradient: 7,
        },
    ];

    /// The exact rows of the literature's table: bubble (p-1)(F+B) for both, for m >= p.
    #[test]
    fn bubbles_match_their_formula() {
        for (p, extra) in (1..=8).flat_map(|p| [0, 1, 5].map(|extra| (p, extra))) {
            let m = p + extra;
            let chain = Dependencies::chain(p);
            for times in TIMES {
                let round = times.forward + times.backward();
                for schedule in [gpipe(p, m), one_f_one_b(p, m)] {
                    let found = bubble(&schedule, &chain, times).unwrap();
                    assert_eq!(found.largest(), (p as u64 - 1) * round, "{p} {m} {times:?}");
                    assert_eq!(
                        found.makespan,
                        (p + m - 1) as u64 * round,
                        "{p} {m} {times:?}"
                    );
                    let lowered = lower(&schedule, &chain);
                    assert_eq!(bubble(&lowered, &chain, times).unwrap(), found);
                }
            }
        }
    }

    #[test]
    fn peaks_match_their_formula() {
        for (p, m) in (1..=8).flat_map(|p| [1, 3, 8, 20].map(|m| (p, m))) {
            let chain = Dependencies::chain(p);
            assert_eq!(peak_activations(&gpipe(p, m)), vec![m; p]);
            let expected: Vec<usize> = (0..p).map(|rank| m.min(p - rank)).collect();
            assert_eq!(peak_activations(&one_f_one_b(p, m)), expected);
            assert_eq!(
                peak_activations(&lower(&one_f_one_b(p, m), &chain)),
                expected
            );
            assert_eq!(peak_activations(&forward_only(p, m)), vec![1; p]);
        }
    }

    /// Two ranks, a split backward: the weight gradient of rank 1 fills no gap of its own, that of
    /// rank 0 neither; worked out by hand from F = I = W = 1.
    #[test]
    fn a_split_backward_is_timed_by_its_parts() {
        let text = "0F0 0F1 0I0 0W0 0I1 0W1\n1F0 1I0 1F1 1I1 1W0 1W1";
        let schedule = Schedule::parse("zb", text).unwrap();
        let found = bubble(&schedule, &Dependencies::chain(2), TIMES[0]).unwrap();
        // Rank 0: F 0-2, waits for rank 1's I0 (2-3), I 3-4, W 4-5, I1 (made 4-5) 5-6, W 6-7.
        assert_eq!(
            found,
            Bubble {
                makespan: 7,
                idle: vec![1, 0]
            }
        );
        assert_eq!(peak_activations(&schedule), [2, 2]);
    }

    #[test]
    fn an_impossible_list_has_no_bubble() {
        let schedule = Schedule::parse("short", "0F0 0B0\n1F0").unwrap();
        let found = bubble(&schedule, &Dependencies::chain(2), TIMES[0]);
        let action = "1B0".parse().unwrap();
        assert_eq!(
            found,
            Err(VerifyError::Missing {
                rank: RankIndex::new(1),
                action
            })
        );
    }
}
