//! The partitioner: positions of cuts, the search, and the check against the memory that the schedule
//! requires.

use std::collections::BTreeSet;

use tinderbox_schedule::arithmetic::narrow;

use super::explain::{self, Best};
use super::problem::Problem;
use super::search::{Cuts, Search};
use super::stages::Stages;
use crate::predict::Excess;
use crate::{Machine, Partition, PlannerError, Step, Work, predict};

/// The number of positions in one search, up to one per stage more; time and memory are quadratic in it.
const POSITIONS: usize = 514;

/// The approximate number of positions in a search near the cuts that an earlier search found.
const NEAR_POSITIONS: usize = 384;

/// Maximum number of searches near the cuts found.
const NEAR_SEARCHES: usize = 16;

/// Maximum number of times that rank limits are lowered where a schedule needs more than the model
/// predicts.
const CORRECTIONS: usize = 12;

/// Contiguous stages, and their time by the cost model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chained {
    /// The stages.
    pub partition: Partition,
    /// Time of a step by the cost model, in nanoseconds.
    pub model_ns: u64,
    /// Whether no contiguous stages within the memory limits are faster by the cost model, which counts
    /// two waiting messages at each end of a stage: all positions were compared, and no limit was
    /// lowered afterwards.
    pub is_optimal: bool,
}

/// Cuts the blocks, in their order, into one stage for each stage of the machine, with the least time
/// by the cost model that fits the memory of the ranks.
///
/// The [cost model](crate::cost_model) is a maximum over stages plus a sum over them. With one stage per rank and whole
/// backwards, it is `(m - 1) · max + sum` of the stages' times (Alpa, arXiv 2201.12023). For other
/// schedules, it has the bubbles that are documented at
/// [`ScheduleKind`](tinderbox_schedule::ScheduleKind). It includes the times of messages and of actions. It is
/// exact for equal stages and links without costs. For stages that differ by a fifth and schedules with
/// one stage per rank, the simulator deviates from it by at most a few percent.
///
/// The optimum is found by dynamic programming below each limit of the slowest stage (Alpa; PipeDream,
/// SOSP 2019). More than 513 blocks are first cut at about 512 positions of about equal distance in
/// time and bytes, then at all positions near the cuts found; this does not always find the optimum.
///
/// Stages that fit only with recomputation of their activations recompute them if the step allows it. A
/// rank with one stage holds the bytes that [`predict()`] predicts, except for waiting messages. The
/// search counts two of them at each end of a stage; if the schedule holds more, the rank's limit is
/// lowered and the search runs again. Several stages of a rank are at first limited one by one, and
/// their limits are lowered until they fit together.
///
/// # Errors
///
/// [`PlannerError::Work`] for invalid work, [`PlannerError::TooManyStages`] for fewer blocks than
/// stages, and [`PlannerError::Infeasible`] where no cuts fit, or none were found for ranks with
/// several stages.
pub fn chain(work: &Work, machine: &Machine, step: &Step) -> Result<Chained, PlannerError> {
    Problem::new(work, machine, step, POSITIONS)?.solve(true)
}

/// Finds the cuts of [`chain`] by the [cost model](crate::cost_model) alone, to compare them with the cuts of another search.
///
/// The cuts are not checked against the schedule: two waiting messages are counted at each end of a stage, also if the
/// schedule holds more, and several stages of a rank are limited one by one. One search compares about `most_positions`
/// positions, with time and memory quadratic in them. With fewer blocks than that, it compares all positions, and the cuts
/// are optimal for the model.
///
/// # Errors
///
/// The errors of [`chain`].
pub fn chain_by_model(
    work: &Work,
    machine: &Machine,
    step: &Step,
    most_positions: usize,
) -> Result<Chained, PlannerError> {
    Problem::new(work, machine, step, most_positions)?.solve(false)
}

