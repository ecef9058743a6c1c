//! A forward as a chain of operations, with what a cut between two of them costs.

use std::collections::BTreeMap;

use tinderbox_deferred::{ParameterPath, ParameterTable};
use tinderbox_fake::{NodeId, ValueId};
use twox_hash::XxHash3_128;

use crate::trace::{JointGraph, Role, Roles};

/// The assigned forward operations of a program in recorded order, and where each parameter is read.
#[derive(Clone, Debug)]
pub struct Chain {
    nodes: Vec<NodeId>,
    /// The position at which each parameter is read first.
    first_reads: BTreeMap<ParameterPath, usize>,
    crossing: Vec<u64>,
    /// What the operation at each position reads of assigned values.
    inputs: Vec<Vec<Input>>,
    /// The module of each position: that of the parameter which was read last.
    modules: Vec<String>,
    structure: String,
}

/// A value that an assigned operation reads.
#[derive(Clone, Copy, Debug)]
struct Input {
    /// Position of the operation that makes it.
    made: usize,
    /// Position of the operation that read it before, or else made it.
    touched: usize,
    bytes: u64,
}

impl Chain {
    /// Reads the chain off a program. Cost: linear in the graph.
    pub fn new(joint: &JointGraph, roles: &Roles, table: &ParameterTable) -> Self {
        let graph = joint.graph();
        let nodes: Vec<NodeId> = roles.nodes(joint, Role::Assigned).collect();
        let path_of: BTreeMap<ValueId, &ParameterPath> = table
            .iter()
            .zip(joint.parameters())
            .filter(|(parameter, _)| parameter.clone_of.is_none())
            .map(|(parameter, value)| (*value, &parameter.path))
            .collect();
        let mut position = vec![None; graph.nodes().len()];
        let mut first_reads: BTreeMap<ParameterPath, usize> = BTreeMap::new();
        // How the crossing bytes change from one cut position to the next.
        let mut change = vec![0i64; nodes.len() + 2];
        for (index, id) in nodes.iter().enumerate() {
            position[id.index()] = Some(index);
            for input in graph.node(*id).inputs() {
                if let Some(path) = path_of.get(input) {
                    first_reads.entry((*path).clone()).or_insert(index);
                }
            }
        }
        for (index, id) in nodes.iter().enumerate() {
            for output in graph.node(*id).outputs() {
                let last = last_forward_use(joint, roles, *output, &position);
                if let Some(last) = last.filter(|last| *last > index) {
                    let bytes = graph.value(*output).bytes() as i64;
                    change[index + 1] += bytes;
                    change[last + 1] -= bytes;
                }
            }
        }
        let inputs = inputs_of(joint, &nodes, &position);
        let mut live = 0;
        let crossing = change
            .iter()
            .map(|change| {
                live += change;
                live as u64
            })
            .collect();
        let mut module_at: BTreeMap<usize, &str> = BTreeMap::new();
        for (path, first) in &first_reads {
            module_at.entry(*first).or_insert(path.module());
        }
        let mut module = "";
        let modules = (0..nodes.len()).map(|position| {
            module = module_at.get(&position).copied().unwrap_or(module);
            module.to_owned()
        });
        let modules = modules.collect();
        let structure = structure_of(joint, &nodes, &position, &path_of);
        Self {
            nodes,
            first_reads,
            crossing,
            inputs,
            modules,
            structure,
        }
    }

    /// Operations that read nothing that another operation of the chain makes, each with the first that
    /// reads what it makes.
    pub(crate) fn sources(&self, joint: &JointGraph) -> Vec<(usize, usize)> {
        let graph = joint.graph();
        let positions = self.nodes.iter().enumerate();
        let sources = positions.filter_map(|(position, id)| {
            let node = graph.node(*id);
            let made = |value: &ValueId| graph.value(*value).producer;
            let mut inputs = node.inputs().iter().filter_map(made);
            if inputs.any(|producer| self.position(producer).is_some()) {
                return None;
            }
            let users = node
                .outputs()
                .iter()
                .flat_map(|output| graph.users(*output));
            let reader = users.filter_map(|user| self.position(*user)).min()?;
            Some((position, reader))
        });
        sources.collect()
    }

