//! Cuts a joint graph into programs: per stage a forward and a backward, the backward whole and in two.
//!
//! Forward operations go where the plan says. A backward operation goes to the highest stage, not
//! above the lowest stage among its gradient inputs, at which all forward values that it reads are
//! available; one that reads only gradients sinks toward its users when no more bytes cross. So
//! gradients are Burn's own, whatever the cut, and data flows backward only from higher stages to
//! lower ones.
//!
//! The backward of a stage is divided by what it is for: its first half, `I`, makes what other stages
//! wait for, its second half, `W`, the gradients of the stage's own parameters. What both need is made
//! by the first and kept for the second, except for what is cheaper to recompute. Both run the operations
//! of the whole, each on the same operands, so they give its bits.

mod layout;
mod parts;
mod phase;
mod place;
mod programs;
mod takes;

use std::collections::{BTreeMap, BTreeSet};

use tinderbox_deferred::{ParameterPath, ParameterTable};
use tinderbox_fake::ValueId;

pub(crate) use layout::{Holding, Layout, Operations, Sharing};
pub(crate) use phase::{Binding, Phase};
pub(crate) use place::place_gradients;
pub(crate) use programs::StagePrograms;

use crate::PlanError;
use crate::partition::Chain;
use crate::schedule::{Compute, Edge, Endpoint, StageIndex};
use crate::trace::{JointGraph, Role, Roles};
use parts::Parts;
use place::Placement;

/// A joint graph divided among stages.
#[derive(Clone, Debug)]
pub(crate) struct Cutting {
    forward: Vec<Parts>,
    backward: Vec<Parts>,
    edges: BTreeMap<Edge, BTreeSet<ValueId>>,
    /// Stages that read each parameter of the table, its owner included.
    holders: Vec<BTreeSet<usize>>,
    paths: Vec<ParameterPath>,
    owners: Vec<StageIndex>,
    last_stage: usize,
}

impl Cutting {
    /// Divides a joint graph. Cost: linear in the graph, times the number of stages.
    pub(crate) fn new(
        joint: &JointGraph,
        roles: &Roles,
        chain: &Chain,
        table: &ParameterTable,
        layout: &Layout,
    ) -> Result<Self, PlanError> {
        let placement = Placement::new(joint, roles, chain, table, layout)?;
        let stages = layout.stages();
        let mut cutting = Self {
            forward: vec![Parts::default(); stages],
            backward: vec![Parts::default(); stages],
            edges: BTreeMap::new(),
            holders: Vec::new(),
            paths: table.iter().map(|p| p.path.clone()).collect(),
            owners: (0..table.len()).map(|index| layout.owner(index)).collect(),
            last_stage: stages - 1,
        };
        cutting.assign(joint, roles, &placement);
        cutting.connect(joint, roles, &placement);
        cutting.holders = cutting.find_holders(joint, table);
        Ok(cutting)
    }

    /// Refuses a program that reads a parameter on a stage to which the plan does not give it.
    pub(crate) fn check_held(&self, layout: &Layout) -> Result<(), PlanError> {
        for stage in (0..layout.stages()).map(StageIndex::new) {
            let held: BTreeSet<&ParameterPath> = layout.replicas(stage).iter().collect();
            let missing = self.replicas(stage).into_iter().find(|p| !held.contains(p));
            if let Some(path) = missing {
                return Err(PlanError::NotHeld { path, stage });
            }
        }
        Ok(())
    }

    /// Values that one program sends to another, in the order of their ids.
    pub(crate) fn edges(&self) -> &BTreeMap<Edge, BTreeSet<ValueId>> {
        &self.edges
    }

    /// Parameters that a stage reads and does not own.
    pub(crate) fn replicas(&self, stage: StageIndex) -> Vec<ParameterPath> {
        (0..self.paths.len())
            .filter(|index| {
                self.owners[*index] != stage && self.holders[*index].contains(&stage.index())
            })
            .map(|index| self.paths[index].clone())
            .collect()
    }

    /// Puts each assigned operation, with what is recomputed for it, into its program.
    fn assign(&mut self, joint: &JointGraph, roles: &Roles, placement: &Placement) {
        let graph = joint.graph();
        for id in graph.node_ids() {
            let Some(stage) = placement.stage(id) else {
                continue;
            };
            let parts = match roles.of_node(id) {
                Role::Assigned => &mut self.forward[stage],
                _ => &mut self.backward[stage],
            };
            parts.nodes.insert(id);
        }
        let named = joint.outputs().iter().map(|(_, value)| *value);
        for value in named.chain(joint.loss()) {
            // What depends on no parameter is made where the forward ends.
            let maker = maker(joint, roles, placement, value);
            let stage = maker.map_or(self.last_stage, |maker| maker.stage.index());
            self.forward[stage].targets.insert(value);
        }
        for (index, gradient) in joint.gradients().iter().enumerate() {
            if let Some(value) = gradient {
                self.backward[self.owners[index].index()]
                    .targets
                    .insert(*value);
            }
        }
        for parts in self.forward.iter_mut().chain(&mut self.backward) {
            parts.close(joint, roles);
        }
    }

    /// Finds what crosses between programs.
    fn connect(&mut self, joint: &JointGraph, roles: &Roles, placement: &Placement) {
        for index in 0..self.forward.len() {
            let stage = StageIndex::new(index);
            let readers = [
                (Endpoint::forward(stage), &self.forward[index].reads),
                (Endpoint::backward(stage), &self.backward[index].reads),
            ];
            for (to, reads) in readers {
                for value in reads {
                    let Some(from) = maker(joint, roles, placement, *value) else {
                        continue;
                    };
                    let is_kept = to.compute == Compute::Backward
                        && from.compute == Compute::Forward
                        && (from.stage == stage || self.forward[index].reads.contains(value));
                    if !is_kept {
                        debug_assert!(
                            from.compute == Compute::Forward || from.stage > stage,
                            "a gradient flows from a higher stage to a lower one"
                        );
                        let values = self.edges.entry(Edge { from, to }).or_default();
                        values.insert(*value);
                    }
                }
            }
        }
    }

    fn find_holders(&self, joint: &JointGraph, table: &ParameterTable) -> Vec<BTreeSet<usize>> {
        let of = |(index, parameter): (usize, &tinderbox_deferred::Parameter)| {
            if parameter.clone_of.is_some() {
                return BTreeSet::new();
            }
            let value = joint.parameters()[index];
            let stages = 0..self.forward.len();
            let reads = |stage: &usize| {
                self.forward[*stage].reads.contains(&value)
                    || self.backward[*stage].reads.contains(&value)
                    || self.owners[index].index() == *stage
            };
            stages.filter(reads).collect()
        };
        table.iter().enumerate().map(of).collect()
    }
}

/// The program that makes a value; `None` for parameters, inputs and what every program makes for itself.
fn maker(
    joint: &JointGraph,
    roles: &Roles,
    placement: &Placement,
    value: ValueId,
) -> Option<Endpoint> {
    let producer = joint.graph().value(value).producer?;
    let stage = StageIndex::new(placement.stage(producer)?);
    match roles.of_node(producer) {
        Role::Assigned => Some(Endpoint::forward(stage)),
        Role::Gradient => Some(Endpoint::backward(stage)),
        _ => None,
    }
}
