//! Coarsening: pairs of nodes become one, so that no cycle can come of it.
//!
//! Two nodes are paired along an edge from `u` to `v` if `v` has no other predecessor or `u` no other
//! successor. All pairs of a level can be contracted at once. For suppose that pairs then formed a
//! cycle. Where `v` has no other predecessor, the pair is entered at `u`, from which both of its nodes
//! are reached; where `u` has no other successor, it is left at `v`, which is reached from both. So
//! from where the cycle enters a pair there is a path to where it leaves it, and all of these paths
//! and edges together are a cycle of the graph before, which has none.
//!
//! Where that pairs too few, neighbours in one order of the nodes are paired: groups that follow each
//! other in an order in which the nodes can run form no cycle either. The first rule is one of those
//! of Herrmann, Özkaya, Uçar, Kaya and Çatalyürek (SIAM Journal on Scientific Computing 41, 2019).

use std::collections::BTreeMap;

use super::super::graph::{Graph, Role};

/// A level that keeps more than this part of the nodes, in thousandths, is not worth having.
const LEAST_PROGRESS_PERMILLE: usize = 900;

/// The group of each node and the number of groups, numbered along an order; `None` where too few
/// nodes can be paired. No pair takes longer than `most_ns`. Linear in the ends of nets, but for
/// logarithms.
pub(super) fn coarsen(graph: &Graph, most_ns: u64) -> Option<(Vec<usize>, usize)> {
    let order = graph.order();
    let pairs = [
        along_edges(graph, &order, most_ns),
        along_order(graph, &order, most_ns),
    ];
    let progress = graph.nodes.len() * LEAST_PROGRESS_PERMILLE / 1000;
    let mut groups = pairs.map(|partner| number(&order, &partner)).into_iter();
    groups.find(|(_, groups)| *groups <= progress)
}

/// Pairs each node with the neighbour that it exchanges most with, where the rule allows.
fn along_edges(graph: &Graph, order: &[usize], most_ns: u64) -> Vec<usize> {
    let mut partner: Vec<usize> = (0..order.len()).collect();
    for node in order {
        if partner[*node] != *node {
            continue;
        }
        let own = graph.nodes[*node].time();
        let neighbours = weights(graph, *node).into_iter().filter(|(other, _)| {
            let (first, then) = match graph.after[*node].binary_search(other) {
                Ok(_) => (*node, *other),
                Err(_) => (*other, *node),
            };
            let is_safe = graph.before[then].len() == 1 || graph.after[first].len() == 1;
            let fits = own + graph.nodes[*other].time() <= most_ns;
            partner[*other] == *other && is_safe && fits
        });
        // Most bytes, then the shortest, then the first.
        let best = neighbours.min_by_key(|(other, bytes)| {
            let time = graph.nodes[*other].time();
            (std::cmp::Reverse(*bytes), time, *other)
        });
        if let Some((other, _)) = best {
            partner[*node] = other;
            partner[other] = *node;
        }
    }
    partner
}

/// Bytes that a node exchanges with each neighbour; a value with several readers counts in parts.
fn weights(graph: &Graph, node: usize) -> BTreeMap<usize, u64> {
    let mut weights: BTreeMap<usize, u64> = BTreeMap::new();
    for (index, role) in &graph.incident[node] {
        let net = &graph.nets[*index];
        let bytes = (net.bytes + net.gradient_bytes) / net.pins.len() as u64;
        match role {
            Role::Maker => {
                for pin in &net.pins {
                    *weights.entry(pin.node).or_default() += bytes;
                }
            }
            Role::Pin { .. } => *weights.entry(net.maker).or_default() += bytes,
        }
    }
    weights
}

/// Pairs nodes that follow each other in the order.
fn along_order(graph: &Graph, order: &[usize], most_ns: u64) -> Vec<usize> {
    let mut partner: Vec<usize> = (0..order.len()).collect();
    for pair in order.windows(2) {
        let [first, then] = [pair[0], pair[1]];
        let time = graph.nodes[first].time() + graph.nodes[then].time();
        if partner[first] == first && time <= most_ns {
            partner[first] = then;
            partner[then] = first;
        }
    }
    partner
}

/// Groups of partners in the order of their first nodes.
fn number(order: &[usize], partner: &[usize]) -> (Vec<usize>, usize) {
    let mut group_of = vec![usize::MAX; order.len()];
    let mut groups = 0;
    for node in order {
        if group_of[*node] == usize::MAX {
            group_of[*node] = groups;
            group_of[partner[*node]] = groups;
            groups += 1;
        }
    }
    (group_of, groups)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tinderbox_schedule::ScheduleKind;

    use super::*;
    use crate::Step;
    use crate::partition::tests::work;

    proptest! {
        /// Every level can still run, and takes as long as the one before.
        #[test]
        fn levels_have_no_cycles(shape in 0..4_u64, size in 8..150_usize, seed in any::<u64>()) {
            let step = Step::new(ScheduleKind::OneFOneB, 4);
            let mut graph = Graph::of_work(&work(shape, size, seed), &step, false);
            while let Some((group_of, groups)) = coarsen(&graph, u64::MAX) {
                let coarse = graph.contract(&group_of, groups);
                prop_assert_eq!(coarse.order().len(), groups);
                let time = |graph: &Graph| graph.nodes.iter().map(|n| n.time()).sum::<u64>();
                prop_assert_eq!(time(&coarse), time(&graph));
                graph = coarse;
            }
            // Nothing keeps a connected work from becoming one node.
            prop_assert!(graph.nodes.len() < 8);
        }
    }
}
