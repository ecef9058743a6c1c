//! The partitioner: tables, search, and the check against what the schedule really holds.

use tinderbox_schedule::Schedule;

use super::explain::{self, Excess};
use super::ranges::Ranges;
use super::search::{Cuts, Layers, Search};
use super::stages::Stages;
use super::zoom::{self, Solved};
use crate::{Machine, Partition, PlannerError, Predicted, Step, Work, predict};

/// What the search for cuts may spend.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChainOptions {
    /// Places for cuts up to which all ranges of blocks stand in one table: 64 bytes for each pair.
    pub dense_cuts: usize,
    /// Ranges that are looked at for a chain with more places, when those that matter are narrowed
    /// down. More gives smaller gaps.
    pub ranges: usize,
    /// How often the limits of ranks are lowered where a schedule holds more than the model says. With
    /// 0 the cuts of the model are taken if they fit, and refused else.
    pub corrections: usize,
}

impl Default for ChainOptions {
    fn default() -> Self {
        Self {
            dense_cuts: 512,
            ranges: 1 << 20,
            corrections: 12,
        }
    }
}

/// Contiguous stages, and how good they are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chained {
    /// The stages.
    pub partition: Partition,
    /// Time of a step by the model, in nanoseconds.
    pub model_ns: u64,
    /// No contiguous stages that fit have a time below this by the model, in nanoseconds.
    pub bound_ns: u64,
    /// Places for cuts: one less than blocks.
    pub candidates: usize,
    /// Stages that were looked at, a measure of the search's work.
    pub transitions: u64,
}

impl Chained {
    /// Whether no contiguous stages are better by the model.
    #[must_use]
    pub const fn is_proven(&self) -> bool {
        self.model_ns <= self.bound_ns
    }

    /// How far the time is above the bound, in thousandths of the bound.
    #[must_use]
    pub fn gap_permille(&self) -> u64 {
        let above = self.model_ns.saturating_sub(self.bound_ns);
        let gap = u128::from(above) * 1000 / u128::from(self.bound_ns.max(1));
        u64::try_from(gap).unwrap_or(u64::MAX)
    }
}

/// Cuts the blocks, in their order, into one stage for each place of the machine, in the least time by
/// the model that fits the memory of the ranks.
///
/// The model is a maximum over stages and a sum over them: with one stage a rank and whole backwards
/// `(m - 1) · max + sum` of the stages' times (Alpa, arXiv 2201.12023), and for other schedules the forms
/// whose bubbles [`ScheduleKind`](tinderbox_schedule::ScheduleKind) states, with the times of messages and
/// of actions. It is exact where stages are alike and links cost nothing; what the simulator says of
/// stages that differ by a fifth is a few percent away at most for schedules of one stage a rank.
///
/// Stages that fit only with their activations made again do so where the step allows it. A rank with
/// one stage holds what [`predict()`] says, but for messages that wait: the search counts two at
/// each end of a stage, and where the schedule holds more, the rank's limit is lowered and the search
/// runs again. A rank with several stages couples them; each has a share of its memory then, and
/// the bound is that of stages which have it alone.
///
/// Up to [`ChainOptions::dense_cuts`] places, `n` of them, it takes `n²` cells of 64 bytes, and some
/// passes over the ranges that the best times leave possible. Above, it looks at places near good cuts
/// and then at all that could be better, if these are few enough; else the bound is below the time.
///
/// # Errors
///
/// [`PlannerError::Work`] for what is no work, [`PlannerError::TooManyStages`] where there are fewer
/// blocks than stages, and [`PlannerError::Infeasible`] where no cuts fit, or none were found for ranks
/// with several stages.
pub fn chain(
    work: &Work,
    machine: &Machine,
    step: &Step,
    options: ChainOptions,
) -> Result<Chained, PlannerError> {
    Problem::new(work, machine, step, options)?.solve(true)
}

/// The same by the model alone, whatever the schedule holds.
pub(super) fn chain_by_model(
    work: &Work,
    machine: &Machine,
    step: &Step,
    options: ChainOptions,
) -> Result<Chained, PlannerError> {
    Problem::new(work, machine, step, options)?.solve(false)
}

/// What stays the same while limits change.
pub(super) struct Problem<'a> {
    pub(super) work: &'a Work,
    pub(super) machine: &'a Machine,
    pub(super) step: &'a Step,
    pub(super) options: ChainOptions,
    pub(super) ranges: Ranges,
    lists: Option<Schedule>,
    /// What a boundary before each block adds to the sum at the least.
    pub(super) links: Vec<u64>,
}

