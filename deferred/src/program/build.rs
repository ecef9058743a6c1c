//! Builds programs of the nodes of a graph.

use std::collections::{BTreeMap, BTreeSet};

use burn::tensor::Shape;
use tinderbox_fake::{Graph, NodeId, ValueId};

use super::operation::{self, tensor_ir};
use super::together::{WORTHWHILE, bring_together};
use super::{Draw, Program, RandomKeys, RandomStep, Step, liveness};
use crate::ProgramError;

/// The generator of a program's random operations.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Generator<'a> {
    /// The counter-based generator: the whole tensor of each operation, by its key.
    Keys(&'a RandomKeys),
    /// The counter-based generator: a part of a tensor for each operation.
    Draws(&'a BTreeMap<NodeId, Draw>),
    /// The backend's, in the order of the operations.
    Backend,
}

impl Generator<'_> {
    /// Returns what the counter-based generator generates for an operation; `None` if the backend's does.
    fn draw(&self, node: NodeId, shape: &Shape) -> Result<Option<Draw>, ProgramError> {
        let draw = match self {
            Self::Backend => return Ok(None),
            Self::Draws(draws) => draws.get(&node).cloned(),
            Self::Keys(keys) => keys.get(&node).map(|key| Draw::whole(key.clone(), shape)),
        };
        draw.map(Some).ok_or(ProgramError::NoKey { node })
    }
}

impl Program {
    /// Creates the program that runs `nodes` of `graph`, given `inputs`, for `outputs`.
    ///
    /// # Errors
    ///
    /// When a node reads a value that is not computed before it, an input or a constant; when
    /// an output is not available; when a random operation has no key; when the interpreter does not
    /// support an operation.
    pub fn new(
        graph: &Graph,
        nodes: impl IntoIterator<Item = NodeId>,
        inputs: &[ValueId],
        outputs: &[ValueId],
        keys: &RandomKeys,
    ) -> Result<Self, ProgramError> {
        Self::with_generator(graph, nodes, inputs, outputs, Generator::Keys(keys))
    }

    /// Like [`Program::new`], with random values of any generator.
    pub(crate) fn with_generator(
        graph: &Graph,
        nodes: impl IntoIterator<Item = NodeId>,
        inputs: &[ValueId],
        outputs: &[ValueId],
        generator: Generator<'_>,
    ) -> Result<Self, ProgramError> {
        let mut at_hand: BTreeSet<ValueId> = inputs.iter().copied().collect();
        let mut constants = BTreeMap::new();
        let mut steps = Vec::new();
        let mut read = |value: ValueId, at_hand: &BTreeSet<ValueId>, reader: &str| {
            if at_hand.contains(&value) {
                return Ok(());
            }
            let reader = reader.to_owned();
            let constant = graph.constant(value);
            let data = constant.ok_or(ProgramError::NotAtHand { value, reader })?;
            constants.entry(value).or_insert_with(|| data.clone());
            Ok::<_, ProgramError>(())
        };
        for id in nodes {
            let node = graph.node(id);
            operation::supported(node)?;
            // An input that a node of the program would recompute is used as given.
            if node.outputs().iter().all(|output| at_hand.contains(output)) {
                continue;
            }
            for input in node.inputs() {
                read(*input, &at_hand, &node.name())?;
            }
            at_hand.extend(node.outputs());
            let mut step = Step::Operation {
                node: id,
                last_uses: 0..0,
            };
            if let Some((out, distribution)) = node.operation().random()
                && let Some(draw) = generator.draw(id, &out.shape)?
            {
                step = Step::Random(Box::new(RandomStep {
                    out: out.clone(),
                    distribution,
                    draw,
                }));
            }
            steps.push(step);
        }
        for output in outputs {
            read(*output, &at_hand, "the program's output")?;
        }
        let type_of = |value: &ValueId| {
            let value = graph.value(*value);
            (value.shape.clone(), value.dtype)
        };
        let mut program = Self {
            nodes: graph.shared_nodes(),
            steps,
            last_uses: Vec::new(),
            inputs: inputs.to_vec(),
            input_types: inputs.iter().map(type_of).collect(),
            outputs: outputs.iter().map(|v| tensor_ir(*v, type_of(v))).collect(),
            constants: constants.into_iter().collect(),
        };
        liveness::mark(&mut program);
        bring_together(&mut program, WORTHWHILE);
        Ok(program)
    }
}
