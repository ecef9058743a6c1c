//! The uncut graph: the fingerprint of every value, and texts that describe its values.

use burn::tensor::{Distribution, Shape};
use burn_ir::{FloatOperationIr, NumericOperationIr, OperationIr, TensorIr};
use tinderbox_deferred::{Parameter, ParameterTable, RandomKey, RandomValues, random::Domain};
use tinderbox_fake::{NodeId, Region, ValueId, describe_operation, dtype_name};

use super::fingerprint::{Draws, Fingerprint, Hasher};
use crate::trace::JointGraph;

/// The reference with which programs are compared.
pub(super) struct Reference<'a> {
    joint: &'a JointGraph,
    table: &'a ParameterTable,
    fingerprints: Vec<Option<Fingerprint>>,
    /// The position in the table of each value that is a parameter.
    parameters: Vec<Option<usize>>,
}

impl<'a> Reference<'a> {
    /// Computes the fingerprints. Cost: linear in the graph.
    pub(super) fn new(
        joint: &'a JointGraph,
        table: &'a ParameterTable,
        hasher: &mut Hasher,
    ) -> Self {
        let graph = joint.graph();
        let mut reference = Self {
            joint,
            table,
            fingerprints: vec![None; graph.values().len()],
            parameters: vec![None; graph.values().len()],
        };
        reference.leaves(hasher);
        let (mut operands, mut made) = (Vec::new(), Vec::new());
        for id in graph.node_ids() {
            let node = graph.node(id);
            made.clear();
            match random_of(&node.operation) {
                Some((out, distribution)) => made.push(match joint.keys().get(&id) {
                    None => hasher.unkeyed(id.index()),
                    Some(key) => {
                        let random = RandomValues {
                            out,
                            distribution,
                            key,
                            whole: &out.shape,
                            region: &Region::of_shape(&out.shape),
                        };
                        let draws = match key.domain {
                            Domain::Forward => Draws::PerMicroBatch,
                            _ => Draws::Once,
                        };
                        hasher.random(random, draws)
                    }
                }),
                None => {
                    operands.clear();
                    operands.extend(node.inputs().iter().map(|input| reference.of(*input)));
                    hasher.operation(&node.operation, operands.iter().copied(), &mut made);
                }
            }
            for (output, fingerprint) in node.outputs().iter().zip(&made) {
                reference.fingerprints[output.index()].get_or_insert(*fingerprint);
            }
        }
        reference
    }

    /// Adds parameters, the batch, the weight and constants.
    fn leaves(&mut self, hasher: &mut Hasher) {
        let (joint, graph) = (self.joint, self.joint.graph());
        for (position, value) in joint.parameters().iter().enumerate() {
            let first = first_of(self.table, position);
            let known = graph.value(*value);
            let fingerprint = hasher.parameter(first, &known.shape, known.dtype);
            self.fingerprints[value.index()].get_or_insert(fingerprint);
            self.parameters[value.index()].get_or_insert(first);
        }
        for (position, input) in joint.inputs().iter().enumerate() {
            let known = graph.value(input.value);
            let fingerprint = hasher.input(position, &known.shape, known.dtype);
            self.fingerprints[input.value.index()] = Some(fingerprint);
        }
        let weight = graph.value(joint.weight());
        let fingerprint = hasher.weight(&weight.shape, weight.dtype);
        self.fingerprints[joint.weight().index()] = Some(fingerprint);
        for value in graph.value_ids() {
            if let Some(data) = graph.constant(value) {
                let place = &mut self.fingerprints[value.index()];
                place.get_or_insert_with(|| hasher.constant(data));
            }
        }
    }

    /// The fingerprint of a value of the graph.
    pub(super) fn of(&self, value: ValueId) -> Fingerprint {
        let known = self.fingerprints.get(value.index()).copied().flatten();
        known.expect("every value is a leaf or computed before it is read")
    }

    /// The fingerprint of a value that a program names; `None` when the graph has no such value.
    pub(super) fn find(&self, value: ValueId) -> Option<Fingerprint> {
        self.fingerprints.get(value.index()).copied().flatten()
    }

