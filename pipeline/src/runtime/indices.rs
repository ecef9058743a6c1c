//! Where in the model an index is read that is out of range.

use std::collections::BTreeMap;

use tinderbox_deferred::{ParameterTable, ProgramError, indices_of};
use tinderbox_fake::{NodeId, ValueId};

use crate::ActionError;
use crate::partition::Chain;
use crate::trace::JointGraph;

/// What a user knows of each operation that reads by index, by the value that it makes.
#[derive(Debug, Default)]
pub(crate) struct IndexPlaces(BTreeMap<u64, Place>);

#[derive(Debug)]
struct Place {
    /// ``in `tokens` ``, say; `None` where no module is known.
    module: Option<String>,
    /// The tensor of the batch that the indices are.
    input: Option<String>,
}

impl IndexPlaces {
    /// Cost: linear in the graph.
    pub(super) fn of(joint: &JointGraph, chain: &Chain, table: &ParameterTable) -> Self {
        let graph = joint.graph();
        let places = graph.node_ids().filter_map(|id| {
            let node = graph.node(id);
            let indices = indices_of(node)?;
            let place = Place {
                module: module(joint, chain, table, id),
                input: input(joint, indices),
            };
            Some((node.outputs().first()?.index() as u64, place))
        });
        Self(places.collect())
    }

    /// The error of a program, with the place where it is one of an index.
    pub(super) fn locate(&self, source: ProgramError) -> ActionError {
        let ProgramError::IndexOutOfRange { made, .. } = &source else {
            return source.into();
        };
        let place = self.0.get(made);
        ActionError::IndexOutOfRange {
            module: place.and_then(|place| place.module.clone()),
            input: place.and_then(|place| place.input.clone()),
            source: Box::new(source),
        }
    }
}

/// The module whose parameter an operation reads, or else the last one that was read before it.
fn module(
    joint: &JointGraph,
    chain: &Chain,
    table: &ParameterTable,
    node: NodeId,
) -> Option<String> {
    let inputs = joint.graph().node(node).inputs();
    let mut parameters = table.iter().zip(joint.parameters());
    let named = |path: &str| match path.is_empty() {
        true => "the model itself".to_owned(),
        false => format!("`{path}`"),
    };
    if let Some((parameter, _)) = parameters.find(|(_, value)| inputs.contains(value)) {
        return Some(format!("in {}", named(parameter.path.module())));
    }
    let graph = joint.graph();
    let mut made = inputs
        .iter()
        .filter_map(|input| graph.value(*input).producer);
    let position = chain
        .position(node)
        .or_else(|| made.find_map(|node| chain.position(node)))?;
    Some(format!("in or after {}", named(chain.module(position))))
}

/// The tensor of the batch that a value is, but for its shape and dtype.
fn input(joint: &JointGraph, mut value: ValueId) -> Option<String> {
    let graph = joint.graph();
    loop {
        if let Some(input) = joint.inputs().iter().find(|input| input.value == value) {
            return Some(input.leaf.name.to_string());
        }
        let node = graph.node(graph.value(value).producer?);
        let keeps = [
            "Reshape",
            "SwapDims",
            "Permute",
            "Flip",
            "Expand",
            "RepeatDim",
            "Slice",
            "Cast",
        ];
        let name = node.name();
        let name = name.rsplit('.').next()?;
        match node.inputs() {
            [only] if keeps.contains(&name) => value = *only,
            _ => return None,
        }
    }
}
