//! Builds programs of the nodes of a graph.

use std::collections::{BTreeMap, BTreeSet};

use tinderbox_fake::{Graph, NodeId, ValueId};

use super::operation::{self, tensor_ir};
use super::together::{WORTHWHILE, bring_together};
use super::{Draw, Draws, Program, RandomKeys, RandomStep, Step, liveness};
use crate::ProgramError;

impl Program {
    /// Creates the program that runs `nodes` of `graph`, given `inputs`, for `outputs`.
    ///
    /// # Errors
    ///
    /// When a node reads a value that is not an input, a constant or computed before; when an output is not available; when
    /// a random operation has no key; when the interpreter does not support an operation.
    pub fn new(
        graph: &Graph,
        nodes: impl IntoIterator<Item = NodeId>,
        inputs: &[ValueId],
        outputs: &[ValueId],
        keys: &RandomKeys,
    ) -> Result<Self, ProgramError> {
        let draw = |node| Draw::of_node(graph, node, keys);
        Self::with_draws(graph, nodes, inputs, outputs, Some(&draw))
    }

    /// Creates a program as [`Program::new`] does, with the random values that `draw` returns. Without it, the backend's
    /// generator draws, in the order of the operations.
    pub(crate) fn with_draws(
        graph: &Graph,
        nodes: impl IntoIterator<Item = NodeId>,
        inputs: &[ValueId],
        outputs: &[ValueId],
        draw: Option<Draws<'_>>,
    ) -> Result<Self, ProgramError> {
        let mut known: BTreeSet<ValueId> = inputs.iter().copied().collect();
        let mut constants = BTreeMap::new();
        let mut steps = Vec::new();
        let mut read = |value: ValueId, known: &BTreeSet<ValueId>, reader: &dyn Fn() -> String| {
            if known.contains(&value) {
                return Ok(());
            }
            let constant = graph.constant(value);
            let data = constant.ok_or_else(|| ProgramError::Unavailable {
                value,
                reader: reader(),
            })?;
            constants.entry(value).or_insert_with(|| data.clone());
            Ok::<_, ProgramError>(())
        };
        for id in nodes {
            let node = graph.node(id);
            operation::supported(node)?;
            // An input that a node of the program would recompute is used as given.
            if node.outputs().iter().all(|output| known.contains(output)) {
                continue;
            }
            for input in node.inputs() {
                read(*input, &known, &|| node.name())?;
            }
            known.extend(node.outputs());
            steps.push(match (node.operation().random(), draw) {
                (Some((out, distribution)), Some(draw)) => Step::Random(Box::new(RandomStep {
                    out: out.clone(),
                    distribution,
                    draw: draw(id).ok_or(ProgramError::NoKey { node: id })?,
                })),
                _ => Step::Operation {
                    node: id,
                    last_uses: 0..0,
                },
            });
        }
        for output in outputs {
            read(*output, &known, &|| "the program's output".to_owned())?;
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
