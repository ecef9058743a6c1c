//! Finds the stage of every operation that depends on parameters or gradients.

use std::collections::{BTreeMap, BTreeSet};

use tinderbox_fake::{NodeId, ValueId};

use super::Layout;
use crate::PlanError;
use crate::schedule::StageIndex;
use crate::trace::{JointGraph, Role};

/// The stage of each assigned forward operation and of each gradient operation; `None` for operations that every reader
/// runs, and for operations that are not used.
pub(super) fn place(joint: &JointGraph, layout: &Layout) -> Result<Vec<Option<usize>>, PlanError> {
    let stages = match layout.planned(joint.forward()) {
        Some(stages) => stages.to_vec(),
        // Burn's operations depend on the mode, and some on the batch.
        None => by_flow(joint, layout),
    };
    check_order(joint, &stages)?;
    let mut stage = vec![None; joint.graph().nodes().len()];
    for (id, of) in joint.forward().nodes().iter().zip(stages) {
        stage[id.index()] = Some(of);
    }
    let owners: Vec<usize> = layout.owners.iter().map(|owner| owner.index()).collect();
    place_gradients(joint, &owners, layout.stages().count(), stage)
}

/// Refuses a forward whose values go from a stage to a lower one; `stages` are the stages of its operations.
fn check_order(joint: &JointGraph, stages: &[usize]) -> Result<(), PlanError> {
    for (id, here) in joint.forward().nodes().iter().zip(stages) {
        let inputs = joint.graph().node(*id).inputs().iter();
        let mut producers = inputs.filter_map(|input| joint.position_of(*input));
        if let Some(producer) = producers.find(|producer| stages[*producer] > *here) {
            let stage = StageIndex::new(stages[producer]);
            return Err(PlanError::OutOfOrder { stage });
        }
    }
    Ok(())
}

/// Adds the stages of gradient operations to the stages of forward operations.
///
/// `owners` are the stages of the parameters of the table.
pub fn place_gradients(
    joint: &JointGraph,
    owners: &[usize],
    stages: usize,
    forward: Vec<Option<usize>>,
) -> Result<Vec<Option<usize>>, PlanError> {
    let mut gradients = Gradients {
        joint,
        stages,
        stage: forward,
        available: BTreeMap::new(),
        local_reads: BTreeMap::new(),
        owners: BTreeMap::new(),
        free: BTreeSet::new(),
    };
    gradients.add_forward(owners);
    gradients.place()?;
    gradients.sink();
    Ok(gradients.stage)
}

/// The stage of each position of a forward that was not planned: the lowest stage that is not below the stages
/// of its inputs and holds the parameters that it reads. An operation that depends on parameters alone, such as a transposed
/// weight, runs on the stage of its reader, if that stage holds its parameters.
///
/// No operation runs above its planned stage: this holds for the operations of its inputs, and the planned stage holds its
/// parameters. An operation that reads or replaces a carried tensor runs on the stage that the tensor has in the planned
/// forward, if that stage holds its parameters.
fn by_flow(joint: &JointGraph, layout: &Layout) -> Vec<usize> {
    let (graph, forward) = (joint.graph(), joint.forward());
    let holds = |id: NodeId, stage: &usize| {
        let read = graph.node(id).inputs().iter();
        let mut parameters = read.filter_map(|value| joint.parameter_of(*value));
        parameters.all(|position| layout.holds(StageIndex::new(*stage), position))
    };
    let mut carriers = vec![None; forward.nodes().len()];
    for (input, touching) in joint.touching_carried() {
        let stage = layout.carried.get(&joint.inputs()[input].leaf.name);
        for position in touching {
            carriers[position] = carriers[position].max(stage.map(|stage| stage.index()));
        }
    }
    let mut stages: Vec<usize> = Vec::with_capacity(forward.nodes().len());
    let mut reads_batch: Vec<bool> = Vec::with_capacity(forward.nodes().len());
    for (id, carrier) in forward.nodes().iter().zip(&carriers) {
        let carrier = carrier.filter(|stage| holds(*id, stage));
        let (mut least, mut of_batch) = (carrier.unwrap_or(0), false);
        let inputs = graph.node(*id).inputs().iter();
        for (input, producer) in inputs.filter_map(|input| Some((input, graph.producer(*input)?))) {
            match forward.position(producer) {
                Some(made) => {
                    least = least.max(stages[made]);
                    of_batch |= reads_batch[made];
                }
                None => {
                    of_batch |= joint.input_of(*input).is_some()
                        || joint.role(producer) == Role::Recomputable;
                }
            }
        }
        let stage = (least..layout.stages().count()).find(|stage| holds(*id, stage));
        stages.push(stage.unwrap_or(least));
        reads_batch.push(of_batch);
    }
    for (at, id) in forward.nodes().iter().enumerate().rev() {
        let readers = graph.readers(*id).filter_map(|user| forward.position(user));
        let lowest = readers.map(|reader| stages[reader]).min();
        if let (Some(lowest), false) = (lowest, reads_batch[at]) {
            let highest = (0..=lowest).rev().find(|stage| holds(*id, stage));
            stages[at] = highest.unwrap_or(stages[at]);
        }
    }
    stages
}

