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

use tinderbox_fake::ValueId;

pub(crate) use layout::Layout;
pub(crate) use phase::{Binding, Phase};
pub(crate) use place::place_gradients;
pub(crate) use programs::{StagePrograms, step_bytes};

use crate::PlanError;
use crate::schedule::{Compute, Edge, Endpoint, StageIndex};
use crate::trace::{Given, JointGraph, Role};
use parts::Parts;

/// A joint graph divided among stages.
#[derive(Clone, Debug)]
pub(crate) struct Cutting {
    forward: Vec<Parts>,
    backward: Vec<Parts>,
    /// Values that one program sends to another, in the order of their ids.
    edges: BTreeMap<Edge, BTreeSet<ValueId>>,
}

impl Cutting {
    /// Divides a joint graph. Cost: linear in the graph, times the number of stages.
    pub(crate) fn new(joint: &JointGraph, layout: &Layout) -> Result<Self, PlanError> {
        let stage_of = place::place(joint, layout)?;
        let stages = layout.stages().count();
        let mut cutting = Self {
            forward: vec![Parts::default(); stages],
            backward: vec![Parts::default(); stages],
            edges: BTreeMap::new(),
        };
        cutting.assign(joint, layout, &stage_of)?;
        cutting.connect(joint, &stage_of);
        Ok(cutting)
    }

    /// Refuses a program that reads a parameter on a stage to which the plan does not give it.
    pub(crate) fn check_held(&self, joint: &JointGraph, layout: &Layout) -> Result<(), PlanError> {
        for (stage, read) in layout.stages().zip(self.copies(joint, layout)) {
            if let Some(missing) = read.into_iter().find(|at| !layout.holds(stage, *at)) {
                let path = joint.parameter(missing).path.clone();
                return Err(PlanError::NotHeld { path, stage });
            }
        }
        Ok(())
    }

    /// The parameters that each stage reads and does not own.
    pub(crate) fn copies(&self, joint: &JointGraph, layout: &Layout) -> Vec<Vec<usize>> {
        let copies = layout.stages().map(|stage| {
            let programs = [&self.forward, &self.backward].into_iter();
            let read = programs.flat_map(|parts| &parts[stage.index()].reads);
            let parameters = read.filter_map(|value| joint.parameter_of(*value));
            let others = parameters.filter(|position| layout.owners()[*position] != stage);
            others.collect::<BTreeSet<_>>().into_iter().collect()
        });
        copies.collect()
    }

    /// The messages along some edges.
    fn messages(&self, keep: impl Fn(&Edge) -> bool) -> BTreeMap<Edge, Vec<ValueId>> {
        let edges = self.edges.iter().filter(|(edge, _)| keep(edge));
        let messages = edges.map(|(edge, values)| (*edge, values.iter().copied().collect()));
        messages.collect()
    }

