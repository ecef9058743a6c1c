//! The longest paths of one micro-batch through all stages, which give the earliest start of each program and
//! the minimum time after it; and a lower bound of the makespan of all schedules.
//!
//! The bound is the maximum of these lower bounds:
//!
//! - the longest path of one micro-batch through all stages, with the update at its end;
//! - for every rank, and for every set of programs of its stages: the earliest start of the first of them,
//!   their work, and the minimum time after the last of them (the bound of one machine
//!   with heads and tails, Carlier 1982);
//! - for every rank: its work, and the time in which it must be idle because of its memory limit.
//!   Until its first backward can begin, it only runs forwards, and no more than fit. A rank with one
//!   stage waits a second time: from its last forward to that micro-batch's backward it only runs the remaining work
//!   of other micro-batches in flight, which must fit in addition.

use crate::arithmetic::{add, narrow, sum};

use super::problem::{FORWARD, INPUT, Problem, WEIGHT, kind};

/// Per stage and kind of work, in ticks.
#[derive(Debug, Clone)]
pub(super) struct Paths {
    /// The earliest start.
    pub heads: Vec<[u64; 3]>,
    /// The minimum time from its end to the end of the step.
    pub tails: Vec<[u64; 3]>,
    /// The minimum duration.
    pub times: Vec<[u64; 3]>,
    /// The longest path of one micro-batch.
    pub longest: u64,
    /// Stages and kinds, each after its inputs.
    pub order: Vec<(usize, usize)>,
}

/// A program that reads the output of another program, which it has at the earliest `ticks` after the end of that program.
#[derive(Debug, Clone, Copy)]
struct Arc {
    from: (usize, usize),
    to: (usize, usize),
    ticks: u64,
}

impl Paths {
    /// Returns the paths of a problem, or `None` if the edges form a cycle. Linear in stages and edges,
    /// times the depth of the graph.
    pub fn new(problem: &Problem<'_>) -> Option<Self> {
        let arcs = arcs(problem);
        let order = order(problem.stages(), &arcs)?;
        // A whole backward leaves no work for the third kind.
        let times = problem.times.iter();
        let times = times.map(|[forward, whole, input, _]| [*forward, *whole.min(input), 0]);
        let times: Vec<[u64; 3]> = times.collect();
        let mut heads = vec![[0_u64; 3]; problem.stages()];
        let tails = (0..problem.stages()).map(|stage| [update(problem, stage); 3]);
        let mut tails: Vec<[u64; 3]> = tails.collect();
        let at = |of: &[[u64; 3]], (stage, kind): (usize, usize)| of[stage][kind];
        for &(stage, kind) in &order {
            for arc in arcs.iter().filter(|arc| arc.to == (stage, kind)) {
                let start = sum([at(&heads, arc.from), at(&times, arc.from), arc.ticks]);
                heads[stage][kind] = heads[stage][kind].max(start);
            }
        }
        for &(stage, kind) in order.iter().rev() {
            for arc in arcs.iter().filter(|arc| arc.from == (stage, kind)) {
                let rest = sum([at(&tails, arc.to), at(&times, arc.to), arc.ticks]);
                tails[stage][kind] = tails[stage][kind].max(rest);
            }
        }
        let through = order.iter().map(|&node| {
            let parts = [&heads, &times, &tails].map(|of| at(of, node));
            sum(parts)
        });
        let longest = through.max().unwrap_or(0);
        Some(Self {
            heads,
            tails,
            times,
            longest,
            order,
        })
    }

    /// Returns the minimum ticks from the start of a stage's forward to the start of its backward.
    pub fn round_trip(&self, stage: usize) -> u64 {
        let [forward, input, _] = self.heads[stage];
        input.saturating_sub(forward)
    }
}

/// Returns the time after the last backward of a stage in which its own rank works: the time of its reduce and its update,
/// and with replicas of its sum and its gather.
pub(super) fn update(problem: &Problem<'_>, stage: usize) -> u64 {
    let costs = &problem.costs.stages[stage];
    let (actions, replicas) = match problem.dependencies.has_replicas() {
        true => (4, costs.sum),
        false => (2, 0),
    };
    let actions = problem.costs.overhead.saturating_mul(actions);
    sum([actions, costs.reduce, replicas, costs.update])
}

