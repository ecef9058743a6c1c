//! The longest paths of one micro-batch through all stages: the earliest start of each program, and
//! the minimum time after it.

use crate::arithmetic::sum;

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

/// A program that reads the output of another, at the earliest this many ticks after its end.
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
        for &(stage, kind) in &order {
            let reached = arcs.iter().filter(|arc| arc.to == (stage, kind));
            let starts = reached.map(|arc| {
                let (from, kind) = arc.from;
                sum([heads[from][kind], times[from][kind], arc.ticks])
            });
            heads[stage][kind] = starts.max().unwrap_or(0);
        }
        for &(stage, kind) in order.iter().rev() {
            let left = arcs.iter().filter(|arc| arc.from == (stage, kind));
            let rests = left.map(|arc| {
                let (to, kind) = arc.to;
                sum([tails[to][kind], times[to][kind], arc.ticks])
            });
            tails[stage][kind] = rests.fold(tails[stage][kind], u64::max);
        }
        let through = order.iter().map(|&(stage, kind)| {
            let parts = [&heads, &times, &tails].map(|of| of[stage][kind]);
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

/// Returns the time after the last backward of a stage in which its own rank works: its reduce and its update, and with replicas
/// its sum and its gather.
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
    let costs = problem.costs;
    let edges = problem.dependencies.edges().iter().map(|edge| {
        let [from, to] = [edge.from.stage.index(), edge.to.stage.index()];
        let bytes = costs.message_bytes.get(edge).copied().unwrap_or(0);
        let [sender, reader] = [problem.rank_of[from], problem.rank_of[to]];
        let sent = problem.sent(sender, reader, bytes);
        let actions = costs.overhead.saturating_mul(2);
        Arc {
            from: (from, kind(edge.from.compute)),
            to: (to, kind(edge.to.compute)),
            ticks: match sender == reader {
                true => 0,
                false => sum([sent.transfer, sent.latency, actions]),
            },
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
