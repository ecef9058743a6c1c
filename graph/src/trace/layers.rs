//! Finds layers that do not act in training, because the recording has their input outside of autodiff.

use std::sync::atomic::Ordering;

use tinderbox_fake::{Mode, TensorKind, ValueId};

use super::JointGraph;
use super::call::{Calls, Fields, Recorder};
use crate::TraceError;
use crate::batch::Batch;

impl JointGraph {
    /// Whether the forward converts integers or booleans to floats that are computed from the integers or booleans of the batch
    /// alone.
    fn converts_batch(&self) -> bool {
        let graph = self.graph();
        let is_float =
            |value: &ValueId| TensorKind::of(graph.value(*value).dtype) == TensorKind::Float;
        let forward = graph.node_ids();
        let mut forward =
            forward.filter(|id| !self.is_initialization(*id) && !self.is_backward(*id));
        forward.any(|node| {
            let node = graph.node(node);
            let (inputs, mut outputs) = (node.inputs(), node.outputs().iter());
            if inputs.is_empty() || inputs.iter().any(is_float) || !outputs.any(is_float) {
                return false;
            }
            let given = |value| self.given(value).is_some();
            let slice = graph.backward_slice(inputs.iter().copied(), given);
            let mut leaves = slice.leaves.iter();
            let nodes = slice.nodes.iter();
            let mut read = nodes.flat_map(|node| graph.node(*node).inputs());
            leaves.any(|leaf| self.input_of(*leaf).is_some()) && !read.any(is_float)
        })
    }
}

/// Refuses a layer that acts on tensors of a device with gradients only, and that does not act in a forward which moves
/// integers or booleans of the batch: Burn can't record these in autodiff, so neither are floats of them. A forward without
/// the layer then has as many operations.
///
/// Cost: a recording of the forward for each such layer of the model.
pub(super) fn check_layers<B: Batch>(
    joint: &JointGraph,
    recorder: &Recorder<'_, B>,
) -> Result<(), TraceError> {
    let is_moving = recorder.is_moving.load(Ordering::Relaxed);
    if !is_moving || joint.key().mode == Mode::Inference || !joint.converts_batch() {
        return Ok(());
    }
    let record = |calls: Calls<'_>| {
        recorder.record(
            calls,
            |_, _, forward| Ok((forward.fields)()),
            |fields, recording| Ok((fields, recording.graph().nodes().len())),
        )
    };
    let (Fields { layers, .. }, operations) = record(Calls::Once)?;
    for layer in layers {
        if record(Calls::Without(&layer))?.1 == operations {
            return Err(TraceError::IdleLayer { path: layer.path });
        }
    }
    Ok(())
}
