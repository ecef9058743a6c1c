//! A forward as a chain of modules, with what a cut between two of them costs.

use std::collections::BTreeMap;
use std::ops::Range;

use tinderbox_deferred::{Parameter, ParameterPath, ParameterTable};
use tinderbox_fake::{NodeId, ValueId};

use crate::cost;
use crate::trace::{JointGraph, Role, Roles};

/// A module with parameters of its own, at the place where the forward reads them first.
#[derive(Clone, Debug, PartialEq)]
pub struct Unit {
    /// Path of the module.
    pub module: String,
    /// The parameters that it owns.
    pub parameters: Vec<ParameterPath>,
    /// Bytes of these.
    pub bytes: u64,
    /// Forward FLOPs from here to the next unit.
    pub flops: u64,
    /// Bytes that cross a cut before this unit: at the cheapest place since the unit before.
    pub boundary_bytes: u64,
}

impl Unit {
    fn of_module(module: &str) -> Self {
        Self {
            module: module.to_owned(),
            parameters: Vec::new(),
            bytes: 0,
            flops: 0,
            boundary_bytes: 0,
        }
    }

    fn add(&mut self, parameter: &Parameter) {
        self.parameters.push(parameter.path.clone());
        self.bytes += parameter.bytes;
    }
}

/// The first unit under the longest prefix of a module path that has one.
fn nearest<'a>(units: &'a mut Vec<Unit>, module: &str) -> &'a mut Unit {
    if units.is_empty() {
        units.push(Unit::of_module(module));
    }
    let mut prefix = module;
    let index = loop {
        let inside = |unit: &Unit| unit.parameters.iter().any(|path| path.is_under(prefix));
        match units.iter().position(inside) {
            Some(index) => break index,
            None => prefix = prefix.rsplit_once('.').map_or("", |(shorter, _)| shorter),
        }
        if prefix.is_empty() {
            break 0;
        }
    };
    &mut units[index]
}

/// The placed forward operations of a program in recorded order, and where each parameter is read.
#[derive(Clone, Debug)]
pub struct Chain {
    nodes: Vec<NodeId>,
    /// First and last position of each parameter that is read.
    reads: BTreeMap<ParameterPath, (usize, usize)>,
    crossing: Vec<u64>,
    /// What the operation at each position reads of placed values.
    inputs: Vec<Vec<Input>>,
    flops: Vec<u64>,
}

/// A value that a placed operation reads.
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
        let nodes: Vec<NodeId> = roles.nodes(joint, Role::Placed).collect();
        let path_of: BTreeMap<ValueId, &ParameterPath> = table
            .iter()
            .zip(joint.parameters())
            .filter(|(parameter, _)| parameter.clone_of.is_none())
            .map(|(parameter, value)| (*value, &parameter.path))
            .collect();
        let mut position = vec![None; graph.nodes().len()];
        let mut reads: BTreeMap<ParameterPath, (usize, usize)> = BTreeMap::new();
        // How the crossing bytes change from one cut position to the next.
        let mut change = vec![0i64; nodes.len() + 2];
        for (index, id) in nodes.iter().enumerate() {
            position[id.index()] = Some(index);
            for input in graph.node(*id).inputs() {
                if let Some(path) = path_of.get(input) {
                    match reads.get_mut(*path) {
                        Some((_, last)) => *last = index,
                        None => drop(reads.insert((*path).clone(), (index, index))),
                    }
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
        let flops = nodes.iter().map(|id| cost::flops(graph, *id)).collect();
        Self {
            nodes,
            reads,
            crossing,
            inputs,
            flops,
        }
    }

    /// The placed forward operations.
    pub fn nodes(&self) -> &[NodeId] {
        &self.nodes
    }

    /// Position of the operation that reads a parameter first; `None` when none does.
    pub fn first_read(&self, path: &ParameterPath) -> Option<usize> {
        self.reads(path).map(|(first, _)| first)
    }

    /// Positions of the first and the last operation that read a parameter.
    pub(crate) fn reads(&self, path: &ParameterPath) -> Option<(usize, usize)> {
        self.reads.get(path).copied()
    }

    /// Bytes of the values that are made before a position and read at or after it.
    pub fn crossing_bytes(&self, position: usize) -> u64 {
        self.crossing[position]
    }

    /// Forward FLOPs of the operations in a range of positions.
    pub fn flops(&self, range: Range<usize>) -> u64 {
        self.flops[range].iter().sum()
    }

    /// The cheapest position for a cut after position `after` and not after `before`; of equals the
    /// last, so that an activation function stays with the module before it.
    pub fn cheapest(&self, after: usize, before: usize) -> usize {
        self.cheapest_since(0, after, before)
    }

    /// As [`Chain::cheapest`], for a stage that begins behind one that begins at `since`: what that
    /// one reads of older values is sent to it, beside what crosses. So what joins a skip connection
    /// runs behind the cut, where the skip is sent instead of the joined value.
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

    /// The modules in the order in which the forward reads them first. Parameters that the forward
    /// does not read go with the module that is nearest to them in the tree.
    pub fn units(&self, table: &ParameterTable) -> Vec<Unit> {
        let mut read: Vec<(usize, &Parameter)> = Vec::new();
        let mut unread: Vec<&Parameter> = Vec::new();
        for parameter in table.distinct() {
            match self.first_read(&parameter.path) {
                Some(position) => read.push((position, parameter)),
                None => unread.push(parameter),
            }
        }
        read.sort_by_key(|(position, _)| *position);
        let mut units: Vec<Unit> = Vec::new();
        // First and last first-read of each unit.
        let mut spans: Vec<(usize, usize)> = Vec::new();
        for (position, parameter) in read {
            let module = parameter.path.module();
            let together = spans.last().is_some_and(|(_, last)| *last == position)
                || units.last().is_some_and(|unit| unit.module == module);
            if !together {
                units.push(Unit::of_module(module));
                spans.push((position, position));
            }
            let unit = units.last_mut().expect("a unit was pushed");
            unit.add(parameter);
            spans.last_mut().expect("a span was pushed").1 = position;
        }
        for parameter in unread {
            nearest(&mut units, parameter.path.module()).add(parameter);
        }
        let mut starts = vec![0];
        for pair in spans.windows(2) {
            let since = *starts.last().expect("it starts with one");
            starts.push(self.cheapest_since(since, pair[0].1, pair[1].0));
        }
        starts.push(self.nodes.len());
        for (index, unit) in units.iter_mut().enumerate() {
            unit.flops = self.flops(starts[index]..starts[index + 1]);
            unit.boundary_bytes = if index == 0 {
                0
            } else {
                self.crossing[starts[index]]
            };
        }
        units
    }
}

/// The placed values that the operation at each position reads, each once.
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

/// The last position at which a placed forward operation reads a value.
fn last_forward_use(
    joint: &JointGraph,
    roles: &Roles,
    value: ValueId,
    position: &[Option<usize>],
) -> Option<usize> {
    let users = joint.graph().users(value).iter();
    users
        .filter(|user| roles.of_node(**user) == Role::Placed)
        .filter_map(|user| position[user.index()])
        .max()
}
