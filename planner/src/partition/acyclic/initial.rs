//! First assignments: an order in which the nodes can run, cut into stages of equal time.

use std::collections::BTreeSet;

use super::super::graph::{Graph, Node};
use super::super::terms::Terms;

/// Orders that compare every node that can run with every other are made up to so many nodes.
const COMPARED_NODES: usize = 512;

/// Orders that are drawn.
const DRAWN_ORDERS: u64 = 12;

/// Orders to cut, each one in which the nodes can run (Kahn 1962): the lowest block first; depth
/// first, so that a branch is finished before the next one; the fewest live bytes first; and some
/// drawn from a fixed seed. Each is there once.
pub(super) fn orders(graph: &Graph) -> Vec<Vec<usize>> {
    let mut orders = vec![graph.order(), depth_first(graph)];
    if graph.nodes.len() <= COMPARED_NODES {
        orders.push(fewest_bytes_first(graph));
        orders.extend((0..DRAWN_ORDERS).map(|seed| drawn(graph, seed)));
    }
    let mut seen = BTreeSet::new();
    orders.retain(|order| seen.insert(order.clone()));
    orders
}

/// An order in which the next node is drawn among those that can run, by a linear congruence (Knuth's
/// MMIX).
fn drawn(graph: &Graph, seed: u64) -> Vec<usize> {
    let mut state = seed;
    let mut waits: Vec<usize> = graph.before.iter().map(Vec::len).collect();
    let starts = (0..waits.len()).filter(|node| waits[*node] == 0);
    let mut ready: Vec<usize> = starts.collect();
    let mut order = Vec::with_capacity(waits.len());
    while !ready.is_empty() {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        let at = (state >> 33) % ready.len() as u64;
        let node = ready.swap_remove(at as usize);
        order.push(node);
        for later in &graph.after[node] {
            waits[*later] -= 1;
            if waits[*later] == 0 {
                ready.push(*later);
            }
        }
    }
    order
}

fn depth_first(graph: &Graph) -> Vec<usize> {
    let mut waits: Vec<usize> = graph.before.iter().map(Vec::len).collect();
    let starts = graph.order().into_iter().filter(|node| waits[*node] == 0);
    let mut ready: Vec<usize> = starts.collect();
    ready.reverse();
    let mut order = Vec::with_capacity(waits.len());
    while let Some(node) = ready.pop() {
        order.push(node);
        for later in graph.after[node].iter().rev() {
            waits[*later] -= 1;
            if waits[*later] == 0 {
                ready.push(*later);
            }
        }
    }
    order
}

fn fewest_bytes_first(graph: &Graph) -> Vec<usize> {
    let mut waits: Vec<usize> = graph.before.iter().map(Vec::len).collect();
    let mut unread: Vec<usize> = graph.nets.iter().map(|net| net.pins.len()).collect();
    let starts = (0..waits.len()).filter(|node| waits[*node] == 0);
    let mut ready: BTreeSet<usize> = starts.collect();
    let mut order = Vec::with_capacity(waits.len());
    loop {
        let grows = |node: &usize| {
            let nets = graph.incident[*node].iter().map(|(index, _)| {
                let net = &graph.nets[*index];
                let bytes = i128::from(net.bytes) + i128::from(net.gradient_bytes);
                match (net.maker == *node, unread[*index]) {
                    (true, _) => bytes,
                    (false, 1) => -bytes,
                    (false, _) => 0,
                }
            });
            nets.sum::<i128>()
        };
        let next = ready.iter().min_by_key(|node| (grows(node), **node));
        let Some(node) = next.copied() else {
            return order;
        };
        ready.remove(&node);
        order.push(node);
        for (index, _) in &graph.incident[node] {
            if graph.nets[*index].maker != node {
                unread[*index] -= 1;
            }
        }
        for later in &graph.after[node] {
            waits[*later] -= 1;
            if waits[*later] == 0 {
                ready.insert(*later);
            }
        }
    }
}

/// Sums along an order: what the first so many nodes take and hold.
struct Sums {
    time: Vec<u64>,
    resident: Vec<u64>,
    kept: Vec<u64>,
    weights: Vec<u64>,
}

