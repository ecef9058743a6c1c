//! Assigns operations and values to the programs of stages, and finds the values that are sent between programs.

use std::collections::BTreeMap;

use tinderbox_fake::ValueId;

use super::Layout;
use super::parts::Parts;
use super::place::place;
use crate::PlanError;
use crate::schedule::{Compute, Edge, Endpoint, StageIndex};
use crate::trace::{Given, JointGraph, Role};

/// The operations of the programs of each stage.
pub(super) struct Assignment<'a> {
    joint: &'a JointGraph,
    layout: &'a Layout,
    /// The stage of each operation; `None` for operations that every reader runs.
    stage_of: Vec<Option<usize>>,
    pub(super) forward: Vec<Parts>,
    pub(super) backward: Vec<Parts>,
}

impl<'a> Assignment<'a> {
    pub(super) fn new(joint: &'a JointGraph, layout: &'a Layout) -> Result<Self, PlanError> {
        let stages = layout.stages().count();
        let mut assigned = Self {
            joint,
            layout,
            stage_of: place(joint, layout)?,
            forward: vec![Parts::default(); stages],
            backward: vec![Parts::default(); stages],
        };
        assigned.assign()?;
        assigned.keep_states()?;
        assigned.keep_carried()?;
        Ok(assigned)
    }

    /// Adds each assigned operation, with the operations that are recomputed for it, to its program.
    fn assign(&mut self) -> Result<(), PlanError> {
        let (joint, layout) = (self.joint, self.layout);
        for (id, stage) in joint.graph().node_ids().zip(&self.stage_of) {
            let parts = match joint.role(id) {
                Role::Assigned => &mut self.forward,
                _ => &mut self.backward,
            };
            if let Some(stage) = stage {
                parts[*stage].nodes.insert(id);
            }
        }
        let named = joint.outputs().iter().map(|(_, value)| *value);
        for value in named.chain(joint.loss()) {
            // A value that depends on no parameter is computed on the last stage.
            let stage = match (self.producer(value), joint.given(value)) {
                (Some(producer), _) => producer.stage.index(),
                (None, Some(Given::Parameter(position))) => layout.owners[position].index(),
                (None, _) => self.forward.len() - 1,
            };
            self.forward[stage].targets.insert(value);
        }
        for (position, gradient) in joint.gradients().iter().enumerate() {
            let parts = &mut self.backward[layout.owners[position].index()];
            parts.targets.extend(gradient);
            if gradient.is_some() && joint.parameter(position).clone_of.is_none() {
                parts.gradients.insert(position);
            }
        }
        for (state, update) in joint.updates() {
            let owner = layout.owners[*state];
            match self.producer(*update) {
                Some(producer) if producer.stage != owner => {
                    return Err(self.state_apart(*state, owner, producer.stage));
                }
                _ => self.forward[owner.index()].updates.insert(*state),
            };
        }
        for (input, value) in joint.carried() {
            if let Some(stage) = self.keeper(*value) {
                self.forward[stage.index()].carried.insert(*input);
            }
        }
        for parts in self.forward.iter_mut().chain(&mut self.backward) {
            parts.close(joint);
        }
        Ok(())
    }

    /// Lets each stage that reads a carried tensor compute its new value too, so that the value stays there. Refuses a tensor
    /// whose new value another stage computes. If no stage reads the old value, and the new one depends on no parameter, every
    /// stage computes it.
    fn keep_carried(&mut self) -> Result<(), PlanError> {
        let joint = self.joint;
        let mut is_complete = false;
        // The new value of one tensor may be computed from another.
        while !std::mem::replace(&mut is_complete, true) {
            for (input, value) in joint.carried() {
                let keeper = self.keeper(*value);
                let input_value = joint.inputs()[*input].value;
                let is_read = self.forward.iter().any(|p| p.reads.contains(&input_value));
                for (stage, parts) in self.layout.stages().zip(&mut self.forward) {
                    let reads = parts.reads.contains(&input_value);
                    if let Some(owner) = keeper.filter(|owner| reads && *owner != stage) {
                        let name = joint.inputs()[*input].leaf.name.clone();
                        return Err(PlanError::CarriedApart { name, owner, stage });
                    }
                    let is_here = reads || !is_read;
                    if keeper.is_none() && is_here && parts.carried.insert(*input) {
                        parts.close(joint);
                        is_complete = false;
                    }
                }
            }
        }
        Ok(())
    }

    /// Lets forwards keep the running states that they read for their backwards, because the forwards of other
    /// micro-batches may update the states in between. Refuses a state that the forward updates and that another stage
    /// than its owner reads.
    fn keep_states(&mut self) -> Result<(), PlanError> {
        let (joint, layout) = (self.joint, self.layout);
        for state in joint.running() {
            let (owner, value) = (layout.owners[*state], joint.parameters()[*state]);
            for stage in layout.stages() {
                let [forward, backward] = [&self.forward, &self.backward]
                    .map(|parts| parts[stage.index()].reads.contains(&value));
                let is_updated = joint.updates().contains_key(state);
                if is_updated && (forward || backward) && stage != owner {
                    return Err(self.state_apart(*state, owner, stage));
                }
                if backward {
                    self.forward[stage.index()].reads.insert(value);
                }
            }
        }
        Ok(())
    }

    /// The values that are sent between programs.
    pub(super) fn edges(&self) -> BTreeMap<Edge, Vec<ValueId>> {
        let mut edges: BTreeMap<Edge, Vec<ValueId>> = BTreeMap::new();
        for index in 0..self.forward.len() {
            let stage = StageIndex::new(index);
            let readers = [
                (Endpoint::forward(stage), &self.forward[index].reads),
                (Endpoint::backward(stage), &self.backward[index].reads),
            ];
            for (to, reads) in readers {
                let reads = reads.iter();
                let made = reads.filter_map(|value| Some((value, self.producer(*value)?)));
                for (value, from) in made {
                    let is_kept = to.compute == Compute::Backward
                        && from.compute == Compute::Forward
                        && (from.stage == stage || self.forward[index].reads.contains(value));
                    if !is_kept {
                        debug_assert!(
                            from.compute == Compute::Forward || from.stage > stage,
                            "a gradient flows from a higher stage to a lower one"
                        );
                        edges.entry(Edge { from, to }).or_default().push(*value);
                    }
                }
            }
        }
        edges
    }

    fn state_apart(&self, state: usize, owner: StageIndex, stage: StageIndex) -> PlanError {
        let path = self.joint.parameter(state).path.clone();
        PlanError::StateApart { path, owner, stage }
    }

    /// The only stage that has the new value of a carried tensor; `None` if every stage can compute it.
    fn keeper(&self, value: ValueId) -> Option<StageIndex> {
        match self.joint.given(value) {
            Some(Given::Parameter(position)) => Some(self.layout.owners[position]),
            Some(_) => None,
            None => self.producer(value).map(|producer| producer.stage),
        }
    }

    /// The program that computes a value; `None` for parameters, inputs and values that every program computes for itself.
    fn producer(&self, value: ValueId) -> Option<Endpoint> {
        let node = self.joint.graph().producer(value)?;
        let stage = StageIndex::new(self.stage_of[node.index()]?);
        match self.joint.role(node) {
            Role::Assigned => Some(Endpoint::forward(stage)),
            Role::Gradient => Some(Endpoint::backward(stage)),
            _ => None,
        }
    }
}
