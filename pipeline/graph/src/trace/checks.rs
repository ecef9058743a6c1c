//! Checks of recorded forwards for behaviour that a pipeline would compute differently from plain Burn.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;

use burn::tensor::DType;
use tinderbox_deferred::random::Domain;
use tinderbox_fake::{Difference, Graph, Mode, NodeId, TensorKind, ValueId};
use twox_hash::XxHash3_128;

use super::call::{Calls, Fields, Recorder};
use super::joint::Result;
use super::{JointGraph, LossOver};
use crate::{Batch, StateFault, TraceError};

/// Refuses a forward that reads random values of the constructor that are not parameters: every
/// construction of the model draws other values. The operations before `forward_start` are the constructor's.
pub(super) fn check_fields(
    graph: &Graph,
    forward_start: usize,
    tensor_fields: impl Fn() -> Vec<String>,
) -> Result<()> {
    let forward = graph.node_ids().skip(forward_start);
    let read = forward.flat_map(|id| graph.node(id).inputs());
    let of_constructor = |value: &&ValueId| {
        let producer = graph.producer(**value);
        producer.is_some_and(|node| node.index() < forward_start)
    };
    let fields: BTreeSet<ValueId> = read.filter(of_constructor).copied().collect();
    for field in fields {
        let nodes = graph.backward_slice([field], |_| false).nodes;
        let is_random = |id: &NodeId| graph.node(*id).operation().random().is_some();
        if let Some(node) = nodes.into_iter().find(is_random) {
            let (fields, operation) = (tensor_fields(), graph.describe(node));
            return Err(TraceError::RandomField { fields, operation });
        }
    }
    Ok(())
}

impl JointGraph {
    /// Refuses a count that depends on a parameter, because the weights of micro-batches are computed
    /// before a step. Refuses a count that is computed from 16-bit floats, to which mixed precision casts
    /// the floats of a batch.
    pub(super) fn check_count(&self) -> Result<()> {
        let LossOver::Count(count) = self.loss_over() else {
            return Ok(());
        };
        let is_parameter = |value| self.parameter_of(value).is_some();
        let slice = self.graph().backward_slice([*count], is_parameter);
        let nodes = slice.nodes.iter();
        let made = nodes.flat_map(|id| self.graph().node(*id).outputs());
        let mut dtypes = made.map(|value| self.graph().value(*value).dtype);
        if let Some(dtype) = dtypes.find(|dtype| matches!(dtype, DType::F16 | DType::BF16)) {
            return Err(TraceError::CountType { dtype });
        }
        let mut leaves = slice.leaves.into_iter();
        match leaves.find_map(|leaf| self.parameter_of(leaf)) {
            Some(position) => Err(TraceError::CountOnParameter {
                path: self.parameter(position).path.clone(),
            }),
            None => Ok(()),
        }
    }

    /// Checks that a second recording of the same forward is equal.
    ///
    /// # Errors
    ///
    /// [`TraceError::UnstableForward`] with the first operation, constant or output that differs.
    pub(super) fn check_same(&self, again: &Self) -> Result<()> {
        if let Some(difference) = self.graph().difference(again.graph()) {
            let difference = format!("in the {}, {difference}", self.place_of(&difference));
            return Err(TraceError::UnstableForward { difference });
        }
        let mut outputs = self.outputs().iter().zip(again.outputs());
        let name = match outputs.find(|(before, now)| before != now) {
            Some(((name, _), _)) => name.as_str(),
            None if self.values == again.values && self.marks == again.marks => return Ok(()),
            None => "loss",
        };
        let difference = format!("in output `{name}`");
        Err(TraceError::UnstableForward { difference })
    }

    /// A hash of everything that [`check_same`](Self::check_same) compares.
    pub(super) fn digest(&self) -> u128 {
        let text = format!("{:?} {:?}", self.values, self.marks);
        let graph = self.graph().digest();
        XxHash3_128::oneshot(&[&graph.to_le_bytes(), text.as_bytes()].concat())
    }