impl<'a> Problem<'a> {
    fn new(
        work: &'a Work,
        machine: &'a Machine,
        step: &'a Step,
        options: ChainOptions,
    ) -> Result<Self, PlannerError> {
        work.check()?;
        let map = machine.stage_to_rank();
        let blocks = work.blocks.len();
        if blocks < map.len() {
            return Err(PlannerError::TooManyStages {
                stages: map.len(),
                blocks,
            });
        }
        let (ranks, chunks) = (machine.ranks(), machine.chunks());
        let lists = step.schedule.generate(ranks, chunks, step.micro_batches);
        let ranges = Ranges::new(work, step);
        Ok(Self {
            links: ranges.links(machine.link),
            work,
            machine,
            step,
            options,
            ranges,
            lists: lists.ok().filter(|lists| lists.stage_to_rank == map),
        })
    }

    fn solve(&self, is_checked: bool) -> Result<Chained, PlannerError> {
        let mut stages = Stages::new(self.work, self.machine, self.step, self.lists.as_ref());
        let mut transitions = 0;
        let dense = self.is_dense().then(|| {
            let all = (0..=self.work.blocks.len()).collect();
            self.square_layers(&stages, all)
        });
        let mut search = |stages: &Stages| match &dense {
            Some(layers) => {
                let mut search = Search::new(stages, layers, u64::MAX);
                let cuts = search.best();
                transitions += search.transitions;
                cuts.map(Solved::exact)
            }
            None => zoom::solve(self, stages, &mut transitions),
        };
        let Some(first) = search(&stages) else {
            return Err(explain::infeasible(self, &mut stages, &mut search).into());
        };
        let scaled = |cuts: &Cuts| stages.model.scaled(cuts.most, cuts.sum);
        let bound_ns = stages.step_ns(first.bound_scaled.min(scaled(&first.cuts)));
        let model = stages.model.clone();
        let cuts = match is_checked {
            true => self.corrected(&mut stages, first.cuts, &mut search)?,
            false => first.cuts,
        };
        let partition = self.partition(&cuts);
        Ok(Chained {
            model_ns: stages.step_ns(model.scaled(cuts.most, cuts.sum)),
            bound_ns,
            partition,
            candidates: self.work.blocks.len() - 1,
            transitions,
        })
    }

    /// Cuts whose ranks hold no more than they may when the schedule runs.
    fn corrected(
        &self,
        stages: &mut Stages,
        first: Cuts,
        search: &mut impl FnMut(&Stages) -> Option<Solved>,
    ) -> Result<Cuts, PlannerError> {
        let has_limit = self
            .machine
            .rank_models()
            .iter()
            .any(|rank| rank.memory_bytes.is_some());
        if !has_limit || self.lists.is_none() {
            return Ok(first);
        }
        let mut cuts = first;
        let mut closest: Option<Excess> = None;
        for _ in 0..=self.options.corrections {
            let predicted = predict(self.work, self.machine, self.step, &self.partition(&cuts))?;
            let Some(over) = self.lower_limits(stages, &cuts, &predicted) else {
                return Ok(cuts);
            };
            closest = closest
                .into_iter()
                .chain([over])
                .min_by_key(Excess::permille);
            match search(stages) {
                Some(next) => cuts = next.cuts,
                None => break,
            }
        }
        if self.machine.chunks() > 1
            && let Some(cuts) = self.shared(stages, search)?
        {
            return Ok(cuts);
        }
        let closest = closest.expect("a rank was over its limit");
        Err(closest.infeasible(stages.count()).into())
    }

    /// Lowers the limits of stages on ranks that hold too much, and returns the worst of these.
    fn lower_limits(
        &self,
        stages: &mut Stages,
        cuts: &Cuts,
        predicted: &Predicted,
    ) -> Option<Excess> {
        let map = self.machine.stage_to_rank();
        let held: Vec<u64> = (0..map.len())
            .map(|stage| self.held(stages, cuts, stage))
            .collect();
        let mut worst: Option<Excess> = None;
        for rank in &predicted.prediction.ranks {
            let Some(limit) = self.machine.rank(rank.rank).memory_bytes else {
                continue;
            };
            let excess = rank.memory.total().saturating_sub(limit);
            if excess == 0 {
                continue;
            }
            let over = Excess {
                rank: rank.rank,
                needed: rank.memory.total(),
                limit,
            };
            worst = worst.into_iter().chain([over]).max_by_key(Excess::permille);
            let on_rank = || (0..map.len()).filter(|stage| map[*stage] == rank.rank);
            let all: u128 = on_rank().map(|stage| u128::from(held[stage])).sum();
            for stage in on_rank() {
                let share = (u128::from(excess) * u128::from(held[stage])).div_ceil(all.max(1));
                let share = u64::try_from(share).unwrap_or(u64::MAX).max(1);
                let place = &mut stages.places[stage];
                let basis = match self.machine.chunks() {
                    1 => place.limit_bytes,
                    _ => place.limit_bytes.min(held[stage]),
                };
                place.limit_bytes = basis.saturating_sub(share);
            }
        }
        worst
    }

