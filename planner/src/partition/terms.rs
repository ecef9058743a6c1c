//! What stages are reckoned by: ranks, links, and the micro-batches that a schedule keeps in flight.

use tinderbox_schedule::{Compute, LinkCosts, RankIndex, Schedule};

use crate::{Machine, RankModel, Step};

/// What a stage holds at one moment of its rank's list.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Held {
    pub stage: usize,
    /// Micro-batches between `F` and their `B` or `I`.
    pub activations: u64,
    /// Micro-batches between `I` and `W`.
    pub weight_gradients: u64,
}

/// More moments than this per rank are replaced by one that is worse than all of them.
const MOMENTS: usize = 24;

/// What does not change while blocks move from stage to stage.
#[derive(Debug, Clone)]
pub(super) struct Terms {
    /// The rank of each stage.
    pub rank_of: Vec<usize>,
    /// The stages of each rank, ascending.
    pub stages_of: Vec<Vec<usize>>,
    /// The ranks.
    pub ranks: Vec<RankModel>,
    /// What messages take.
    pub link: LinkCosts,
    /// Nanoseconds of an action beside its work.
    pub action_ns: u64,
    /// Compute actions of a stage per micro-batch: 2, or 3 with backwards in two halves.
    pub actions: u64,
    /// Whether a stage may make activations again.
    pub may_recompute: bool,
    /// Of each rank the moments at which it may hold most.
    pub moments: Vec<Vec<Vec<Held>>>,
}

impl Terms {
    /// Stages as the machine lays them out, under the schedule of the step.
    pub fn of_machine(machine: &Machine, step: &Step) -> Self {
        let (ranks, chunks) = (machine.ranks(), machine.chunks());
        let map = machine.stage_to_rank();
        let schedule = step.schedule.generate(ranks, chunks, step.micro_batches);
        let schedule = schedule.ok().filter(|found| found.stage_to_rank == map);
        let mut terms = Self::of_map(machine, step, &map, step.micro_batches.min(ranks));
        if let Some(schedule) = schedule {
            terms.moments = (0..ranks).map(|rank| moments(&schedule, rank)).collect();
            if splits_backward(&schedule) {
                terms.actions = 3;
            }
        }
        terms
    }

    /// Stages on any ranks, of whose schedule nothing is known but that each stage has at most so many
    /// micro-batches in flight.
    pub fn of_map(machine: &Machine, step: &Step, map: &[RankIndex], in_flight: usize) -> Self {
        let rank_of: Vec<usize> = map.iter().map(|rank| rank.index()).collect();
        let mut stages_of = vec![Vec::new(); machine.ranks()];
        for (stage, rank) in rank_of.iter().enumerate() {
            stages_of[*rank].push(stage);
        }
        let held = |stage: &usize| Held {
            stage: *stage,
            activations: in_flight as u64,
            weight_gradients: 1,
        };
        let moments = stages_of
            .iter()
            .map(|stages| vec![stages.iter().map(held).collect()]);
        Self {
            rank_of,
            moments: moments.collect(),
            stages_of,
            ranks: machine.rank_models().to_vec(),
            link: machine.link,
            action_ns: machine.action_ns,
            actions: 2,
            may_recompute: step.may_recompute,
        }
    }

    /// Number of stages.
    pub fn stages(&self) -> usize {
        self.rank_of.len()
    }

    /// Whether backwards run in two halves.
    pub fn splits_backward(&self) -> bool {
        self.actions == 3
    }

    /// The most micro-batches that a stage has in flight, and those that wait for `W`.
    pub fn most_held(&self, stage: usize) -> (u64, u64) {
        let moments = self.moments[self.rank_of[stage]].iter().flatten();
        let own = moments.filter(|held| held.stage == stage);
        own.fold((0, 0), |(activations, weights), held| {
            (
                activations.max(held.activations),
                weights.max(held.weight_gradients),
            )
        })
    }
}

/// Whether a schedule has backwards in two halves.
fn splits_backward(schedule: &Schedule) -> bool {
    let actions = schedule.ranks.iter().flatten();
    let mut tasks = actions.flat_map(|action| action.tasks());
    tasks.any(|task| task.compute == Compute::InputGradient)
}