    /// The carried tensors that one stage has, by their names.
    pub(crate) fn carried(&self, joint: &JointGraph) -> BTreeMap<String, StageIndex> {
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

    /// Puts each assigned operation, with what is recomputed for it, into its program.
    fn assign(
        &mut self,
        joint: &JointGraph,
        layout: &Layout,
        stage_of: &[Option<usize>],
    ) -> Result<(), PlanError> {
        let graph = joint.graph();
        for id in graph.node_ids() {
            let Some(stage) = stage_of[id.index()] else {
                continue;
            };
            let parts = match joint.role(id) {
                Role::Assigned => &mut self.forward[stage],
                _ => &mut self.backward[stage],
            };
            parts.nodes.insert(id);
        }
        let named = joint.outputs().iter().map(|(_, value)| *value);
        for value in named.chain(joint.loss()) {
            // What depends on no parameter is made where the forward ends.
            let stage = match (maker(joint, stage_of, value), joint.given(value)) {
                (Some(maker), _) => maker.stage.index(),
                (None, Some(Given::Parameter(position))) => layout.owners()[position].index(),
                (None, _) => self.forward.len() - 1,
            };
            self.forward[stage].targets.insert(value);
        }
        for (gradient, owner) in joint.gradients().iter().zip(layout.owners()) {
            let targets = &mut self.backward[owner.index()].targets;
            targets.extend(gradient);
        }
        for (state, update) in joint.updates() {
            let owner = layout.owners()[*state];
            match maker(joint, stage_of, *update) {
                Some(maker) if maker.stage != owner => {
                    return Err(state_apart(joint, *state, owner, maker.stage));
                }
                _ => self.forward[owner.index()].updates.insert(*update),
            };
        }
        for (input, value) in joint.carried() {
            if let Some(stage) = keeper(joint, layout, stage_of, *value) {
                self.forward[stage.index()].carried.insert(*input);
            }
        }
        for parts in self.forward.iter_mut().chain(&mut self.backward) {
            parts.close(joint);
        }
        self.keep_states(joint, layout)?;
        self.keep_carried(joint, layout, stage_of)
    }

    /// Makes each stage that reads a carried tensor compute its new value too, so that the value stays there: refuses
    /// a tensor whose new value another stage computes. Every stage has a value that depends on no parameter if no stage
    /// reads the old one.
    fn keep_carried(
        &mut self,
        joint: &JointGraph,
        layout: &Layout,
        stage_of: &[Option<usize>],
    ) -> Result<(), PlanError> {
        let mut is_complete = false;
        // The new value of one tensor may be computed from another.
        while !std::mem::replace(&mut is_complete, true) {
            for (input, value) in joint.carried() {
                let keeper = keeper(joint, layout, stage_of, *value);
                let input_value = joint.inputs()[*input].value;
                let is_read = self.forward.iter().any(|p| p.reads.contains(&input_value));
                for (stage, parts) in layout.stages().zip(&mut self.forward) {
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

    /// Makes forwards keep for their backwards the running states that they read, since the forwards of other
    /// micro-batches may update them in between: refuses a state that the forward updates and another stage than its
    /// owner reads.
    fn keep_states(&mut self, joint: &JointGraph, layout: &Layout) -> Result<(), PlanError> {
        for state in joint.running() {
            let (owner, value) = (layout.owners()[*state], joint.parameters()[*state]);
            for stage in layout.stages() {
                let [forward, backward] = [&self.forward, &self.backward]
                    .map(|parts| parts[stage.index()].reads.contains(&value));
                let is_updated = joint.updates().contains_key(state);
                if is_updated && (forward || backward) && stage != owner {
                    return Err(state_apart(joint, *state, owner, stage));
                }
                if backward {
                    self.forward[stage.index()].reads.insert(value);
                }
            }
        }
        Ok(())
    }

    /// Finds what crosses between programs.
    fn connect(&mut self, joint: &JointGraph, stage_of: &[Option<usize>]) {
        for index in 0..self.forward.len() {
            let stage = StageIndex::new(index);
            let readers = [
                (Endpoint::forward(stage), &self.forward[index].reads),
                (Endpoint::backward(stage), &self.backward[index].reads),
            ];
            for (to, reads) in readers {
                for value in reads {
                    let Some(from) = maker(joint, stage_of, *value) else {
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
}

fn state_apart(
    joint: &JointGraph,
    state: usize,
    owner: StageIndex,
    stage: StageIndex,
) -> PlanError {
    let path = joint.parameter(state).path.clone();
    PlanError::StateApart { path, owner, stage }
}

/// The one stage that has the new value of a carried tensor; `None` if every stage can compute it.
fn keeper(
    joint: &JointGraph,
    layout: &Layout,
    stage_of: &[Option<usize>],
    value: ValueId,
) -> Option<StageIndex> {
    match joint.given(value) {
        Some(Given::Parameter(position)) => Some(layout.owners()[position]),
        Some(_) => None,
        None => maker(joint, stage_of, value).map(|maker| maker.stage),
    }
}

/// The program that makes a value; `None` for parameters, inputs and what every program makes for itself.
fn maker(joint: &JointGraph, stage_of: &[Option<usize>], value: ValueId) -> Option<Endpoint> {
    let producer = joint.graph().producer(value)?;
    let stage = StageIndex::new(stage_of[producer.index()]?);
    match joint.role(producer) {
        Role::Assigned => Some(Endpoint::forward(stage)),
        Role::Gradient => Some(Endpoint::backward(stage)),
        _ => None,
    }
}
