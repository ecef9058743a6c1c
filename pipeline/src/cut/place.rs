//! Gives every operation that depends on parameters or gradients its stage.

use std::collections::{BTreeMap, BTreeSet};

use tinderbox_deferred::ParameterTable;
use tinderbox_fake::{NodeId, ValueId};

use super::Layout;
use crate::PlanError;
use crate::partition::Chain;
use crate::schedule::StageIndex;
use crate::trace::{JointGraph, Role, Roles};

/// The stage of each placed forward operation and of each gradient operation.
pub(super) struct Placement {
    stage: Vec<Option<usize>>,
    starts: Vec<usize>,
}

impl Placement {
    pub(super) fn new(
        joint: &JointGraph,
        roles: &Roles,
        chain: &Chain,
        table: &ParameterTable,
        layout: &Layout,
    ) -> Result<Self, PlanError> {
        let starts = stage_starts(chain, table, layout)?;
        let mut stage = vec![None; joint.graph().nodes().len()];
        for (position, id) in chain.nodes().iter().enumerate() {
            // The last stage that starts at or before the position; empty stages start where the
            // next one does.
            let k = starts.iter().rposition(|start| *start <= position);
            stage[id.index()] = Some(k.expect("stage 0 starts at 0"));
        }
        let mut gradients = Gradients::new(joint, roles, table, layout, stage);
        gradients.place()?;
        gradients.sink();
        Ok(Self {
            stage: gradients.stage,
            starts,
        })
    }

    /// The stage of a node; `None` for one that is made wherever it is read, or not at all.
    pub(super) fn stage(&self, node: NodeId) -> Option<usize> {
        self.stage[node.index()]
    }

    /// Forward FLOPs per stage.
    pub(super) fn forward_flops(&self, chain: &Chain) -> Vec<u64> {
        let ends = self
            .starts
            .iter()
            .skip(1)
            .copied()
            .chain([chain.nodes().len()]);
        let ranges = self.starts.iter().zip(ends);
        ranges
            .map(|(start, end)| chain.flops(*start..end))
            .collect()
    }
}

/// The position in the chain at which each stage begins: between the last first read of a parameter
/// of the stages before it and the first read of its own, where the fewest bytes cross.
fn stage_starts(
    chain: &Chain,
    table: &ParameterTable,
    layout: &Layout,
) -> Result<Vec<usize>, PlanError> {
    let reads: Vec<Read> = table
        .iter()
        .enumerate()
        .filter_map(|(index, parameter)| {
            let (first, last) = chain.reads(&parameter.path)?;
            Some(Read {
                owner: layout.owner(index).index(),
                last_holder: layout.last_holder(index),
                first,
                last,
            })
        })
        .collect();
    let mut starts = vec![0];
    for stage in 1..layout.stages() {
        let below = || reads.iter().filter(|read| read.owner < stage);
        let above = reads.iter().filter(|read| read.owner >= stage);
        let from = above.map(|read| read.first).min();
        let from = from.unwrap_or(chain.nodes().len());
        let before = below().map(|read| read.first).max();
        if before.is_some_and(|before| before >= from) {
            return Err(PlanError::OutOfOrder {
                stage: StageIndex::new(stage),
            });
        }
        // What no stage from here on holds is read for the last time before, where that is possible.
        let kept = below().filter(|read| read.last_holder < stage && read.last < from);
        let before = before.max(kept.map(|read| read.last).max());
        let since = *starts.last().expect("it starts with one");
        let start = chain.cheapest_since(since, before.unwrap_or(0), from);
        starts.push(start.max(since));
    }
    Ok(starts)
}

/// Where a parameter is read, and by which stages it may be.
struct Read {
    owner: usize,
    last_holder: usize,
    first: usize,
    last: usize,
}

struct Gradients<'a> {
    joint: &'a JointGraph,
    roles: &'a Roles,
    stages: usize,
    stage: Vec<Option<usize>>,
    /// Stages at which each placed forward value or parameter is at hand after the forward.
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
        table: &ParameterTable,
        layout: &Layout,
        stage: Vec<Option<usize>>,
    ) -> Self {
        let graph = joint.graph();
        let mut at_hand: BTreeMap<ValueId, BTreeSet<usize>> = BTreeMap::new();
        let mut owners: BTreeMap<ValueId, Vec<usize>> = BTreeMap::new();
        for index in 0..table.len() {
            let owner = layout.owner(index).index();
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
            stages: layout.stages(),
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

    /// The owner of the parameter whose gradient this is, if everything is at hand there and nothing
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
        owner
            .filter(|owner| ends_here && *owner <= highest && all_at_hand(owner))
            .or_else(|| (0..=highest).rev().find(all_at_hand))
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
                (0..=highest)
                    .rev()
                    .filter(has_parameters)
                    .min_by_key(missing)
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
