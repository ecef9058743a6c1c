//! Gives every operation that depends on parameters or gradients its stage.

use std::collections::{BTreeMap, BTreeSet};

use tinderbox_deferred::ParameterTable;
use tinderbox_fake::{NodeId, ValueId};

use super::Layout;
use super::align::align;
use crate::PlanError;
use crate::partition::Chain;
use crate::schedule::StageIndex;
use crate::trace::{JointGraph, Role, Roles};

/// The stage of each placed forward operation and of each gradient operation.
pub(super) struct Placement {
    stage: Vec<Option<usize>>,
}

impl Placement {
    pub(super) fn new(
        joint: &JointGraph,
        roles: &Roles,
        chain: &Chain,
        table: &ParameterTable,
        layout: &Layout,
    ) -> Result<Self, PlanError> {
        let of_nodes = |positions: Vec<usize>| {
            let mut stage = vec![None; joint.graph().nodes().len()];
            for (id, k) in chain.nodes().iter().zip(positions) {
                stage[id.index()] = Some(k);
            }
            stage
        };
        let check = |stages: Vec<usize>| {
            check_reads(joint, chain, table, layout, &stages)?;
            let stage = of_nodes(stages);
            check_order(joint, chain, &stage)?;
            Ok(stage)
        };
        let by_owner = || stages_by_owner(chain, table, layout).and_then(&check);
        let stage = match layout.operations() {
            Some(known) if known.structure == chain.structure() => check(known.stages.clone())?,
            // Burn's operations depend on the mode, and some on the batch.
            Some(known) => check(align(known, joint, chain, layout)).or_else(|_| by_owner())?,
            None => by_owner()?,
        };
        let owners: Vec<usize> = (0..table.len())
            .map(|index| layout.owner(index).index())
            .collect();
        let stage = place_gradients(joint, roles, &owners, layout.stages(), stage)?;
        Ok(Self { stage })
    }

    /// The stage of a node; `None` for one that is made wherever it is read, or not at all.
    pub(super) fn stage(&self, node: NodeId) -> Option<usize> {
        self.stage[node.index()]
    }
}

/// Refuses a forward whose values go from a stage to a lower one.
fn check_order(
    joint: &JointGraph,
    chain: &Chain,
    stage: &[Option<usize>],
) -> Result<(), PlanError> {
    let graph = joint.graph();
    for id in chain.nodes() {
        let here = stage[id.index()];
        for input in graph.node(*id).inputs() {
            let producer = graph.value(*input).producer;
            let made = producer.and_then(|node| stage[node.index()]);
            if let (Some(made), Some(here)) = (made, here)
                && made > here
            {
                let stage = StageIndex::new(made);
                return Err(PlanError::OutOfOrder { stage });
            }
        }
    }
    Ok(())
}

/// Refuses a forward that reads a parameter on a stage that does not hold it.
fn check_reads(
    joint: &JointGraph,
    chain: &Chain,
    table: &ParameterTable,
    layout: &Layout,
    stages: &[usize],
) -> Result<(), PlanError> {
    let mut index_of: BTreeMap<ValueId, usize> = BTreeMap::new();
    for (index, value) in joint.parameters().iter().enumerate().take(table.len()) {
        index_of.entry(*value).or_insert(index);
    }
    for (id, stage) in chain.nodes().iter().zip(stages) {
        let inputs = joint.graph().node(*id).inputs().iter();
        let mut read = inputs.filter_map(|value| index_of.get(value).copied());
        let missing = read.find(|index| !layout.holds(*stage, *index));
        if let Some(parameter) = missing.and_then(|index| table.iter().nth(index)) {
            return Err(PlanError::NotHeld {
                path: parameter.path.clone(),
                stage: StageIndex::new(*stage),
            });
        }
    }
    Ok(())
}

/// Gives every gradient operation its stage, for forward operations that have theirs.
///
/// `owners` are the stages of the parameters of the table.
pub(crate) fn place_gradients(
    joint: &JointGraph,
    roles: &Roles,
    owners: &[usize],
    stages: usize,
    forward: Vec<Option<usize>>,
) -> Result<Vec<Option<usize>>, PlanError> {
    let mut gradients = Gradients::new(joint, roles, owners, stages, forward);
    gradients.place()?;
    gradients.sink();
    Ok(gradients.stage)
}

/// A run of parameters that are read one after another and have one owner.
struct Run {
    stage: usize,
    /// First reads of its first and its last parameter.
    first: usize,
    last: usize,
}

