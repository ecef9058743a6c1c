//! Locates indices that are out of range in the model.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use burn::tensor::TensorData;
use tinderbox_deferred::{ProgramError, check_indices, indices_of};
use tinderbox_fake::{DynTensor, Node, NodeId, ValueId};

use crate::ActionError;
use crate::trace::{Given, JointGraph};

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
    /// ``in `tokens` ``, say; `None` where no module is known.
    module: Option<String>,
    /// The tensor of the batch that contains the indices.
    input: Option<String>,
}

impl IndexPlaces {
    /// Cost: linear in the graph.
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
            let place = Place {
                module: module(joint, id),
                input: origin.map(|(input, _)| joint.inputs()[input].leaf.name.clone()),
            };
            all.places.insert(made.index() as u64, place);
        }
        all
    }

    /// Checks the index tensors of a micro-batch before anything runs. Indices that are computed, or
    /// only partly read, are checked where they are read.
    pub(crate) fn check(&self, inputs: &[DynTensor]) -> Result<(), ActionError> {
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

/// The module whose parameter an operation reads, else the last module that was read before it.
pub(crate) fn module(joint: &JointGraph, node: NodeId) -> Option<String> {
    let mut inputs = joint.graph().node(node).inputs().iter();
    let parameter = inputs.find_map(|input| match joint.given(*input)? {
        Given::Parameter(position) => Some(joint.parameter(position)),
        _ => None,
    });
    match parameter {
        Some(parameter) => Some(format!("in {}", named(parameter.path.module()))),
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

/// The position of the tensor of the batch that a value is, up to its shape and dtype, and whether it has all elements of it.
fn origin(joint: &JointGraph, mut value: ValueId) -> Option<(usize, bool)> {
    let graph = joint.graph();
    let mut is_whole = true;
    loop {
        if let Some(Given::Input(input)) = joint.given(value) {
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

/// Whether an operation gives elements of its input.
fn keeps(name: &str) -> bool {
    matches!(
        name,
        "Reshape" | "SwapDims" | "Permute" | "Flip" | "Expand" | "RepeatDim" | "Slice" | "Cast"
    )
}
