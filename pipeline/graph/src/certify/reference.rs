//! The uncut graph: the fingerprint of every value, and texts that describe its values.

use std::collections::HashMap;

use burn::tensor::{Distribution, Shape};
use tinderbox_deferred::{ParameterPath, RandomKey, RandomValues, random::Domain};
use tinderbox_fake::{Region, ValueId};

use super::fingerprint::{Draws, Fingerprint, Hasher};
use crate::trace::{Given, JointGraph};

/// The reference with which programs are compared.
pub(super) struct Reference<'a> {
    pub(super) joint: &'a JointGraph,
    fingerprints: Vec<Option<Fingerprint>>,
}

impl<'a> Reference<'a> {
    /// Computes the fingerprints. Cost: linear in the graph.
    pub(super) fn new(joint: &'a JointGraph, hasher: &mut Hasher) -> Self {
        let graph = joint.graph();
        let mut reference = Self {
            joint,
            fingerprints: vec![None; graph.values().len()],
        };
        reference.leaves(hasher);
        let (mut operands, mut made) = (Vec::new(), Vec::new());
        for id in graph.node_ids() {
            let node = graph.node(id);
            made.clear();
            match node.operation().random() {
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
                    hasher.operation(node.operation(), operands.iter().copied(), &mut made);
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
        // Not with `JointGraph::given` and `ParameterTable::position`, which the cut reads.
        let table = joint.table();
        let paths = table.iter().map(|parameter| &parameter.path);
        let position_of: HashMap<&ParameterPath, usize> = paths.zip(0..).collect();
        let firsts = table.iter();
        let firsts = firsts.map(|one| Given::Parameter(position_of[one.original()]));
        let parameters = joint.parameters().iter().copied().zip(firsts);
        let inputs = joint.inputs().iter().enumerate();
        let inputs = inputs.map(|(position, input)| (input.value, Given::Input(position)));
        let weight = (joint.weight(), Given::Weight);
        for (value, given) in parameters.chain(inputs).chain([weight]) {
            let known = graph.value(value);
            let fingerprint = hasher.given(given, &known.shape, known.dtype);
            self.fingerprints[value.index()].get_or_insert(fingerprint);
        }
        for value in graph.value_ids() {
            if let Some(data) = graph.constant(value) {
                let fingerprint = &mut self.fingerprints[value.index()];
                fingerprint.get_or_insert_with(|| hasher.constant(data));
            }
        }
    }

    /// The fingerprint of a value of the graph.
    pub(super) fn of(&self, value: ValueId) -> Fingerprint {
        let known = self.find(value);
        known.expect("every value is a leaf or computed before it is read")
    }

    /// The fingerprint of a value that a program names; `None` when the graph has no such value.
    pub(super) fn find(&self, value: ValueId) -> Option<Fingerprint> {
        self.fingerprints.get(value.index()).copied().flatten()
    }

    /// Describes a value: its role if it is an input of programs, else its operation.
    pub(super) fn describe(&self, value: ValueId) -> String {
        let graph = self.joint.graph();
        if value.index() >= graph.values().len() {
            return format!("{value}, which the model does not have");
        }
        if let Some(given) = self.joint.given(value) {
            return self.given(given);
        }
        match graph.producer(value) {
            Some(producer) => format!("{value} of {}", graph.node(producer).name()),
            None => format!("constant {value} {}", graph.value(value)),
        }
    }

    /// Describes a parameter, a tensor of the batch or the weight.
    pub(super) fn given(&self, given: Given) -> String {
        match given {
            Given::Parameter(position) => match self.joint.table().iter().nth(position) {
                Some(parameter) => format!("parameter `{}`", parameter.path),
                None => format!("parameter {position}, which the table does not have"),
            },
            Given::Input(position) => match self.joint.inputs().get(position) {
                Some(input) if input.leaf.name.is_empty() => "the batch".into(),
                Some(input) => format!("tensor `{}` of the batch", input.leaf.name),
                None => format!("tensor {position} of the batch, which it does not have"),
            },
            Given::Weight => "the weight of the micro-batch".into(),
        }
    }

    /// Describes the operation that computes a value.
    pub(super) fn operation(&self, value: ValueId) -> String {
        let graph = self.joint.graph();
        let Some(producer) = graph.producer(value) else {
            return self.describe(value);
        };
        let operation = graph.node(producer).operation();
        match (operation.random(), self.joint.keys().get(&producer)) {
            (Some((out, distribution)), Some(key)) => random_text(key, distribution, &out.shape),
            _ => operation.describe_with_inputs(),
        }
    }

    /// The place in the model where a value is computed: its parameter, or its module.
    pub(super) fn place(&self, value: ValueId) -> Option<String> {
        let gradients = self.joint.gradients();
        let gradient = gradients.iter().position(|found| *found == Some(value));
        if let Some(position) = gradient {
            let parameter = self.given(Given::Parameter(position));
            return Some(format!("the gradient of {parameter}"));
        }
        let graph = self.joint.graph();
        let producer = graph.producer(value)?;
        let operands = graph.node(producer).inputs().iter();
        let mut given = operands.filter_map(|input| self.joint.given(*input));
        if let Some(parameter) = given.find(|given| matches!(given, Given::Parameter(_))) {
            return Some(self.given(parameter));
        }
        let module = self.joint.module_of(producer);
        // Random values of the forward read nothing.
        let before = || self.joint.module_before(producer);
        let module = module.or_else(|| before().filter(|_| !self.joint.is_backward(producer)))?;
        // Before the first parameter there is no module.
        (!module.is_empty()).then(|| format!("module `{module}`"))
    }
}

/// Describes random values.
pub(super) fn random_text(key: &RandomKey, distribution: Distribution, shape: &Shape) -> String {
    let key = match key.domain {
        Domain::Forward => format!(
            "draw {} of random operation {} of the forward",
            key.draw, key.owner
        ),
        _ => format!("draw {} of the initialization of `{}`", key.draw, key.owner),
    };
    format!("{key}, {distribution:?} of {:?}", shape.as_slice())
}