/// The stage of each position, from the owners of the parameters that are read: a stage's operations
/// begin between the last first read of the run of parameters before its own and the first read of its
/// own, where the fewest bytes cross.
fn stages_by_owner(
    chain: &Chain,
    table: &ParameterTable,
    layout: &Layout,
) -> Result<Vec<usize>, PlanError> {
    let mut reads: Vec<(usize, usize, usize)> = table
        .iter()
        .enumerate()
        .filter_map(|(index, parameter)| {
            let (first, last) = chain.reads(&parameter.path)?;
            Some((first, last, index))
        })
        .collect();
    reads.sort_unstable();
    let mut runs: Vec<Run> = Vec::new();
    for (first, _, index) in &reads {
        let stage = layout.owner(*index).index();
        match runs.last_mut() {
            Some(run) if run.stage == stage => run.last = *first,
            // What is read by one operation can't be told apart.
            Some(run) if run.last == *first => {
                return Err(PlanError::OutOfOrder {
                    stage: StageIndex::new(stage.max(run.stage)),
                });
            }
            _ => runs.push(Run {
                stage,
                first: *first,
                last: *first,
            }),
        }
    }
    let mut stages = vec![runs.first().map_or(0, |run| run.stage); chain.nodes().len()];
    let mut since = 0;
    for (number, pair) in runs.windows(2).enumerate() {
        let (before, from) = (pair[0].last, pair[1].first);
        // What no stage from here on holds is read for the last time before, where that is possible.
        let later = || runs[number + 1..].iter().map(|run| run.stage);
        let kept = reads.iter().filter(|(first, last, index)| {
            *first < from && *last < from && !later().any(|stage| layout.holds(stage, *index))
        });
        let before = kept.map(|read| read.1).fold(before, usize::max);
        let start = chain.cheapest_since(since, before, from).max(since);
        stages[start..].fill(pair[1].stage);
        since = start;
    }
    Ok(stages)
}

struct Gradients<'a> {
    joint: &'a JointGraph,
    roles: &'a Roles,
    stages: usize,
    stage: Vec<Option<usize>>,
    /// Stages at which each placed forward value or parameter is available after the forward.
    at_hand: BTreeMap<ValueId, BTreeSet<usize>>,
    /// Forward values and parameters that each local operation depends on.
    behind: BTreeMap<NodeId, BTreeSet<ValueId>>,
    is_parameter: BTreeSet<ValueId>,
    /// Owners of the parameters that a value is the gradient of.
    owners: BTreeMap<ValueId, Vec<usize>>,
    /// Gradient operations that read no forward value.
    free: BTreeSet<NodeId>,
}

impl<'a> Gradients<'a> {
    fn new(
        joint: &'a JointGraph,
        roles: &'a Roles,
        parameter_owners: &[usize],
        stages: usize,
        stage: Vec<Option<usize>>,
    ) -> Self {
        let graph = joint.graph();
        let mut at_hand: BTreeMap<ValueId, BTreeSet<usize>> = BTreeMap::new();
        let mut owners: BTreeMap<ValueId, Vec<usize>> = BTreeMap::new();
        for (index, owner) in parameter_owners.iter().copied().enumerate() {
            at_hand
                .entry(joint.parameters()[index])
                .or_default()
                .insert(owner);
            if let Some(gradient) = joint.gradients()[index] {
                owners.entry(gradient).or_default().push(owner);
            }
        }
        let is_parameter: BTreeSet<ValueId> = joint.parameters().iter().copied().collect();
        for id in roles.nodes(joint, Role::Placed) {
            let here = stage[id.index()].expect("every placed operation has a stage");
            for output in graph.node(id).outputs() {
                at_hand.entry(*output).or_default().insert(here);
            }
            for input in graph.node(id).inputs() {
                if let Some(stages) = at_hand.get_mut(input) {
                    stages.insert(here);
                }
            }
        }
        Self {
            joint,
            roles,
            stages,
            stage,
            at_hand,
            behind: BTreeMap::new(),
            is_parameter,
            owners,
            free: BTreeSet::new(),
        }
    }