    pub(super) fn joint(&self) -> &'a JointGraph {
        self.joint
    }

    pub(super) fn table(&self) -> &'a ParameterTable {
        self.table
    }

    /// Describes a value: its role if it is an input of programs, else its operation.
    pub(super) fn describe(&self, value: ValueId) -> String {
        let graph = self.joint.graph();
        if value.index() >= graph.values().len() {
            return format!("{value}, which the model does not have");
        }
        if let Some(position) = self.parameters[value.index()] {
            return self.parameter(position);
        }
        let mut inputs = self.joint.inputs().iter().enumerate();
        if let Some((position, _)) = inputs.find(|(_, input)| input.value == value) {
            return self.input(position);
        }
        if value == self.joint.weight() {
            return "the weight of the micro-batch".into();
        }
        match graph.value(value).producer {
            Some(producer) => format!("{value} of {}", graph.node(producer).name()),
            None => {
                let known = graph.value(value);
                let dtype = dtype_name(known.dtype);
                format!("constant {value} {dtype}{:?}", known.shape.as_slice())
            }
        }
    }

    /// Describes the parameter at a position of the table.
    pub(super) fn parameter(&self, position: usize) -> String {
        let parameter = self.table.iter().nth(position);
        match parameter {
            Some(parameter) => format!("parameter `{}`", parameter.path),
            None => format!("parameter {position}, which the table does not have"),
        }
    }

    /// Describes the tensor at a position of the batch.
    pub(super) fn input(&self, position: usize) -> String {
        match self.joint.inputs().get(position) {
            Some(input) if input.leaf.name.is_empty() => "the batch".into(),
            Some(input) => format!("tensor `{}` of the batch", input.leaf.name),
            None => format!("tensor {position} of the batch, which it does not have"),
        }
    }

    /// Describes the operation that computes a value.
    pub(super) fn operation(&self, value: ValueId) -> String {
        let graph = self.joint.graph();
        let Some(producer) = graph.value(value).producer else {
            return self.describe(value);
        };
        let operation = &graph.node(producer).operation;
        match (random_of(operation), self.joint.keys().get(&producer)) {
            (Some((out, distribution)), Some(key)) => {
                describe_random(key, distribution, &out.shape)
            }
            _ => describe_operation(operation),
        }
    }

    /// The place in the model where a value is computed: its parameter, or the module whose parameter
    /// was read last before it.
    pub(super) fn module(&self, value: ValueId) -> Option<String> {
        let gradients = self.joint.gradients();
        let gradient = gradients.iter().position(|found| *found == Some(value));
        if let Some(position) = gradient {
            return Some(format!("the gradient of {}", self.parameter(position)));
        }
        let graph = self.joint.graph();
        let producer = graph.value(value).producer?;
        let mut operands = graph.node(producer).inputs().iter();
        if let Some(position) = operands.find_map(|input| self.parameters[input.index()]) {
            return Some(self.parameter(position));
        }
        let forward = match self.joint.is_backward(producer) {
            false => producer,
            // A backward operation reads values that a forward operation computed or read.
            true => {
                let made = graph.node(producer).inputs().iter();
                let made = made.filter_map(|input| graph.value(*input).producer);
                made.filter(|id| !self.joint.is_backward(*id)).max()?
            }
        };
        self.module_before(forward)
    }

    fn module_before(&self, node: NodeId) -> Option<String> {
        let graph = self.joint.graph();
        let forward = graph.node_ids().take_while(|id| *id <= node);
        let forward = forward.filter(|id| !self.joint.is_initialization(*id));
        let reads = forward.filter_map(|id| {
            let mut inputs = graph.node(id).inputs().iter();
            inputs.find_map(|input| self.parameters[input.index()])
        });
        let position = reads.last()?;
        let path = &self.table.iter().nth(position)?.path;
        Some(format!("module `{}`", path.module()))
    }
}

/// The result and the distribution of a random operation.
fn random_of(operation: &OperationIr) -> Option<(&TensorIr, Distribution)> {
    match operation {
        OperationIr::Float(_, FloatOperationIr::Random(random))
        | OperationIr::NumericInt(_, NumericOperationIr::IntRandom(random)) => {
            Some((&random.out, random.distribution))
        }
        _ => None,
    }
}

/// Describes random values.
pub(super) fn describe_random(
    key: &RandomKey,
    distribution: Distribution,
    shape: &Shape,
) -> String {
    let key = match key.domain {
        Domain::Forward => format!(
            "draw {} of random operation {} of the forward",
            key.draw, key.owner
        ),
        _ => format!("draw {} of the initialization of `{}`", key.draw, key.owner),
    };
    format!("{key}, {distribution:?} of {:?}", shape.as_slice())
}

/// The position of the parameter of which one is a clone; its own position otherwise.
pub(super) fn first_of(table: &ParameterTable, position: usize) -> usize {
    let clone_of = |parameter: &Parameter| parameter.clone_of.clone();
    let first = table.iter().nth(position).and_then(clone_of);
    let found = first.and_then(|path| table.iter().position(|p| p.path == path));
    found.unwrap_or(position)
}
