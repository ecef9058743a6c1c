//! Finds layers that do not act in training, because the recording has their input outside of autodiff.

use burn::tensor::DType;
use tinderbox_deferred::TrainingLayer;
use tinderbox_fake::{RecordOptions, TensorKind, ValueId, record};

use super::joint::{Fields, fake_batch};
use super::{Calls, ForwardFn, Given, JointGraph};
use crate::TraceError;
use crate::batch::Batch;

impl JointGraph {
    /// Whether the forward converts integers or booleans to floats that are computed from the integers or booleans of the batch
    /// alone.
    pub(super) fn converts_batch(&self) -> bool {
        let graph = self.graph();
        let is_float = |value: &ValueId| {
            let dtype = graph.value(*value).dtype;
            TensorKind::of(dtype) == TensorKind::Float
        };
        let is_of_batch = |value: ValueId| matches!(self.given(value), Some(Given::Input(_)));
        let mut forward = graph.node_ids().filter(|node| {
            let node = *node;
            !self.is_initialization(node) && !self.is_backward(node)
        });
        forward.any(|node| {
            let node = graph.node(node);
            let (inputs, mut outputs) = (node.inputs(), node.outputs().iter());
            if inputs.is_empty() || inputs.iter().any(is_float) || !outputs.any(is_float) {
                return false;
            }
            let given = |value| self.given(value).is_some();
            let slice = graph.backward_slice(inputs.iter().copied(), given);
            let read = slice
                .nodes
                .iter()
                .flat_map(|node| graph.node(*node).inputs());
            slice.leaves.iter().any(|leaf| is_of_batch(*leaf)) && !{ read }.any(is_float)
        })
    }
}

/// Refuses a layer that acts on tensors of a device with gradients only, and that does not act in a forward which moves
/// integers or booleans of the batch: Burn can't record these in autodiff, so neither are floats of them. A forward without
/// the layer then has as many operations.
///
/// Cost: a recording of the forward for each such layer of the model.
pub(super) fn check_layers<B: Batch>(
    run: &ForwardFn<B>,
    options: &RecordOptions,
    compute: Option<DType>,
    example: &B,
) -> Result<(), TraceError> {
    let forward = |without: Option<&TrainingLayer>| {
        let calls = Calls {
            is_twice: false,
            is_moving: true,
            without,
        };
        let result = record(options, |device| {
            let forward = run(device, calls, &mut || {
                fake_batch(example, device, compute, true, &mut |_| ())
            });
            forward.map(|forward| (forward.fields)())
        });
        let (fields, recording) = result.map_err(|source| TraceError::Record { source })?;
        let fields = fields.map_err(|path| TraceError::Unstable { path })?;
        Ok::<(Fields, usize), TraceError>((fields, recording.graph().nodes().len()))
    };
    let (Fields { layers, .. }, operations) = forward(None)?;
    for layer in layers {
        if forward(Some(&layer))?.1 == operations {
            return Err(TraceError::IdleLayer { path: layer.path });
        }
    }
    Ok(())
}
