//! Chains with too many places for cuts to hold all their ranges in one table.
//!
//! Cuts are found among some hundred places of about the same distance in time and in bytes, and then
//! among those near them, closer and closer, while they get better.
//!
//! What could be better than that is narrow: the slowest stage may take no longer than the time found
//! leaves it, and so each cut lies between where the stages before it reach at the most and where those
//! behind it begin at the earliest. Where the ranges between these bands are few enough, all are looked
//! at, which proves the best. Elsewhere the bound is the least limit of the slowest stage that leaves a
//! way, with the least sum that stages can have.

use super::search::{Cuts, Layers, Search};
use super::solve::Problem;
use super::stages::Stages;

/// Places on each side of a cut that are looked at in one step.
const REACH: usize = 40;

/// The most steps of looking closer: each is at least eight times as close as the one before, or better.
const STEPS: usize = 32;

/// The best cuts found, and a time that none is below.
#[derive(Debug, Clone)]
pub(super) struct Solved {
    pub(super) cuts: Cuts,
    /// In the unit of the model; that of the cuts where they are the best.
    pub(super) bound_scaled: u64,
}

impl Solved {
    /// Cuts that are the best.
    pub(super) const fn exact(cuts: Cuts) -> Self {
        Self {
            cuts,
            bound_scaled: u64::MAX,
        }
    }
}

/// The best cuts that are found, and what none can be below.
pub(super) fn solve(
    problem: &Problem<'_>,
    stages: &Stages,
    transitions: &mut u64,
) -> Option<Solved> {
    let mut zoom = Zoom {
        problem,
        stages,
        transitions,
    };
    let least = zoom.least_limit()?;
    let coarse = zoom.coarse();
    let layers = problem.square_layers(stages, coarse);
    let mut cuts = zoom.search(&layers, None);
    drop(layers);
    if let Some(best) = &mut cuts {
        zoom.closer(best);
    }
    let least_links = problem.least_links(stages)[0];
    let least_sum = stages.least_sum(0, 0).saturating_add(least_links);
    let highest = match &cuts {
        Some(cuts) => {
            let best = stages.model.scaled(cuts.most, cuts.sum);
            best.saturating_sub(least_sum) / stages.model.chunks
        }
        None => u64::MAX,
    };
    let Some(bands) = zoom.bands(highest) else {
        return cuts.map(Solved::exact);
    };
    if let Some(layers) = zoom.layers_of(&bands) {
        let better = zoom.search(&layers, cuts.as_ref());
        return better.or(cuts).map(Solved::exact);
    }
    cuts.map(|cuts| Solved {
        cuts,
        bound_scaled: stages.model.scaled(least, least_sum),
    })
}

struct Zoom<'a, 'b> {
    problem: &'a Problem<'a>,
    stages: &'a Stages,
    transitions: &'b mut u64,
}

impl Zoom<'_, '_> {
    fn blocks(&self) -> usize {
        self.problem.work.blocks.len()
    }

    /// The best cuts in some layers that are better than those given.
    fn search(&mut self, layers: &Layers, best: Option<&Cuts>) -> Option<Cuts> {
        let best = best.map(|cuts| self.stages.model.scaled(cuts.most, cuts.sum));
        let mut search = Search::new(self.stages, layers, best.unwrap_or(u64::MAX));
        let found = search.best();
        *self.transitions += search.transitions;
        found
    }

    /// Both ends and the cheapest place of each of some groups of blocks, one half of the groups alike
    /// in time, the other in bytes.
    fn coarse(&self) -> Vec<usize> {
        let groups = (self.problem.options.dense_cuts / 2).max(self.stages.count()) as u128;
        let blocks = self.blocks();
        let bytes = |at: usize| {
            let before = self.problem.ranges.at_least(0, at);
            before.resident.saturating_add(before.kept)
        };
        let mut places = vec![0, blocks];
        let measures: [&dyn Fn(usize) -> u64; 2] = [&|at| self.stages.work_before(at), &bytes];
        for measure in measures {
            let all = u128::from(measure(blocks)).max(1);
            let mut last: Option<(u128, usize)> = None;
            for at in 1..blocks {
                let group = u128::from(measure(at)) * groups / all;
                match last {
                    Some((of, best)) if of == group => {
                        if self.problem.links[at] < self.problem.links[best] {
                            last = Some((of, at));
                        }
                    }
                    _ => {
                        places.extend(last.map(|(_, best)| best));
                        last = Some((group, at));
                    }
                }
            }
            places.extend(last.map(|(_, best)| best));
        }
        // Work without times or bytes makes few groups; any places do then.
        places.extend(
            (0..self.stages.count().min(blocks)).map(|at| at * blocks / self.stages.count()),
        );
        places.sort_unstable();
        places.dedup();
        places
    }

