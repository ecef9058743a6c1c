//! The values of the forward that enter, leave and bypass each stage.

use std::collections::{BTreeMap, BTreeSet};

use tinderbox_fake::{ValueId, dtype_name};
use tinderbox_planner::{PlanStage, PlanValue};

use super::text::in_module;
use crate::cut::StagePrograms;
use crate::schedule::{Compute, StageIndex};
use crate::trace::JointGraph;

/// Adds the values of every stage's boundaries.
pub(super) fn add(stages: &mut [PlanStage], joint: &JointGraph, programs: &[StagePrograms]) {
    // The stage that computes each value, and the stages that receive it.
    let mut ways: BTreeMap<ValueId, (usize, BTreeSet<usize>)> = BTreeMap::new();
    for (edge, values) in programs.iter().flat_map(|programs| &programs.sends) {
        if edge.from.compute == Compute::Forward {
            for value in values {
                let from = edge.from.stage.index();
                let way = ways.entry(*value).or_insert((from, BTreeSet::new()));
                way.1.insert(edge.to.stage.index());
            }
        }
    }
    for (value, (from, to)) in ways {
        let last = to.last().copied().unwrap_or(from);
        let described = describe(joint, value, from, last);
        for (index, stage) in stages.iter_mut().enumerate().take(last + 1).skip(from) {
            let list = if index == from {
                &mut stage.live_out
            } else if to.contains(&index) {
                &mut stage.live_in
            } else {
                &mut stage.bypassing
            };
            list.push(described.clone());
        }
    }
}

fn describe(joint: &JointGraph, value: ValueId, from: usize, to: usize) -> PlanValue {
    let known = joint.graph().value(value);
    let made_by = known.producer.map(|node| {
        let name = joint.graph().node(node).name();
        name + &in_module(joint, node)
    });
    PlanValue {
        name: value.to_string(),
        made_by: made_by.unwrap_or_default(),
        from: StageIndex::new(from),
        to: StageIndex::new(to),
        shape: known.shape.iter().copied().collect(),
        dtype: dtype_name(known.dtype).to_owned(),
        bytes: known.bytes(),
    }
}