impl Sums {
    fn new(graph: &Graph, order: &[usize]) -> Self {
        let mut kept: Vec<u64> = graph.nodes.iter().map(|node| node.kept).collect();
        let mut resident: Vec<u64> = graph.nodes.iter().map(|node| node.resident).collect();
        // A value is kept once per stage: its first keeper stands for all.
        for net in &graph.nets {
            let first = net.pins.iter().find(|pin| pin.keeps).map(|pin| pin.node);
            let first = if net.maker_keeps {
                Some(net.maker)
            } else {
                first
            };
            if let Some(first) = first {
                kept[first] += net.bytes;
            }
        }
        for shared in &graph.shared {
            resident[shared.owner] += shared.copy + shared.own;
        }
        let along = |of: &dyn Fn(usize) -> u64| {
            let mut sums = Vec::with_capacity(order.len() + 1);
            let mut sum = 0_u64;
            sums.push(0);
            for node in order {
                sum += of(*node);
                sums.push(sum);
            }
            sums
        };
        Self {
            time: along(&|node| graph.nodes[node].time()),
            resident: along(&|node| resident[node]),
            kept: along(&|node| kept[node]),
            weights: along(&|node| graph.nodes[node].weight_gradient_bytes),
        }
    }

    /// Whether a stage may run a range of the order within a time and, where asked, its memory.
    fn fits(
        &self,
        terms: &Terms,
        stage: usize,
        range: (usize, usize),
        most_ns: u64,
        in_memory: bool,
    ) -> bool {
        let of = |sums: &[u64]| sums[range.1] - sums[range.0];
        let rank = terms.rank_of[stage];
        let model = terms.ranks[rank];
        if model.time(of(&self.time)) > most_ns {
            return false;
        }
        let Some(limit) = model.memory_bytes.filter(|_| in_memory) else {
            return true;
        };
        let (activations, weights) = terms.most_held(stage);
        let held = of(&self.resident)
            .saturating_add(of(&self.kept).saturating_mul(activations))
            .saturating_add(of(&self.weights).saturating_mul(weights));
        // Stages of one rank share its memory evenly.
        held <= limit / terms.stages_of[rank].len().max(1) as u64
    }
}

/// The stage of each node where an order is cut into stages whose longest is as short as it can be,
/// counting compute alone; within the ranks' memory where a cut by a rough estimate of it is. Every
/// stage gets a node, so there must not be fewer nodes than stages.
///
/// By bisection over the time, for which every stage takes what fits (Iqbal 1991); stages times two
/// logarithms.
pub(in crate::partition) fn contiguous(
    graph: &Graph,
    terms: &Terms,
    order: &[usize],
) -> Vec<usize> {
    let sums = Sums::new(graph, order);
    let starts = shortest(&sums, terms, true).or_else(|| shortest(&sums, terms, false));
    let even = || (0..terms.stages()).map(|stage| stage * order.len() / terms.stages());
    let starts = starts.unwrap_or_else(|| even().collect());
    let mut stage_of = vec![0; order.len()];
    for (stage, start) in starts.iter().enumerate() {
        for node in &order[*start..] {
            stage_of[*node] = stage;
        }
    }
    stage_of
}

/// The starts of the stages under the smallest time for which there are any.
fn shortest(sums: &Sums, terms: &Terms, in_memory: bool) -> Option<Vec<usize>> {
    let mut found = starts(sums, terms, u64::MAX, in_memory)?;
    let (mut low, mut high) = (0, u64::MAX);
    while low < high {
        let middle = low + (high - low) / 2;
        match starts(sums, terms, middle, in_memory) {
            Some(better) => (found, high) = (better, middle),
            None => low = middle + 1,
        }
    }
    Some(found)
}

/// The starts of the stages when each takes as much as fits and leaves one node for each later one.
fn starts(sums: &Sums, terms: &Terms, most_ns: u64, in_memory: bool) -> Option<Vec<usize>> {
    let (nodes, stages) = (sums.time.len() - 1, terms.stages());
    let mut starts = Vec::with_capacity(stages);
    let mut from = 0;
    for stage in 0..stages {
        starts.push(from);
        let last = nodes.checked_sub(stages - 1 - stage)?;
        let fits = |to: usize| sums.fits(terms, stage, (from, to), most_ns, in_memory);
        let (mut low, mut high) = (from + 1, last);
        if low > high || !fits(low) {
            return None;
        }
        while low < high {
            let middle = low + (high - low).div_ceil(2);
            match fits(middle) {
                true => low = middle,
                false => high = middle - 1,
            }
        }
        from = low;
    }
    (from == nodes).then_some(starts)
}

/// The longest that a stage of equal parts would take: all time over the speed of all stages.
pub(super) fn mean_ns(graph: &Graph, stages: usize) -> u64 {
    let time: u64 = graph.nodes.iter().map(Node::time).sum();
    time / stages.max(1) as u64
}