    /// Whether a difference is in the constructor, the forward or the backward.
    fn place_of(&self, difference: &Difference) -> &'static str {
        let node = match difference {
            Difference::Operation { number, .. } => self.graph().node_ids().nth(number - 1),
            _ => None,
        };
        match node {
            Some(node) if self.is_initialization(node) => "constructor",
            Some(node) if self.is_backward(node) => "backward",
            _ => "forward",
        }
    }

    /// Whether the forward converts integers or booleans to floats that are computed from the integers or booleans of the batch
    /// alone.
    fn converts_batch(&self) -> bool {
        let graph = self.graph();
        let kind = |value: &ValueId| TensorKind::of(graph.value(*value).dtype);
        let is_float = |value: &ValueId| kind(value) == TensorKind::Float;
        let is_forward = |id: &NodeId| !self.is_initialization(*id) && !self.is_backward(*id);
        graph.node_ids().filter(is_forward).any(|node| {
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

/// Records two forwards of one module, one after the other, and refuses what a program can't repeat:
///
/// - a forward that initializes a parameter that no visitor of the module sees, for example in a field with
///   `#[module(skip)]`: a module initializes it once, and each run of a program would draw another value;
/// - a forward that reads one of its own running states without the last update.
pub(super) fn check_twice<B: Batch>(joint: &JointGraph, recorder: &Recorder<'_, B>) -> Result<()> {
    let keys = joint.keys().iter();
    let keys = keys.filter(|(_, key)| key.domain == Domain::Forward);
    let random = keys.filter(|(node, _)| !joint.is_backward(**node)).count();
    // The running states that the forward updates and that do not belong to Burn's batch norms.
    let own_states = joint.updates().keys().copied();
    let own_states = own_states.filter(|state| joint.states.own.contains(state));
    let own_states: Vec<usize> = own_states.collect();
    if random == 0 && own_states.is_empty() {
        return Ok(());
    }
    let checked = recorder.record(
        Calls::Twice,
        |_, inputs, forward| Ok((inputs, forward)),
        |(inputs, forward), recording| {
            let graph = recording.graph();
            let start = |input: usize| {
                let value = inputs.get(input).and_then(|input| recording.value(input));
                let producer = value.and_then(|value| graph.producer(value));
                producer.map_or(0, |node| node.index())
            };
            let (first, second) = (start(0), start(inputs.len() / 2));
            let nodes = graph.nodes()[first..].iter();
            let drawn = nodes.filter(|node| node.operation().random().is_some());
            if drawn.count() != 2 * random {
                let fields = (forward.fields)().skipped;
                return Err(TraceError::SkippedParameter { fields });
            }
            // The states for which the second forward reads the value from before the first forward.
            let mut late = own_states.iter().filter(|state| {
                let placeholder = recording.value(&forward.parameters[**state]);
                let users = placeholder.map(|value| graph.users(value));
                forward.running.contains(state)
                    && users.is_some_and(|users| users.iter().any(|user| user.index() >= second))
            });
            match late.next() {
                Some(state) => Err(joint.refuse_state(*state, StateFault::ReadLate)),
                None => Ok(()),
            }
        },
    );
    match (checked, own_states.first()) {
        // A first forward was recorded, so the second can't read the new value of a running state.
        (Err(TraceError::Record { source }), Some(state)) => {
            Err(joint.refuse_state(*state, StateFault::Moved { source }))
        }
        (checked, _) => checked,
    }
}

/// Refuses a layer that acts only on tensors of a device with gradients, if it does not act in a forward that moves integers
/// or booleans of the batch. Burn can't record these in autodiff, so floats that are computed from them are not in autodiff
/// either. The layer does not act if the forward without it has the same number of operations.
///
/// Cost: a recording of the forward for each such layer of the model.
pub(super) fn check_layers<B: Batch>(joint: &JointGraph, recorder: &Recorder<'_, B>) -> Result<()> {
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