/// The moments of a rank's list at which it may hold most, whatever its stages hold per micro-batch:
/// those that no other moment is above in every count.
fn moments(schedule: &Schedule, rank: usize) -> Vec<Vec<Held>> {
    let own = schedule.stage_to_rank.iter().enumerate();
    let own = own.filter(|(_, of)| of.index() == rank);
    let mut now: Vec<Held> = own
        .map(|(stage, _)| Held {
            stage,
            activations: 0,
            weight_gradients: 0,
        })
        .collect();
    let mut all = Vec::new();
    for action in schedule.actions(RankIndex::new(rank)) {
        for task in action.tasks() {
            if task.compute == Compute::Forward
                && let Some(held) = of_stage(&mut now, task.stage.index())
            {
                held.activations += 1;
            }
        }
        all.push(now.clone());
        for task in action.tasks() {
            let Some(held) = of_stage(&mut now, task.stage.index()) else {
                continue;
            };
            match task.compute {
                Compute::Backward => held.activations = held.activations.saturating_sub(1),
                Compute::InputGradient => {
                    held.activations = held.activations.saturating_sub(1);
                    held.weight_gradients += 1;
                }
                Compute::WeightGradient => {
                    held.weight_gradients = held.weight_gradients.saturating_sub(1);
                }
                // A forward was counted before.
                _ => {}
            }
        }
        all.push(now.clone());
    }
    all.sort_unstable();
    all.dedup();
    largest(all)
}

fn of_stage(now: &mut [Held], stage: usize) -> Option<&mut Held> {
    now.iter_mut().find(|held| held.stage == stage)
}

/// Those of sorted moments that no other is above.
fn largest(all: Vec<Vec<Held>>) -> Vec<Vec<Held>> {
    let is_below = |low: &[Held], high: &[Held]| {
        low.iter().zip(high).all(|(low, high)| {
            low.activations <= high.activations && low.weight_gradients <= high.weight_gradients
        })
    };
    let mut kept: Vec<Vec<Held>> = Vec::new();
    // A moment that is above another one stands behind it.
    for moment in all.into_iter().rev() {
        if !kept.iter().any(|other| is_below(&moment, other)) {
            kept.push(moment);
        }
    }
    if kept.len() <= MOMENTS {
        return kept;
    }
    let mut worst = kept.pop().unwrap_or_default();
    for moment in kept {
        for (worst, held) in worst.iter_mut().zip(moment) {
            worst.activations = worst.activations.max(held.activations);
            worst.weight_gradients = worst.weight_gradients.max(held.weight_gradients);
        }
    }
    vec![worst]
}

#[cfg(test)]
mod tests {
    use tinderbox_schedule::ScheduleKind;

    use super::*;

    /// The counts of each rank's moments, as `stage:activations+weight gradients`.
    fn text(kind: ScheduleKind, ranks: usize, chunks: usize, micro_batches: usize) -> String {
        let schedule = kind.generate(ranks, chunks, micro_batches).unwrap();
        let rank = |rank| {
            let all = moments(&schedule, rank).into_iter().map(|moment| {
                let held = moment
                    .iter()
                    .map(|h| format!("{}:{}+{}", h.stage, h.activations, h.weight_gradients));
                held.collect::<Vec<_>>().join(" ")
            });
            all.collect::<Vec<_>>().join(" | ")
        };
        (0..ranks).map(rank).collect::<Vec<_>>().join("\n")
    }

    #[test]
    fn moments_of_schedules() {
        assert_eq!(text(ScheduleKind::GPipe, 2, 1, 3), "0:3+0\n1:3+0");
        assert_eq!(text(ScheduleKind::OneFOneB, 3, 1, 8), "0:3+0\n1:2+0\n2:1+0");
        // Each rank has two micro-batches in some state; the last one never two between `F` and `I`.
        assert_eq!(
            text(ScheduleKind::ZbH1, 2, 1, 4),
            "0:2+0 | 0:1+1\n1:1+1 | 1:0+2"
        );
        assert_eq!(
            text(ScheduleKind::Interleaved1F1B, 2, 2, 4),
            "0:4+0 2:1+0 | 0:3+0 2:2+0\n1:3+0 3:0+0 | 1:2+0 3:1+0"
        );
    }
}