    /// Cuts for ranks with several stages, each of which may hold the same share of its rank: the best
    /// of those that fit.
    fn shared(
        &self,
        stages: &mut Stages,
        search: &mut impl FnMut(&Stages) -> Option<Solved>,
    ) -> Result<Option<Cuts>, PlannerError> {
        let map = self.machine.stage_to_rank();
        let (mut low, mut high) = (0_u64, 1000);
        let mut best: Option<Cuts> = None;
        for _ in 0..self.options.corrections {
            let share = (low + high).div_ceil(2);
            for (place, rank) in stages.places.iter_mut().zip(&map) {
                let limit = self.machine.rank(*rank).memory_bytes;
                let limit = limit.map(|limit| u128::from(limit) * u128::from(share) / 1000);
                place.limit_bytes =
                    limit.map_or(u64::MAX, |limit| u64::try_from(limit).unwrap_or(u64::MAX));
            }
            let Some(found) = search(stages) else {
                low = share;
                continue;
            };
            let cuts = found.cuts;
            let predicted = predict(self.work, self.machine, self.step, &self.partition(&cuts))?;
            let memory: Vec<_> = predicted
                .prediction
                .ranks
                .iter()
                .map(|rank| rank.memory)
                .collect();
            if crate::over_limit(self.machine, &memory).is_some() {
                high = share.saturating_sub(1);
                continue;
            }
            low = share;
            let time = |cuts: &Cuts| stages.model.scaled(cuts.most, cuts.sum);
            if best.as_ref().is_none_or(|best| time(&cuts) < time(best)) {
                best = Some(cuts);
            }
        }
        Ok(best)
    }

    /// What a stage holds by the model.
    pub(super) fn held(&self, stages: &Stages, cuts: &Cuts, stage: usize) -> u64 {
        let from = cuts.starts[stage];
        let to = cuts
            .starts
            .get(stage + 1)
            .copied()
            .unwrap_or(self.work.blocks.len());
        let table = self.ranges.table(&[from], &[to]);
        stages.held_bytes(stage, (from, to), &table.row(0)[0], cuts.recompute[stage])
    }

    fn partition(&self, cuts: &Cuts) -> Partition {
        Partition::contiguous(
            self.work.blocks.len(),
            &cuts.starts,
            self.machine.stage_to_rank(),
            cuts.recompute.clone(),
        )
    }

    /// Whether all ranges stand in one table.
    fn is_dense(&self) -> bool {
        self.work.blocks.len() <= self.options.dense_cuts.saturating_add(1)
    }

    /// What boundaries add to the sum at the least, from the beginning of each stage to the end: the
    /// messages of the cheapest block to begin with.
    pub(super) fn least_links(&self, stages: &Stages) -> Vec<u64> {
        let least = self.links.iter().skip(1).min().copied().unwrap_or(0);
        let mut sums = vec![0; stages.count() + 1];
        for stage in (0..stages.count()).rev() {
            let link = if stages.comes_far(stage) { least } else { 0 };
            sums[stage] = sums[stage + 1] + link;
        }
        sums
    }

    /// The same positions in every layer, and one table for all stages.
    pub(super) fn square_layers(&self, stages: &Stages, all: Vec<usize>) -> Layers {
        Layers {
            tables: vec![self.ranges.table(&all, &all)],
            table_of: vec![0; stages.count()],
            least_links: self.least_links(stages),
            positions: vec![all; stages.count() + 1],
        }
    }

    /// Positions of each layer, and a table for each stage.
    pub(super) fn layers(&self, stages: &Stages, positions: Vec<Vec<usize>>) -> Layers {
        let pairs = positions.iter().zip(&positions[1..]);
        Layers {
            tables: pairs
                .map(|(starts, ends)| self.ranges.table(starts, ends))
                .collect(),
            table_of: (0..stages.count()).collect(),
            least_links: self.least_links(stages),
            positions,
        }
    }
}
