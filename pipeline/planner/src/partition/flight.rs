//! The micro-batches and weight gradients that a schedule makes a stage keep at a time.

use tinderbox_schedule::{Compute, RankIndex, Schedule, StageIndex};

/// A state of a stage: micro-batches that wait for their backward and `I`s that wait for their `W`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Flight {
    /// Micro-batches whose activations it keeps.
    pub(super) micro_batches: u64,
    /// Micro-batches for which it keeps the inputs of `W`.
    pub(super) weight_gradients: u64,
}

/// The states of a stage that keep most: every other state has at most as many of both. At least one state has
/// a micro-batch, under all lists. Linear in the list of the stage's rank.
pub(super) fn flights(lists: Option<&Schedule>, stage: StageIndex) -> Vec<Flight> {
    let mut most = vec![Flight {
        micro_batches: 1,
        weight_gradients: 0,
    }];
    let Some(lists) = lists else { return most };
    let rank = lists.rank_of(stage).unwrap_or(RankIndex::new(0));
    let mut now = Flight::default();
    for action in lists.actions(rank) {
        let tasks = || action.tasks().iter().filter(|task| task.stage == stage);
        for _ in tasks().filter(|task| task.compute == Compute::Forward) {
            now.micro_batches += 1;
        }
        keep(&mut most, now);
        for task in tasks() {
            if matches!(task.compute, Compute::Backward | Compute::InputGradient) {
                now.micro_batches = now.micro_batches.saturating_sub(1);
            }
            match task.compute {
                Compute::InputGradient => now.weight_gradients += 1,
                Compute::WeightGradient => {
                    now.weight_gradients = now.weight_gradients.saturating_sub(1);
                }
                _ => {}
            }
        }
        keep(&mut most, now);
    }
    most
}

/// The maximum bytes of the states, by bytes per micro-batch and per weight gradient.
pub(super) fn most_bytes(flights: impl Iterator<Item = Flight>, bytes: [u64; 2]) -> u64 {
    let [activation, weight_gradient] = bytes;
    let held = flights.map(|flight| {
        let weights = weight_gradient.saturating_mul(flight.weight_gradients);
        let activations = activation.saturating_mul(flight.micro_batches);
        activations.saturating_add(weights)
    });
    held.max().unwrap_or(0)
}

/// Adds a state unless another has at least as many of both, and removes the states that it dominates.
fn keep(most: &mut Vec<Flight>, now: Flight) {
    let is_within = |a: &Flight, b: &Flight| {
        a.micro_batches <= b.micro_batches && a.weight_gradients <= b.weight_gradients
    };
    if !most.iter().any(|other| is_within(&now, other)) {
        most.retain(|other| !is_within(other, &now));
        most.push(now);
    }
}

#[cfg(test)]
mod tests {
    use tinderbox_schedule::ScheduleKind;

    use super::*;

    fn pairs(kind: ScheduleKind, ranks: usize, m: usize, stage: usize) -> Vec<(u64, u64)> {
        let lists = kind.generate(ranks, 1, m).unwrap();
        let found = flights(Some(&lists), StageIndex::new(stage));
        let pair = |flight: &Flight| (flight.micro_batches, flight.weight_gradients);
        found.iter().map(pair).collect()
    }

    #[test]
    fn flights_match_the_lists() {
        assert_eq!(pairs(ScheduleKind::GPipe, 4, 8, 2), [(8, 0)]);
        assert_eq!(pairs(ScheduleKind::OneFOneB, 4, 8, 1), [(3, 0)]);
        assert_eq!(pairs(ScheduleKind::OneFOneB, 4, 2, 0), [(2, 0)]);
        assert_eq!(pairs(ScheduleKind::ZbH1, 4, 8, 0), [(4, 0), (3, 1)]);
        assert_eq!(pairs(ScheduleKind::ZbH1, 4, 8, 3), [(1, 3), (0, 4)]);
        assert_eq!(flights(None, StageIndex::new(0)).len(), 1);
        assert_eq!(pairs(ScheduleKind::GPipe, 1, 0, 0), [(1, 0)]);
    }
}
