//! Stages of a forward that resembles a planned one.
//!
//! The forward of an evaluation has no dropout, and some of Burn's operations depend on the sizes of a
//! batch. Most of it is what was planned, in the same order, so it runs on the same stages.

use std::collections::BTreeMap;

use similar::{Algorithm, DiffOp, capture_diff_slices};
use tinderbox_fake::ValueId;

use super::Layout;
use super::layout::Operations;
use crate::partition::Chain;
use crate::trace::JointGraph;

/// The stage of each position. An operation that the planned forward has too runs where it was planned;
/// another one where the last of its inputs is made, or if it has none, where what follows it runs. None
/// runs before its inputs, and what reads parameters runs at a stage that holds them: the nearest below, else
/// the nearest above.
///
/// Cost: linear for forwards that are alike, times how far they differ.
pub(super) fn align(
    known: &Operations,
    joint: &JointGraph,
    chain: &Chain,
    layout: &Layout,
) -> Vec<usize> {
    let labels = chain.labels(joint);
    let mut planned: Vec<Option<usize>> = vec![None; labels.len()];
    for part in capture_diff_slices(Algorithm::Myers, &known.labels, &labels) {
        if let DiffOp::Equal {
            old_index,
            new_index,
            len,
        } = part
        {
            for at in 0..len {
                planned[new_index + at] = known.stages.get(old_index + at).copied();
            }
        }
    }
    let mut behind = vec![0; labels.len()];
    let mut next = known.stages.last().copied().unwrap_or(0);
    for (position, stage) in planned.iter().enumerate().rev() {
        next = stage.unwrap_or(next);
        behind[position] = next;
    }
    let graph = joint.graph();
    let mut index_of: BTreeMap<ValueId, usize> = BTreeMap::new();
    for (index, value) in joint.parameters().iter().enumerate() {
        index_of.entry(*value).or_insert(index);
    }
    let mut stages: Vec<usize> = Vec::with_capacity(labels.len());
    for (position, id) in chain.nodes().iter().enumerate() {
        let inputs = graph.node(*id).inputs().iter();
        let producers = inputs.filter_map(|input| graph.value(*input).producer);
        let made = producers.filter_map(|node| chain.position(node));
        let made = made.map(|position| stages[position]).max();
        let wanted = match (planned[position], made) {
            (Some(planned), made) => planned.max(made.unwrap_or(0)),
            (None, Some(made)) => made,
            (None, None) => behind[position],
        };
        let read = graph.node(*id).inputs().iter();
        let read: Vec<usize> = read.filter_map(|v| index_of.get(v).copied()).collect();
        let holds = |stage: &usize| read.iter().all(|index| layout.holds(*stage, *index));
        let below = (made.unwrap_or(0)..=wanted).rev().find(holds);
        let nearest = below.or_else(|| (wanted..layout.stages()).find(holds));
        stages.push(nearest.unwrap_or(wanted));
    }
    stages
}
