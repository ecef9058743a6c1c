//! Builds programs of the nodes of a graph.

use std::collections::{BTreeMap, BTreeSet};

use burn_ir::{TensorIr, TensorStatus};
use tinderbox_fake::{Graph, NodeId, ValueId};

use super::together::{WORTHWHILE, bring_together};
use super::{Draw, Program, RandomKeys, RandomStep, Step, liveness, operation, random, tensor_id};
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
    fn draw(&self, node: NodeId, out: &TensorIr) -> Result<Option<Draw>, ProgramError> {
        let draw = match self {
            Self::Backend => return Ok(None),
            Self::Draws(draws) => draws.get(&node).cloned(),
            Self::Keys(keys) => keys
                .get(&node)
                .map(|key| Draw::whole(key.clone(), &out.shape)),
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
            match graph.constant(value) {
                Some(data) => {
                    constants.entry(value).or_insert_with(|| data.clone());
                    Ok(())
                }
                None => Err(ProgramError::NotAtHand {
                    value,
                    reader: reader.into(),
                }),
            }
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
            let random = match random(&node.operation) {
                None => None,
                Some((out, distribution)) => generator
                    .draw(id, out)?
                    .map(|draw| (out, distribution, draw)),
            };
            steps.push(match random {
                None => Step::Operation {
                    node: id,
                    last_uses: 0..0,
                },
                Some((out, distribution, draw)) => Step::Random(Box::new(RandomStep {
                    out: out.clone(),
                    distribution,
                    draw,
                })),
            });
        }
        for output in outputs {
            read(*output, &at_hand, "the program's output")?;
        }
        let mut program = Self {
            nodes: graph.shared_nodes(),
            steps,
            last_uses: Vec::new(),
            inputs: inputs.to_vec(),
            input_types: inputs
                .iter()
                .map(|v| (graph.value(*v).shape.clone(), graph.value(*v).dtype))
                .collect(),
            outputs: outputs.iter().map(|v| tensor_ir(graph, *v)).collect(),
            constants: constants.into_iter().collect(),
        };
        liveness::mark(&mut program);
        bring_together(&mut program, WORTHWHILE);
        Ok(program)
    }
}

fn tensor_ir(graph: &Graph, value: ValueId) -> TensorIr {
    let known = graph.value(value);
    TensorIr {
        id: tensor_id(value),
        shape: known.shape.clone(),
        status: TensorStatus::ReadOnly,
        dtype: known.dtype,
    }
}