impl Problem<'_> {
    /// Finds the best cuts. With `is_checked`, they also fit when the schedule runs.
    fn solve(&self, is_checked: bool) -> Result<Chained, PlannerError> {
        let mut stages = Stages::new(self.work, self.machine, self.step, self.lists.as_ref());
        let positions = self.positions(&stages);
        let search = Search::new(&stages, self.ranges.table(&positions));
        let best = |stages: &Stages| Some(self.nearer(stages, search.best(stages)?));
        let Some(first) = best(&stages) else {
            return Err(explain::infeasible(self, &mut stages, &best).into());
        };
        let cuts = match is_checked {
            true => self.corrected(&mut stages, first.clone(), &best)?,
            false => first.clone(),
        };
        Ok(Chained {
            model_ns: stages.step_ns(stages.model.scaled(cuts.most, cuts.sum)),
            partition: self.partition(&cuts),
            is_optimal: self.is_small() && cuts == first,
        })
    }

    /// Whether all positions are compared in one search.
    fn is_small(&self) -> bool {
        self.work.blocks.len() < self.most_positions
    }

    /// Returns all positions or, of a long chain, both ends and the position with the cheapest messages
    /// in each of some groups of blocks: half of the groups equal in time, the others in bytes.
    fn positions(&self, stages: &Stages) -> BTreeSet<usize> {
        let blocks = self.work.blocks.len();
        if self.is_small() {
            return (0..=blocks).collect();
        }
        let links = self.ranges.links(self.machine.link);
        let groups = (self.most_positions / 2).max(stages.count());
        let bytes = |at: usize| self.ranges.bytes_before(at);
        // Work without times or bytes has few groups; evenly spaced positions are as good then.
        let even = (0..=stages.count()).map(|stage| stage * blocks / stages.count());
        let mut positions: BTreeSet<usize> = even.collect();
        let measures: [&dyn Fn(usize) -> u64; 2] = [&|at| stages.work_before(at), &bytes];
        for measure in measures {
            let all = u128::from(measure(blocks)).max(1);
            let group = |at: &usize| u128::from(measure(*at)) * groups as u128 / all;
            let inner: Vec<usize> = (1..blocks).collect();
            let cheapest = inner.chunk_by(|a, b| group(a) == group(b));
            positions.extend(cheapest.filter_map(|of| of.iter().min_by_key(|at| links[**at])));
        }
        positions
    }

    /// Improves cuts of a long chain with positions near them, at decreasing distances.
    fn nearer(&self, stages: &Stages, mut best: Cuts) -> Cuts {
        if self.is_small() {
            return best;
        }
        let blocks = self.work.blocks.len();
        let reach = (NEAR_POSITIONS / (2 * stages.count())).max(1);
        let mut stride = (2 * blocks / self.most_positions.max(1) / reach).max(1);
        for _ in 0..NEAR_SEARCHES {
            let near = best.starts.iter().flat_map(|start| {
                let first = start.saturating_sub(reach * stride);
                // The start itself is one of the positions.
                let first = first + (start - first) % stride;
                (first..=start + reach * stride).step_by(stride)
            });
            let near = near.filter(|at| *at < blocks);
            let positions = near.chain([0, blocks]).collect();
            let search = Search::new(stages, self.ranges.table(&positions));
            let time = |cuts: &Cuts| stages.model.scaled(cuts.most, cuts.sum);
            match search.best(stages) {
                Some(found) if time(&found) < time(&best) => best = found,
                _ if stride == 1 => break,
                _ => stride = (stride / 4).max(1),
            }
        }
        best
    }

    /// Corrects cuts until their ranks stay within their limits when the schedule runs.
    fn corrected(
        &self,
        stages: &mut Stages,
        mut cuts: Cuts,
        best: Best<'_>,
    ) -> Result<Cuts, PlannerError> {
        if self.lists.is_none() || !self.machine.has_limit() {
            return Ok(cuts);
        }
        let mut closest: Option<Excess> = None;
        for _ in 0..=CORRECTIONS {
            let Some(over) = self.lower_limits(stages, &cuts)? else {
                return Ok(cuts);
            };
            let both = closest.into_iter().chain([over]);
            closest = both.min_by_key(Excess::permille);
            match best(stages) {
                Some(next) => cuts = next,
                None => break,
            }
        }
        let closest = closest.expect("a rank was over its limit");
        Err(explain::cuts(stages.count(), closest).into())
    }

    /// Lowers the limits of stages on ranks that exceed their memory, and returns the worst excess.
    fn lower_limits(
        &self,
        stages: &mut Stages,
        cuts: &Cuts,
    ) -> Result<Option<Excess>, PlannerError> {
        let predicted = predict(self.work, self.machine, self.step, &self.partition(cuts))?;
        let map = self.machine.stage_to_rank();
        let held = (0..map.len()).map(|stage| self.held(stages, cuts, stage));
        let held: Vec<u64> = held.collect();
        let excesses = || predicted.prediction.excesses(self.machine);
        for over in excesses() {
            let on_rank = || (0..map.len()).filter(|stage| map[*stage] == over.rank);
            let all: u128 = on_rank().map(|stage| u128::from(held[stage])).sum();
            for stage in on_rank() {
                let share = u128::from(over.bytes()) * u128::from(held[stage]);
                let share = share.div_ceil(all.max(1));
                let limit = &mut stages.places[stage].limit_bytes;
                if self.machine.chunks() > 1 {
                    *limit = held[stage].min(*limit);
                }
                *limit = limit.saturating_sub(narrow(share).max(1));
            }
        }
        Ok(excesses().max_by_key(Excess::permille))
    }

    fn partition(&self, cuts: &Cuts) -> Partition {
        Partition::contiguous(
            self.work.blocks.len(),
            &cuts.starts,
            self.machine.stage_to_rank(),
            cuts.recompute.clone(),
        )
    }
}