/// Returns all dependencies of one micro-batch.
fn arcs(problem: &Problem<'_>) -> Vec<Arc> {
    let actions = problem.costs.overhead.saturating_mul(2);
    let edges = problem.dependencies.edges().iter().map(|edge| {
        let sent = problem.values(*edge).sent;
        Arc {
            from: (edge.from.stage.index(), kind(edge.from.compute)),
            to: (edge.to.stage.index(), kind(edge.to.compute)),
            ticks: sent.map_or(0, |sent| sum([sent.transfer, sent.latency, actions])),
        }
    });
    let own = (0..problem.stages()).flat_map(|stage| {
        [(FORWARD, INPUT), (INPUT, WEIGHT)].map(|(from, to)| Arc {
            from: (stage, from),
            to: (stage, to),
            ticks: 0,
        })
    });
    edges.chain(own).collect()
}

/// Returns the work of one micro-batch in topological order, or `None` if there is a cycle.
fn order(stages: usize, arcs: &[Arc]) -> Option<Vec<(usize, usize)>> {
    let mut waits = vec![[0_usize; 3]; stages];
    for arc in arcs {
        waits[arc.to.0][arc.to.1] += 1;
    }
    let all = (0..stages).flat_map(|stage| [FORWARD, INPUT, WEIGHT].map(|kind| (stage, kind)));
    let first = all.filter(|&(stage, kind)| waits[stage][kind] == 0);
    let mut order: Vec<(usize, usize)> = first.collect();
    let mut next = 0;
    while let Some(&node) = order.get(next) {
        next += 1;
        for arc in arcs.iter().filter(|arc| arc.from == node) {
            let (stage, kind) = arc.to;
            waits[stage][kind] -= 1;
            if waits[stage][kind] == 0 {
                order.push(arc.to);
            }
        }
    }
    (order.len() == stages * 3).then_some(order)
}

/// Returns the least makespan, in ticks. Cubic in the stages of a rank, linear in ranks.
pub(super) fn lower_bound(problem: &Problem<'_>, paths: &Paths) -> u64 {
    let ranks = (0..problem.ranks).filter(|&rank| !problem.stages_of[rank].is_empty());
    let bounds = ranks.map(|rank| {
        let rank = Rank {
            problem,
            paths,
            stages: &problem.stages_of[rank],
            budget: problem.budgets[rank],
        };
        rank.machine().max(rank.memory())
    });
    bounds.fold(paths.longest, u64::max)
}

/// One rank as a machine.
struct Rank<'a> {
    problem: &'a Problem<'a>,
    paths: &'a Paths,
    stages: &'a [usize],
    budget: u64,
}

