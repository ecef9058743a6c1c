//! Calls METIS.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use metis::option::{Seed, UFactor};
use metis::{Idx, Real};

use super::super::graph::Graph;
use crate::{PlannerError, RankModel};

/// The maximum sum of all weights of one kind, far below the overflow of 32-bit sums.
const TOTAL_WEIGHT: u128 = 1 << 26;

/// METIS uses the C library's generator, which is global to the process. Each call seeds it, so that
/// calls that are not interleaved with others return the same parts.
static GENERATOR: Mutex<()> = Mutex::new(());

const SEED: Idx = 1;

/// The allowed excess of a part over its target: the default of METIS.
const IMBALANCE_PERMILLE: Idx = 30;

/// The part of each node; each part has at least one. The size of parts is proportional to the speed of
/// their ranks and, where all are limited, to their memory.
pub(super) fn parts(graph: &Graph, ranks: &[RankModel]) -> Result<Vec<usize>, PlannerError> {
    let nodes = graph.nodes.len();
    let neighbours = neighbours(graph);
    let all: u128 = neighbours.iter().flatten().map(|edge| *edge.1).sum();
    let mut starts: Vec<Idx> = vec![0];
    let (mut ends, mut weights) = (Vec::new(), Vec::new());
    for edges in &neighbours {
        for (other, bytes) in edges {
            ends.push(index(*other)?);
            weights.push(weight(*bytes, all));
        }
        starts.push(index(ends.len())?);
    }
    let sizes = sizes(graph, ranks);
    let kinds = sizes.len();
    let totals: Vec<u128> = sizes.iter().map(|sizes| sizes.iter().sum()).collect();
    let of_node = |node| {
        let kinds = sizes.iter().zip(&totals);
        kinds.map(move |(sizes, total)| weight(sizes[node], *total))
    };
    let sizes: Vec<Idx> = (0..nodes).flat_map(of_node).collect();
    let targets = targets(ranks, kinds);
    let mut parts = vec![0; nodes];
    let guard = GENERATOR.lock().unwrap_or_else(PoisonError::into_inner);
    let called = metis::Graph::new(index(kinds)?, index(ranks.len())?, &starts, &ends);
    let called = called.map_err(|_| PlannerError::TooLarge { blocks: nodes })?;
    called
        .set_vwgt(&sizes)
        .set_adjwgt(&weights)
        .set_tpwgts(&targets)
        .set_option(Seed(SEED))
        .set_option(UFactor(IMBALANCE_PERMILLE))
        .part_kway(&mut parts)
        .map_err(|source| PlannerError::Metis { source })?;
    drop(guard);
    let parts = parts.iter().map(|part| usize::try_from(*part).unwrap_or(0));
    let mut parts: Vec<usize> = parts.collect();
    fill(graph, &mut parts, ranks.len());
    Ok(parts)
}

fn index(number: usize) -> Result<Idx, PlannerError> {
    Idx::try_from(number).map_err(|_| PlannerError::TooLarge { blocks: number })
}

/// A weight of at least one, so that every node counts.
fn weight(size: u128, total: u128) -> Idx {
    let scaled = size.saturating_mul(TOTAL_WEIGHT) / total.max(TOTAL_WEIGHT);
    Idx::try_from(scaled.max(1)).unwrap_or(Idx::MAX)
}

/// The bytes that each pair of nodes exchanges. A value with many readers is sent to each of their
/// parts once, so its weight is divided among the readers.
fn neighbours(graph: &Graph) -> Vec<BTreeMap<usize, u128>> {
    let mut neighbours = vec![BTreeMap::new(); graph.nodes.len()];
    for net in graph.nets.iter().filter(|net| net.flows) {
        let bytes = u128::from(net.bytes) + u128::from(net.gradient_bytes);
        let bytes = bytes / net.pins.len() as u128;
        for pin in &net.pins {
            for (a, b) in [(net.maker, pin.node), (pin.node, net.maker)] {
                *neighbours[a].entry(b).or_default() += bytes;
            }
        }
    }
    neighbours
}

/// The time of each node and, where all ranks are limited, its bytes.
fn sizes(graph: &Graph, ranks: &[RankModel]) -> Vec<Vec<u128>> {
    let times = graph.nodes.iter().map(|node| u128::from(node.time()));
    let mut sizes = vec![times.collect()];
    if ranks.iter().all(|rank| rank.memory_bytes.is_some()) {
        let held = graph.nodes.iter().map(|node| node.resident + node.kept);
        let mut held: Vec<u128> = held.map(u128::from).collect();
        for net in &graph.nets {
            held[net.maker] += u128::from(net.copy) + u128::from(net.own);
            let keepers = net.pins.iter().filter(|pin| pin.keeps);
            let keeper = keepers.map(|pin| pin.node).next();
            let keeper = net.maker_keeps.then_some(net.maker).or(keeper);
            if let Some(keeper) = keeper {
                held[keeper] += u128::from(net.bytes);
            }
        }
        sizes.push(held);
    }
    sizes
}

/// The target fraction of each part, kind by kind.
fn targets(ranks: &[RankModel], kinds: usize) -> Vec<Real> {
    let speed: u128 = ranks.iter().map(|r| u128::from(r.speed_permille)).sum();
    let bytes = |rank: &RankModel| u128::from(rank.memory_bytes.unwrap_or(0));
    let memory: u128 = ranks.iter().map(bytes).sum();
    let share = |part: u128, all: u128| match all {
        0 => 1.0 / ranks.len() as Real,
        all => (part as f64 / all as f64) as Real,
    };
    let of_rank = |rank: &RankModel| {
        let shares = [
            share(u128::from(rank.speed_permille), speed),
            share(bytes(rank), memory),
        ];
        shares.into_iter().take(kinds)
    };
    ranks.iter().flat_map(of_rank).collect()
}

/// Moves a node from the largest part to every empty part.
fn fill(graph: &Graph, parts: &mut [usize], count: usize) {
    let mut nodes = vec![0_usize; count];
    for part in parts.iter() {
        nodes[*part] += 1;
    }
    for empty in 0..count {
        if nodes[empty] > 0 {
            continue;
        }
        let most = (0..count).max_by_key(|part| (nodes[*part], std::cmp::Reverse(*part)));
        let most = most.unwrap_or(0);
        let of = (0..parts.len()).filter(|node| parts[*node] == most);
        if let Some(node) = of.max_by_key(|node| (graph.nodes[*node].time(), *node)) {
            parts[node] = empty;
            nodes[most] -= 1;
            nodes[empty] += 1;
        }
    }
}