    /// The module that the operation at a position belongs to: the one whose parameter was read last
    /// for the first time.
    pub fn module(&self, position: usize) -> &str {
        self.modules.get(position).map_or("", String::as_str)
    }

    /// A digest of the operations and of what each reads, without shapes.
    pub(crate) fn structure(&self) -> &str {
        &self.structure
    }

    /// The assigned forward operations.
    pub fn nodes(&self) -> &[NodeId] {
        &self.nodes
    }

    /// The index of an operation among them.
    pub fn position(&self, node: NodeId) -> Option<usize> {
        self.nodes.binary_search(&node).ok()
    }

    /// Position of the operation that reads a parameter first; `None` when none does.
    pub fn first_read(&self, path: &ParameterPath) -> Option<usize> {
        self.first_reads.get(path).copied()
    }

    /// The cheapest position for a cut after position `after` and not after `before`, for a stage
    /// after one that begins at `since`; of equals the last, so that an activation function
    /// stays with the module before it.
    ///
    /// What the stage reads of values older than `since` is sent to it, in addition to what crosses. So what
    /// joins a skip connection runs after the cut, where the skip is sent instead of the joined value.
    pub(crate) fn cheapest_since(&self, since: usize, after: usize, before: usize) -> usize {
        let mut sent_before = 0;
        let mut best = None;
        for position in after + 1..=before {
            let inputs = self.inputs[position - 1].iter();
            let old = inputs.filter(|input| input.made < since && input.touched < since);
            sent_before += old.map(|input| input.bytes).sum::<u64>();
            let cost = self.crossing[position] + sent_before;
            if best.is_none_or(|(least, _)| cost <= least) {
                best = Some((cost, position));
            }
        }
        best.map_or(before, |(_, position)| position)
    }
}

/// The assigned values that the operation at each position reads, each once.
fn inputs_of(joint: &JointGraph, nodes: &[NodeId], position: &[Option<usize>]) -> Vec<Vec<Input>> {
    let graph = joint.graph();
    let mut touched: BTreeMap<ValueId, usize> = BTreeMap::new();
    let mut inputs = Vec::with_capacity(nodes.len());
    for (index, id) in nodes.iter().enumerate() {
        let mut here = Vec::new();
        for value in graph.node(*id).inputs() {
            let producer = graph.value(*value).producer;
            let Some(made) = producer.and_then(|node| position[node.index()]) else {
                continue;
            };
            let touched = touched.insert(*value, index).unwrap_or(made);
            if touched < index {
                here.push(Input {
                    made,
                    touched,
                    bytes: graph.value(*value).bytes(),
                });
            }
        }
        inputs.push(here);
    }
    inputs
}

/// The last position at which an assigned forward operation reads a value.
fn last_forward_use(
    joint: &JointGraph,
    roles: &Roles,
    value: ValueId,
    position: &[Option<usize>],
) -> Option<usize> {
    let users = joint.graph().users(value).iter();
    users
        .filter(|user| roles.of_node(**user) == Role::Assigned)
        .filter_map(|user| position[user.index()])
        .max()
}

/// A digest of the operations at each position and of where what they read is made.
fn structure_of(
    joint: &JointGraph,
    nodes: &[NodeId],
    position: &[Option<usize>],
    path_of: &BTreeMap<ValueId, &ParameterPath>,
) -> String {
    let graph = joint.graph();
    let mut text = String::new();
    for id in nodes {
        let node = graph.node(*id);
        text.push_str(&node.name());
        for input in node.inputs() {
            let made = graph.value(*input).producer;
            let read = match (
                path_of.get(input),
                made.and_then(|node| position[node.index()]),
            ) {
                (Some(path), _) => format!(" {path}"),
                (None, Some(position)) => format!(" {position}"),
                (None, None) => " -".to_owned(),
            };
            text.push_str(&read);
        }
        text.push('\n');
    }
    format!("{:032x}", XxHash3_128::oneshot(text.as_bytes()))
}
