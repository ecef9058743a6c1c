//! A joint graph divided among stages.

use std::collections::{BTreeMap, BTreeSet};

use tinderbox_fake::ValueId;

use super::Layout;
use super::assign::Assignment;
use super::parts::Parts;
use crate::schedule::{Edge, StageIndex};
use crate::{JointGraph, PlanError};

/// A joint graph divided among stages.
#[derive(Clone, Debug)]
pub struct Cutting {
    pub(super) forward: Vec<Parts>,
    pub(super) backward: Vec<Parts>,
    /// Values that one program sends to another, in the order of their ids.
    edges: BTreeMap<Edge, Vec<ValueId>>,
}

impl Cutting {
    /// Divides a joint graph. Cost: linear in the graph, times the number of stages.
    pub fn new(joint: &JointGraph, layout: &Layout) -> Result<Self, PlanError> {
        let assigned = Assignment::new(joint, layout)?;
        Ok(Self {
            edges: assigned.edges(),
            forward: assigned.forward,
            backward: assigned.backward,
        })
    }

    /// Refuses a program that reads a parameter on a stage that does not hold it in the plan.
    pub fn check_held(&self, joint: &JointGraph, layout: &Layout) -> Result<(), PlanError> {
        for (stage, read) in layout.stages().zip(self.copies(joint, layout)) {
            if let Some(missing) = read.into_iter().find(|at| !layout.holds(stage, *at)) {
                let path = joint.parameter(missing).path.clone();
                return Err(PlanError::NotHeld { path, stage });
            }
        }
        Ok(())
    }

    /// The parameters that each stage reads and does not own.
    pub fn copies(&self, joint: &JointGraph, layout: &Layout) -> Vec<Vec<usize>> {
        let copies = layout.stages().map(|stage| {
            let programs = [&self.forward, &self.backward].into_iter();
            let read = programs.flat_map(|parts| &parts[stage.index()].reads);
            let parameters = read.filter_map(|value| joint.parameter_of(*value));
            let others = parameters.filter(|position| layout.owners[*position] != stage);
            others.collect::<BTreeSet<_>>().into_iter().collect()
        });
        copies.collect()
    }

    /// The messages along some edges.
    pub(super) fn messages(&self, keep: impl Fn(&Edge) -> bool) -> BTreeMap<Edge, Vec<ValueId>> {
        let edges = self.edges.iter().filter(|(edge, _)| keep(edge));
        let messages = edges.map(|(edge, values)| (*edge, values.clone()));
        messages.collect()
    }

    /// The stage of each carried tensor that only one stage has, by the name of the tensor.
    pub fn carried(&self, joint: &JointGraph) -> BTreeMap<String, StageIndex> {
        let mut all = BTreeMap::new();
        for input in joint.carried().keys() {
            let stages = self.forward.iter().enumerate();
            let mut stages = stages.filter(|(_, parts)| parts.carried.contains(input));
            if let (Some((stage, _)), None) = (stages.next(), stages.next()) {
                let name = joint.inputs()[*input].leaf.name.clone();
                all.insert(name, StageIndex::new(stage));
            }
        }
        all
    }
}
