//! Locates indices that are out of range in the model.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use burn::tensor::TensorData;
use tinderbox_deferred::{ProgramError, check_indices, indices_of};
use tinderbox_fake::{DynTensor, Node, NodeId, ValueId};

use crate::{ActionError, ActionResult, JointGraph};

/// The module and the input of each operation that reads by index, by its output value.
#[derive(Debug, Default)]
pub(crate) struct IndexPlaces {
    places: BTreeMap<u64, Place>,
    /// Operations whose indices are all elements of a tensor of the batch, by the position of the
    /// tensor and the size of the indexed dimension; one operation for each.
    of_batch: BTreeMap<(usize, usize), Node>,
}

#[derive(Debug)]
struct Place {
    /// For example ``in `tokens` ``; `None` if no module is known.
    module: Option<String>,
    /// The tensor of the batch that contains the indices.
    input: Option<String>,
}

impl IndexPlaces {
    /// Finds the places. Cost: linear in the graph.
    pub(crate) fn of(joint: &JointGraph) -> Self {
        let mut all = Self::default();
        for id in joint.graph().node_ids() {
            let node = joint.graph().node(id);
            let (Some((indices, sizes)), Some(made)) = (indices_of(node), node.outputs().first())
            else {
                continue;
            };
            let origin = origin(joint, indices);
            if let (Some((input, true)), [size]) = (origin, sizes) {
                let place = all.of_batch.entry((input, *size));
                place.or_insert_with(|| node.clone());
            }
            let module = module(joint, id);
            let input = origin.map(|(input, _)| joint.inputs()[input].leaf.name.clone());
            let place = Place { module, input };
            all.places.insert(made.index() as u64, place);
        }
        all
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
        let place = self.places.get(made);
        ActionError::IndexOutOfRange {
            module: place.and_then(|place| place.module.clone()),
            input: place.and_then(|place| place.input.clone()),
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
