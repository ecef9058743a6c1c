//! Assigns groups to ranks: the largest first, each to the rank that would finish it first.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use tinderbox_schedule::arithmetic::add;

use super::super::graph::Graph;
use crate::Machine;

/// Returns the rank of each node of a graph of groups; every rank has a node if there are enough.
///
/// Longest processing time first (Graham 1969) on ranks of different speeds by finish time; ties are
/// broken by the bytes exchanged with the rank. A rank is used only within its memory, with `in_flight`
/// micro-batches counted, while any rank has enough. Nodes times ranks.
pub(super) fn assign(graph: &Graph, machine: &Machine, in_flight: u64) -> Vec<usize> {
    let ranks = machine.rank_models();
    let bytes = bytes(graph, in_flight);
    let mut nodes: Vec<usize> = (0..graph.nodes.len()).collect();
    nodes.sort_by_key(|node| (Reverse(graph.nodes[*node].time()), *node));
    let mut rank_of = vec![usize::MAX; nodes.len()];
    let mut load = vec![0_u64; ranks.len()];
    let mut held = vec![0_u64; ranks.len()];
    let mut idle: BTreeSet<usize> = (0..ranks.len()).collect();
    for (done, node) in nodes.iter().copied().enumerate() {
        let with = affinity(graph, node, &rank_of, ranks.len());
        let must_fill = nodes.len() - done <= idle.len();
        let open = (0..ranks.len()).filter(|rank| !must_fill || idle.contains(rank));
        let best = open.min_by_key(|rank| {
            let limit = ranks[*rank].memory_bytes.unwrap_or(u64::MAX);
            let after = held[*rank].saturating_add(bytes[node]);
            let finish = ranks[*rank].time(load[*rank] + graph.nodes[node].time());
            // If the node fits nowhere, the rank with the smallest excess is used.
            let excess = after.saturating_sub(limit);
            (excess, finish, Reverse(with[*rank]), *rank)
        });
        let rank = best.unwrap_or(0);
        rank_of[node] = rank;
        load[rank] += graph.nodes[node].time();
        held[rank] = held[rank].saturating_add(bytes[node]);
        idle.remove(&rank);
    }
    rank_of
}

/// The bytes that a node exchanges with the nodes on each rank.
fn affinity(graph: &Graph, node: usize, rank_of: &[usize], ranks: usize) -> Vec<u64> {
    let mut bytes = vec![0; ranks];
    for (index, _) in &graph.incident[node] {
        let net = &graph.nets[*index];
        let ends = net.pins.iter().map(|pin| pin.node).chain([net.maker]);
        let others: BTreeSet<usize> = ends.map(|end| rank_of[end]).collect();
        for rank in others.into_iter().filter(|rank| *rank < ranks) {
            bytes[rank] += net.bytes + net.gradient_bytes;
        }
    }
    bytes
}

/// An upper bound of the bytes that each node adds to its rank.
fn bytes(graph: &Graph, in_flight: u64) -> Vec<u64> {
    let mut kept: Vec<u64> = graph.nodes.iter().map(|node| node.kept).collect();
    let mut bytes: Vec<u64> = graph.nodes.iter().map(|node| node.resident).collect();
    for net in &graph.nets {
        bytes[net.maker] += net.copy + net.own;
        if net.maker_keeps {
            kept[net.maker] += net.bytes;
        }
        for pin in &net.pins {
            bytes[pin.node] += net.copy;
            kept[pin.node] += if pin.keeps { net.bytes } else { 0 };
        }
    }
    for ((bytes, kept), node) in bytes.iter_mut().zip(kept).zip(&graph.nodes) {
        add(bytes, kept.saturating_mul(in_flight));
        add(bytes, node.weight_gradient_bytes);
    }
    bytes
}
