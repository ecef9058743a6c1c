//! Gives every operation that depends on parameters or gradients its stage.

use std::collections::{BTreeMap, BTreeSet};

use tinderbox_fake::{NodeId, ValueId};

use super::Layout;
use crate::PlanError;
use crate::schedule::StageIndex;
use crate::trace::{JointGraph, Role};

/// The stage of each assigned forward operation and of each gradient operation; `None` for one that is
/// made wherever it is read, or not at all.
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
        let mut makers = inputs.filter_map(|input| joint.position_of(*input));
        if let Some(maker) = makers.find(|maker| stages[*maker] > *here) {
            let stage = StageIndex::new(stages[maker]);
            return Err(PlanError::OutOfOrder { stage });
        }
    }
    Ok(())
}

/// Gives every gradient operation its stage, for forward operations that have theirs.
///
/// `owners` are the stages of the parameters of the table.
pub fn place_gradients(
    joint: &JointGraph,
    owners: &[usize],
    stages: usize,
    forward: Vec<Option<usize>>,
) -> Result<Vec<Option<usize>>, PlanError> {
    let mut gradients = Gradients::new(joint, owners, stages, forward);
    gradients.place()?;
    gradients.sink();
    Ok(gradients.stage)
}

/// The stage of each position of a forward that was not planned: the lowest one that is not below those
/// of its inputs and holds the parameters that it reads. What depends on parameters alone, as a transposed
/// weight, runs where it is read, if its parameters are held there.
///
/// No operation runs above the stage that a plan gives it: the operations of its inputs are not above theirs, and the
/// planned stage holds its parameters. What reads or replaces a carried tensor runs on the stage that the tensor has in
/// the planned forward, if its parameters are held there.
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
        for input in graph.node(*id).inputs() {
            let Some(producer) = graph.producer(*input) else {
                continue;
            };
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

impl<'a> Gradients<'a> {
    fn new(
        joint: &'a JointGraph,
        parameter_owners: &[usize],
        stages: usize,
        stage: Vec<Option<usize>>,
    ) -> Self {
        let graph = joint.graph();
        let mut available: BTreeMap<ValueId, BTreeSet<usize>> = BTreeMap::new();
        let mut owners: BTreeMap<ValueId, Vec<usize>> = BTreeMap::new();
        for (index, owner) in parameter_owners.iter().copied().enumerate() {
            let stages = available.entry(joint.parameters()[index]).or_default();
            stages.insert(owner);
            if let Some(gradient) = joint.gradients()[index] {
                owners.entry(gradient).or_default().push(owner);
            }
        }
        for id in joint.forward().nodes() {
            let here = stage[id.index()].expect("every assigned operation has a stage");
            for output in graph.node(*id).outputs() {
                available.entry(*output).or_default().insert(here);
            }
            for input in graph.node(*id).inputs() {
                if let Some(stages) = available.get_mut(input) {
                    stages.insert(here);
                }
            }
        }
        Self {
            joint,
            stages,
            stage,
            available,
            local_reads: BTreeMap::new(),
            owners,
            free: BTreeSet::new(),
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

    /// The owner of the parameter whose gradient this is, if everything is available there and nothing
    /// else waits for it; else the highest stage at which everything is; else the one where the fewest
    /// bytes are missing.
    ///
    /// A value may be the gradient of several parameters and of an activation at once: what adds
    /// without broadcasting hands the same gradient to both sides. Were it made at the lowest of
    /// their stages, the others would wait for a stage below them.
    fn choose(&self, id: NodeId, reads: &BTreeSet<ValueId>, highest: usize) -> Option<usize> {
        let graph = self.joint.graph();
        let here = |value: &ValueId, stage: usize| self.available[value].contains(&stage);
        let all_available = |stage: &usize| reads.iter().all(|value| here(value, *stage));
        let outputs = graph.node(id).outputs();
        let mut users = graph.readers(id);
        let ends_here = !users.any(|user| self.joint.role(user) == Role::Gradient);
        let owners = outputs.iter().filter_map(|out| self.owners.get(out));
        let owner = owners.flatten().copied().max();
        // Stages that have the value that fewest have; all others lack it.
        let fewest = reads.iter().map(|value| &self.available[value]);
        let fewest = fewest.min_by_key(|stages| stages.len());
        let highest_with_all = || match fewest {
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
                // Values can be sent; a parameter can't be read where no forward reads it.
                let has_parameters = |stage: &usize| {
                    let mut parameters = reads.iter().filter(|v| self.joint.given(**v).is_some());
                    parameters.all(|value| here(value, *stage))
                };
                // Where nothing is available, all is missing: the highest represents those.
                let mut stages: BTreeSet<usize> = BTreeSet::from([highest]);
                let have = reads.iter().flat_map(|value| &self.available[value]);
                stages.extend(have.filter(|stage| **stage <= highest));
                let stages = stages.into_iter().rev();
                stages.filter(has_parameters).min_by_key(missing)
            })
    }

    /// Moves operations on gradients alone down to their users, when no more bytes cross then.
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