    /// Makes cuts better by places near them, ever closer.
    fn closer(&mut self, best: &mut Cuts) {
        let groups = self.problem.options.dense_cuts.max(1);
        let mut stride = (4 * self.blocks() / groups / REACH).max(1);
        for _ in 0..STEPS {
            let layers = self.layers_near(best, stride);
            let found = self.search(&layers, Some(best));
            let is_better = found.is_some();
            if let Some(found) = found {
                *best = found;
            } else if stride == 1 {
                return;
            }
            if !is_better || stride > 1 {
                stride = (stride / 8).max(1);
            }
        }
    }

    /// Every `stride`-th place on both sides of the cuts.
    fn layers_near(&self, cuts: &Cuts, stride: usize) -> Layers {
        let blocks = self.blocks();
        let mut positions: Vec<Vec<usize>> = cuts
            .starts
            .iter()
            .map(|start| {
                let reach = (REACH * stride).min(*start) / stride;
                let places = (0..=2 * REACH).map(|step| start - reach * stride + step * stride);
                places.filter(|at| *at > 0 && *at < blocks).collect()
            })
            .collect();
        positions[0] = vec![0];
        positions.push(vec![blocks]);
        self.problem.layers(self.stages, positions)
    }

    /// All places of the bands, unless the ranges between them are too many.
    fn layers_of(&self, bands: &[(usize, usize)]) -> Option<Layers> {
        let widths = || bands.iter().map(|(from, to)| to - from + 1);
        let ranges = widths()
            .zip(widths().skip(1))
            .map(|(a, b)| a.saturating_mul(b));
        let ranges = ranges.fold(0, usize::saturating_add);
        let positions = || {
            bands
                .iter()
                .map(|(from, to)| (*from..=*to).collect())
                .collect()
        };
        (ranges <= self.problem.options.ranges)
            .then(|| self.problem.layers(self.stages, positions()))
    }

    /// Where each stage may begin, first and last, if none takes longer than a limit. By what grows with
    /// the blocks of a stage alone.
    fn bands(&self, limit: u64) -> Option<Vec<(usize, usize)>> {
        let (blocks, count) = (self.blocks(), self.stages.count());
        let fits = |stage: usize, from: usize, to: usize| {
            let bytes = self.problem.ranges.at_least(from, to);
            let least = self.stages.least_most(stage, (from, to), &bytes);
            from == to || least.is_some_and(|least| least <= limit)
        };
        let mut last = vec![0; count + 1];
        for stage in 0..count {
            // Every stage behind has a block.
            let end = blocks - (count - 1 - stage);
            let from = last[stage];
            last[stage + 1] = furthest(from, end.max(from), |to| fits(stage, from, to));
        }
        let mut first = vec![blocks; count + 1];
        for stage in (0..count).rev() {
            let to = first[stage + 1];
            let length = furthest(0, to, |length| fits(stage, to - length, to));
            first[stage] = (to - length).max(stage);
        }
        let bands = first.into_iter().zip(last);
        let bands: Vec<(usize, usize)> = bands.collect();
        let is_open = bands.iter().all(|(first, last)| first <= last);
        (is_open && bands[0].0 == 0).then_some(bands)
    }

    /// The least limit that leaves a way, if any does.
    fn least_limit(&self) -> Option<u64> {
        self.bands(u64::MAX)?;
        let (mut low, mut high) = (0, u64::MAX);
        while low < high {
            let middle = low + (high - low) / 2;
            match self.bands(middle) {
                Some(_) => high = middle,
                None => low = middle + 1,
            }
        }
        Some(low)
    }
}

/// The largest number from `from` to `to` up to which all are fine, the first taken for fine.
pub(super) fn furthest(from: usize, to: usize, is_fine: impl Fn(usize) -> bool) -> usize {
    let (mut low, mut high) = (from, to);
    while low < high {
        let middle = low + (high - low).div_ceil(2);
        match is_fine(middle) {
            true => low = middle,
            false => high = middle - 1,
        }
    }
    low
}
