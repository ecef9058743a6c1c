//! Locates indices that are out of range in the model.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;

use burn::tensor::TensorData;
use tinderbox_deferred::{ProgramError, check_indices, indices_of};
use tinderbox_fake::{DynTensor, Node, NodeId, ValueId};

use crate::{ActionError, ActionResult, JointGraph};

/// The operations of a program that read by index.
#[derive(Debug)]
pub(crate) struct IndexPlaces {
    joint: Arc<JointGraph>,
    /// Operations whose indices are all elements of a tensor of the batch, by the position of the
    /// tensor and the size of the indexed dimension; one operation for each.
    of_batch: BTreeMap<(usize, usize), Node>,
}

impl IndexPlaces {
    /// Finds the operations whose indices are checked before anything runs, if they are checked. Cost: linear in the graph.
    pub(crate) fn of(joint: &Arc<JointGraph>, is_checked: bool) -> Self {
        let mut of_batch = BTreeMap::new();
        for node in joint.graph().nodes().iter().filter(|_| is_checked) {
            if let Some((indices, [size])) = indices_of(node)
                && let Some((input, true)) = origin(joint, indices)
            {
                let first = of_batch.entry((input, *size));
                first.or_insert_with(|| node.clone());
            }
        }
        let joint = joint.clone();
        Self { joint, of_batch }
    }

    /// Checks the index tensors of a micro-batch before anything runs. Indices that are computed, or
    /// only partly read, are checked when they are read.
    pub(crate) fn check(&self, inputs: &[DynTensor]) -> ActionResult {
        let mut read: BTreeMap<usize, TensorData> = BTreeMap::new();
        for ((input, _), node) in &self.of_batch {
            let data = match read.entry(*input) {
                Entry::Occupied(known) => known.into_mut(),
                Entry::Vacant(place) => place.insert(inputs[*input].to_data()?),
            };
            check_indices(node, data).map_err(|source| self.locate(source))?;
        }
        Ok(())
    }

    /// Converts the error of a program, adding the place to an index error.
    pub(crate) fn locate(&self, source: ProgramError) -> ActionError {
        let ProgramError::IndexOutOfRange { made, .. } = &source else {
            return source.into();
        };
        let joint = &*self.joint;
        let mut values = joint.graph().value_ids();
        let value = values.find(|value| value.index() as u64 == *made);
        let node = value.and_then(|value| joint.graph().producer(value));
        let indices = node.and_then(|node| indices_of(joint.graph().node(node)));
        let input = indices.and_then(|(indices, _)| origin(joint, indices));
        ActionError::IndexOutOfRange {
            module: node.and_then(|node| module(joint, node)),
            input: input.map(|(input, _)| joint.inputs()[input].leaf.name.clone()),
            source: Box::new(source),
        }
    }
}

/// The module whose parameter an operation reads, or the last module that was read before it.
pub(crate) fn module(joint: &JointGraph, node: NodeId) -> Option<String> {
    let mut inputs = joint.graph().node(node).inputs().iter();
    match inputs.find_map(|input| joint.parameter_of(*input)) {
        Some(at) => Some(format!("in {}", named(joint.parameter(at).path.module()))),
        None => Some(format!("in or after {}", named(joint.module_of(node)?))),
    }
}

/// The path of a module, in an error.
pub(crate) fn named(path: &str) -> String {
    match path.is_empty() {
        true => "the model itself".to_owned(),
        false => format!("`{path}`"),
    }
}

/// If a value is a tensor of the batch, up to its shape and dtype: the position of the tensor, and whether the value has all
/// its elements.
fn origin(joint: &JointGraph, mut value: ValueId) -> Option<(usize, bool)> {
    let graph = joint.graph();
    let mut is_whole = true;
    loop {
        if let Some(input) = joint.input_of(value) {
            return Some((input, is_whole));
        }
        let node = graph.node(graph.value(value).producer?);
        let name = node.name();
        let name = name.rsplit('.').next()?;
        match node.inputs() {
            [only] if keeps(name) => value = *only,
            _ => return None,
        }
        // A cast may change the value of a number.
        is_whole &= !["Slice", "Cast"].contains(&name);
    }
}

/// Whether an operation returns elements of its input.
fn keeps(name: &str) -> bool {
    matches!(
        name,
        "Reshape" | "SwapDims" | "Permute" | "Flip" | "Expand" | "RepeatDim" | "Slice" | "Cast"
    )
}