impl Rank<'_> {
    /// Returns the minimum time of all micro-batches of some programs. A forward and a backward may be a pair, which has one
    /// overhead.
    fn work(&self, ticks: u64) -> u64 {
        let m = self.problem.micro_batches as u64;
        let pairs = m.saturating_mul(self.stages.len() as u64);
        let saved = self.problem.costs.overhead.saturating_mul(pairs);
        ticks.saturating_mul(m).saturating_sub(saved)
    }

    /// Returns the largest bound over sets of programs, by their earliest start and the minimum time after them.
    fn machine(&self) -> u64 {
        let stages = self.stages.iter();
        let kinds = stages.flat_map(|&stage| [(stage, FORWARD), (stage, INPUT)]);
        let of = |ends: &[[u64; 3]]| -> Vec<u64> {
            let ends = kinds.clone().map(|(stage, kind)| ends[stage][kind]);
            ends.collect()
        };
        let heads = of(&self.paths.heads);
        let mut tails = of(&self.paths.tails);
        tails.push(0);
        let heads = heads.iter();
        let pairs = heads.flat_map(|head| tails.iter().map(|tail| (*head, *tail)));
        let bounds = pairs.map(|(head, tail)| {
            let is_in = |stage: usize, kind: usize| {
                self.paths.heads[stage][kind] >= head && self.paths.tails[stage][kind] >= tail
            };
            let (mut ticks, mut updates) = (0_u64, 0_u64);
            for &stage in self.stages {
                if is_in(stage, FORWARD) {
                    add(&mut ticks, self.paths.times[stage][FORWARD]);
                }
                if is_in(stage, INPUT) {
                    // Programs that no other program waits for may run in the tail.
                    let end = update(self.problem, stage);
                    let backward = match tail <= end {
                        true => self.problem.least_backward(stage),
                        false => self.paths.times[stage][INPUT],
                    };
                    add(&mut ticks, backward);
                    add(&mut updates, if tail == 0 { end } else { 0 });
                }
            }
            // Thresholds that no program meets give no bound.
            match ticks {
                0 => 0,
                _ => sum([head, self.work(ticks), updates, tail]),
            }
        });
        bounds.max().unwrap_or(0)
    }

    /// Returns the rank's work and the time in which its memory limit keeps it idle.
    fn memory(&self) -> u64 {
        let m = self.problem.micro_batches as u64;
        let stages = || self.stages.iter().copied();
        let ticks = sum(stages().map(|stage| self.problem.least_work(stage)));
        let updates = sum(stages().map(|stage| update(self.problem, stage)));
        let of = |kind: usize| stages().map(move |stage| self.paths.heads[stage][kind]);
        let begin = of(FORWARD).min().unwrap_or(0);
        let first_backward = of(INPUT).min().unwrap_or(0);
        let forwards = stages().map(|stage| {
            let bytes = self.problem.costs.stages[stage].activation_bytes;
            (self.paths.times[stage][FORWARD], bytes, m)
        });
        let forwards = most_work(forwards.collect(), self.budget);
        let until_backward = first_backward.saturating_sub(begin);
        let idle = until_backward.saturating_sub(forwards);
        let work = self.work(ticks);
        sum([begin, idle, self.idle_at_the_end(), work, updates])
    }

    /// Returns the time in which a rank with one stage is idle after its last forward.
    fn idle_at_the_end(&self) -> u64 {
        let &[stage] = self.stages else { return 0 };
        let costs = &self.problem.costs.stages[stage];
        let m = self.problem.micro_batches as u64;
        // If all forwards fit, the last one may run before the first backward, and both pauses
        // may be the same.
        let all = costs.activation_bytes.saturating_mul(m);
        let Some(beside) = self.budget.checked_sub(costs.activation_bytes) else {
            return 0;
        };
        if all <= self.budget {
            return 0;
        }
        let [forward, input, _] = self.paths.times[stage];
        let away = self.paths.round_trip(stage).saturating_sub(forward);
        let backward = self.problem.least_backward(stage);
        let rest = backward.saturating_sub(input);
        let left = vec![
            (backward, costs.activation_bytes, m - 1),
            (rest, costs.weight_gradient_bytes, m - 1),
        ];
        away.saturating_sub(most_work(left, beside))
    }
}

/// Returns the maximum work of items that fit in some bytes: each has ticks, bytes and a count.
///
/// An upper bound: it splits items, or treats all as being as small as the smallest and as long as the longest.
fn most_work(mut items: Vec<(u64, u64, u64)>, mut bytes: u64) -> u64 {
    items.retain(|(ticks, _, _)| *ticks > 0);
    let longest = items.iter().map(|(ticks, _, _)| *ticks).max().unwrap_or(0);
    let smallest = items.iter().map(|(_, size, _)| *size).min().unwrap_or(0);
    let uncut = bytes.checked_div(smallest);
    let uncut = uncut.map_or(u64::MAX, |count| longest.saturating_mul(count));
    // Descending by ticks per byte; items without bytes are first.
    let product = |ticks: u64, bytes: u64| u128::from(ticks) * u128::from(bytes);
    items.sort_by(|a, b| product(b.0, a.1).cmp(&product(a.0, b.1)));
    let mut work = 0_u64;
    for (ticks, size, count) in items {
        let all = size.saturating_mul(count);
        if all <= bytes {
            bytes -= all;
            add(&mut work, ticks.saturating_mul(count));
        } else {
            let cut = product(ticks, bytes).div_ceil(u128::from(size));
            add(&mut work, narrow(cut));
            break;
        }
    }
    work.min(uncut)
}