    /// Forward values and parameters that a node reads, through operations that are made again.
    fn forward_reads(&self, id: NodeId) -> BTreeSet<ValueId> {
        let graph = self.joint.graph();
        let mut found = BTreeSet::new();
        for input in graph.node(id).inputs() {
            if self.at_hand.contains_key(input) {
                found.insert(*input);
            } else if let Some(producer) = graph.value(*input).producer
                && let Some(behind) = self.behind.get(&producer)
            {
                found.extend(behind);
            }
        }
        found
    }

    /// Gradient values that a node reads.
    fn gradient_reads(&self, id: NodeId) -> impl Iterator<Item = (ValueId, usize)> + '_ {
        let graph = self.joint.graph();
        let inputs = graph.node(id).inputs().iter();
        inputs.filter_map(|input| {
            let producer = graph.value(*input).producer?;
            let gradient = self.roles.of_node(producer) == Role::Gradient;
            Some((*input, self.stage[producer.index()].filter(|_| gradient)?))
        })
    }

    fn place(&mut self) -> Result<(), PlanError> {
        let graph = self.joint.graph();
        for id in graph.node_ids() {
            match self.roles.of_node(id) {
                Role::Local => {
                    let reads = self.forward_reads(id);
                    self.behind.insert(id, reads);
                }
                Role::Gradient => {
                    let reads = self.forward_reads(id);
                    let highest = self.gradient_reads(id).map(|read| read.1).min();
                    let highest = highest.unwrap_or(self.stages - 1);
                    if reads.is_empty() {
                        self.free.insert(id);
                    }
                    let stage =
                        self.choose(id, &reads, highest)
                            .ok_or_else(|| PlanError::Unplaceable {
                                operation: graph.node(id).name(),
                            })?;
                    self.stage[id.index()] = Some(stage);
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
        let here = |value: &ValueId, stage: usize| self.at_hand[value].contains(&stage);
        let all_at_hand = |stage: &usize| reads.iter().all(|value| here(value, *stage));
        let outputs = graph.node(id).outputs();
        let is_gradient = |user: &NodeId| self.roles.of_node(*user) == Role::Gradient;
        let mut users = outputs.iter().flat_map(|out| graph.users(*out));
        let ends_here = !users.any(is_gradient);
        let owners = outputs.iter().filter_map(|out| self.owners.get(out));
        let owner = owners.flatten().copied().max();
        // Stages that have the value that fewest have; all others lack it.
        let fewest = reads.iter().map(|value| &self.at_hand[value]);
        let fewest = fewest.min_by_key(|stages| stages.len());
        let highest_with_all = || match fewest {
            Some(stages) => stages.range(..=highest).rev().copied().find(all_at_hand),
            None => Some(highest),
        };
        owner
            .filter(|owner| ends_here && *owner <= highest && all_at_hand(owner))
            .or_else(highest_with_all)
            .or_else(|| {
                let missing = |stage: &usize| -> u64 {
                    let away = reads.iter().filter(|value| !here(value, *stage));
                    away.map(|value| graph.value(*value).bytes()).sum()
                };
                // Values can be sent; a parameter can't be read where no forward reads it.
                let has_parameters = |stage: &usize| {
                    let parameters = reads.iter().filter(|v| self.is_parameter.contains(v));
                    parameters.into_iter().all(|value| here(value, *stage))
                };
                // Where nothing is available, all is missing: the highest represents those.
                let mut stages: BTreeSet<usize> = BTreeSet::from([highest]);
                let have = reads.iter().flat_map(|value| &self.at_hand[value]);
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
            let node = graph.node(id);
            let users = node.outputs().iter().flat_map(|out| graph.users(*out));
            let user_stages = users.filter_map(|user| self.stage[user.index()]);
            let owners = node
                .outputs()
                .iter()
                .filter_map(|out| self.owners.get(out))
                .flatten();
            let Some(low) = user_stages.chain(owners.copied()).max() else {
                continue;
            };
            if low >= here {
                continue;
            }
            let read_below = |value: ValueId| {
                let mut users = graph.users(value).iter().filter(|user| **user != id);
                users.any(|user| self.stage[user.index()].is_some_and(|stage| stage <= low))
            };
            let reads: BTreeMap<ValueId, usize> = self.gradient_reads(id).collect();
            let crossing: u64 = reads
                .keys()
                .filter(|value| !read_below(**value))
                .map(|value| graph.value(*value).bytes())
                .sum();
            let saved: u64 = node
                .outputs()
                .iter()
                .map(|out| graph.value(*out).bytes())
                .sum();
            if crossing <= saved {
                self.stage[id.index()] = Some(low);
            }
        }
    }
}