struct Gradients<'a> {
    joint: &'a JointGraph,
    stages: usize,
    stage: Vec<Option<usize>>,
    /// Stages at which each assigned forward value or parameter is available after the forward.
    available: BTreeMap<ValueId, BTreeSet<usize>>,
    /// Forward values and parameters that each local operation depends on.
    local_reads: BTreeMap<NodeId, BTreeSet<ValueId>>,
    /// Owners of the parameters that a value is the gradient of.
    owners: BTreeMap<ValueId, Vec<usize>>,
    /// Gradient operations that read no forward value.
    free: BTreeSet<NodeId>,
}

impl Gradients<'_> {
    /// Adds the stages at which forward values and parameters are available.
    fn add_forward(&mut self, owners: &[usize]) {
        let (joint, graph) = (self.joint, self.joint.graph());
        for (index, owner) in owners.iter().copied().enumerate() {
            let stages = self.available.entry(joint.parameters()[index]);
            stages.or_default().insert(owner);
            if let Some(gradient) = joint.gradients()[index] {
                self.owners.entry(gradient).or_default().push(owner);
            }
        }
        for id in joint.forward().nodes() {
            let here = self.stage[id.index()].expect("every assigned operation has a stage");
            for output in graph.node(*id).outputs() {
                self.available.entry(*output).or_default().insert(here);
            }
            for input in graph.node(*id).inputs() {
                if let Some(stages) = self.available.get_mut(input) {
                    stages.insert(here);
                }
            }
        }
    }

    /// Forward values and parameters that a node reads, through recomputed operations.
    fn forward_reads(&self, id: NodeId) -> BTreeSet<ValueId> {
        let graph = self.joint.graph();
        let mut found = BTreeSet::new();
        for input in graph.node(id).inputs() {
            if self.available.contains_key(input) {
                found.insert(*input);
            } else if let Some(producer) = graph.producer(*input)
                && let Some(reads) = self.local_reads.get(&producer)
            {
                found.extend(reads);
            }
        }
        found
    }

    /// Gradient values that a node reads.
    fn gradient_reads(&self, id: NodeId) -> impl Iterator<Item = (ValueId, usize)> + '_ {
        let graph = self.joint.graph();
        let inputs = graph.node(id).inputs().iter();
        inputs.filter_map(|input| {
            let producer = graph.producer(*input)?;
            let gradient = self.joint.role(producer) == Role::Gradient;
            Some((*input, self.stage[producer.index()].filter(|_| gradient)?))
        })
    }

    fn place(&mut self) -> Result<(), PlanError> {
        let graph = self.joint.graph();
        for id in graph.node_ids() {
            match self.joint.role(id) {
                Role::BackwardLocal => {
                    let reads = self.forward_reads(id);
                    self.local_reads.insert(id, reads);
                }
                Role::Gradient => {
                    let reads = self.forward_reads(id);
                    let highest = self.gradient_reads(id).map(|read| read.1).min();
                    let highest = highest.unwrap_or(self.stages - 1);
                    if reads.is_empty() {
                        self.free.insert(id);
                    }
                    let stage = self.choose(id, &reads, highest);
                    self.stage[id.index()] = Some(stage.ok_or_else(|| {
                        let operation = graph.node(id).name();
                        PlanError::Unplaceable { operation }
                    })?);
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Chooses the stage of a gradient operation: the owner of its parameter, if everything is available there and no other
    /// operation waits for it; else the highest stage at which everything is available; else the stage that lacks the fewest
    /// bytes.
    ///
    /// A value may be the gradient of several parameters and of an activation at once, because an addition without
    /// broadcasting has the same gradient for both operands. If the lowest of their stages computed it, the others would wait
    /// for a stage below them.
    fn choose(&self, id: NodeId, reads: &BTreeSet<ValueId>, highest: usize) -> Option<usize> {
        let graph = self.joint.graph();
        let here = |value: &ValueId, stage: usize| self.available[value].contains(&stage);
        let all_available = |stage: &usize| reads.iter().all(|value| here(value, *stage));
        let outputs = graph.node(id).outputs();
        let mut users = graph.readers(id);
        let ends_here = !users.any(|user| self.joint.role(user) == Role::Gradient);
        let owners = outputs.iter().filter_map(|out| self.owners.get(out));
        let owner = owners.flatten().copied().max();
        // Only the stages of the value that the fewest stages have can have all values.
        let fewest = reads.iter().map(|value| &self.available[value]);
        let highest_with_all = || match fewest.min_by_key(|stages| stages.len()) {
            Some(stages) => stages.range(..=highest).rev().copied().find(all_available),
            None => Some(highest),
        };
        owner
            .filter(|owner| ends_here && *owner <= highest && all_available(owner))
            .or_else(highest_with_all)
            .or_else(|| {
                let missing = |stage: &usize| -> u64 {
                    graph.bytes(reads.iter().filter(|value| !here(value, *stage)))
                };
                // Values can be sent. A parameter can be read only on stages whose forward reads it.
                let has_parameters = |stage: &usize| {
                    let mut parameters = reads.iter().filter(|v| self.joint.given(**v).is_some());
                    parameters.all(|value| here(value, *stage))
                };
                // The highest stage represents all stages at which no value is available.
                let mut stages: BTreeSet<usize> = BTreeSet::from([highest]);
                let have = reads.iter().flat_map(|value| &self.available[value]);
                stages.extend(have.filter(|stage| **stage <= highest));
                let stages = stages.into_iter().rev();
                stages.filter(has_parameters).min_by_key(missing)
            })
    }

    /// Moves operations that read only gradients down to their users, if this sends no more bytes.
    fn sink(&mut self) {
        let graph = self.joint.graph();
        for id in self.free.iter().rev().copied().collect::<Vec<_>>() {
            let here = self.stage[id.index()].expect("every gradient operation was placed");
            let outputs = graph.node(id).outputs();
            let users = graph.readers(id);
            let user_stages = users.filter_map(|user| self.stage[user.index()]);
            let owners = outputs.iter().filter_map(|out| self.owners.get(out));
            let lowest = user_stages.chain(owners.flatten().copied()).max();
            let Some(low) = lowest.filter(|low| *low < here) else {
                continue;
            };
            let read_below = |value: ValueId| {
                let mut users = graph.users(value).iter().filter(|user| **user != id);
                users.any(|user| self.stage[user.index()].is_some_and(|stage| stage <= low))
            };
            let reads: BTreeMap<ValueId, usize> = self.gradient_reads(id).collect();
            let crossing = reads.keys().filter(|value| !read_below(**value));
            if graph.bytes(crossing) <= graph.bytes(outputs) {
                self.stage[id.index()] = Some(low);
            }
        }
    }
}
