//! Calls of a model's forward while it is recorded.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use burn::module::Module;
use burn::tensor::{DType, Device};
use tinderbox_deferred::{
    Deferred, ParameterPath, ParameterTable, Placeholders, TrainingLayer, pending_states,
    skipped_parameters, tensor_fields, training_layers,
};
use tinderbox_fake::{DynTensor, RecordError, RecordOptions, Recording, TensorKind, record};

use super::Outputs;
use crate::{Batch, BatchMapper, LeafName, TraceError};

/// Constructs the model on a device, replaces its parameters by placeholders, and runs the user's
/// forward on requested batches. Operations before the placeholders belong to the initialization. The
/// error is the path of a parameter that the constructor computes differently than before.
pub(super) type ForwardFn<B> = dyn Fn(&Device, bool, Calls<'_>, &mut dyn FnMut() -> B) -> Result<ForwardRun, ParameterPath>
    + Send
    + Sync;

/// The calls of a forward in a recording.
#[derive(Clone, Copy, Debug)]
pub(super) enum Calls<'a> {
    Once,
    /// Two calls; the result is the result of the second. Batch norms train in the first call only.
    Twice,
    /// One call, with a layer that does not act.
    Without(&'a TrainingLayer),
}

/// The fields in the debug text of a model, for errors.
pub(super) struct Fields {
    /// The fields that are tensors.
    pub(super) tensors: Vec<String>,
    /// The fields that are parameters.
    pub(super) skipped: Vec<String>,
    /// The layers that act in training only.
    pub(super) layers: Vec<TrainingLayer>,
}

/// The result of a model's forward under recording.
pub(super) struct ForwardRun {
    /// The placeholder of each parameter of the table.
    pub(super) parameters: Vec<DynTensor>,
    /// The value that the constructor computed for each parameter, if any.
    pub(super) constructed: Vec<Option<DynTensor>>,
    /// The positions of running states.
    pub(super) running: Vec<usize>,
    /// The running states that do not belong to Burn's batch norms.
    pub(super) own_states: BTreeSet<usize>,
    /// The running states that the forward has updated, with their new values.
    pub(super) updated: Vec<(usize, DynTensor)>,
    /// The path of a running state with an update that can't be known: the constructor updates it, or it is in a field that
    /// no visitor sees.
    pub(super) unknown_state: Option<String>,
    /// The outputs of the forward.
    pub(super) outputs: Outputs,
    /// The fields that no visitor sees.
    pub(super) fields: Box<dyn Fn() -> Fields>,
}

/// Returns the calls of a model's forward, whose parameters have these types.
pub(super) fn forward_fn<M: Module + Sync + 'static, B: Batch>(
    model: Deferred<M>,
    table: Arc<ParameterTable>,
    forward: impl Fn(&M, B) -> Outputs + Send + Sync + 'static,
) -> Arc<ForwardFn<B>> {
    let has_looked = AtomicBool::new(false);
    Arc::new(move |device, is_moving, calls, make_batch| {
        let model = Placeholders::put(model.construct(device), &table, device, is_moving)?;
        let pending = || pending_states(&model.module).into_iter().next();
        let has_states = !model.running.is_empty();
        let constructed_state = has_states.then(pending).flatten();
        let mut outputs = match calls {
            Calls::Without(layer) => forward(&model.without_layer(layer), make_batch()),
            Calls::Once | Calls::Twice => forward(&model.module, make_batch()),
        };
        let mut updated = Vec::new();
        let mut hidden_state = None;
        if let Calls::Twice = calls {
            outputs = forward(&model.with_fixed_batch_norms(), make_batch());
        } else {
            updated = model.updated_states();
            // The text of a large model takes milliseconds, so it is read once.
            if !has_looked.swap(true, Ordering::Relaxed) {
                hidden_state = pending();
            }
        }
        Ok(ForwardRun {
            updated,
            unknown_state: constructed_state.or(hidden_state),
            own_states: model.own_states().collect(),
            running: model.running.clone(),
            parameters: model.values,
            constructed: model.constructed,
            outputs,
            fields: Box::new(move || Fields {
                tensors: tensor_fields(&model.module),
                skipped: skipped_parameters(&model.module),
                layers: training_layers(&model.module),
            }),
        })
    })
}

/// Records a forward on micro-batches like an example.
pub(super) struct Recorder<'a, B> {
    pub(super) run: &'a ForwardFn<B>,
    pub(super) options: RecordOptions,
    /// The 16-bit dtype of mixed precision.
    pub(super) compute: Option<DType>,
    pub(super) example: &'a B,
    /// Whether integers and booleans of the batch and all running states are outside of autodiff. There Burn can move recorded
    /// tensors to their own device.
    pub(super) is_moving: &'a AtomicBool,
}

impl<B: Batch> Recorder<'_, B> {
    /// Records calls of the forward. `inside` gets the inputs and the result before the recording ends, and `after` gets its
    /// value and the recording.
    ///
    /// All inputs are in autodiff, as in plain Burn. If the forward moves them, it is recorded again, with inputs that need no
    /// autodiff outside of it.
    pub(super) fn record<T, U>(
        &self,
        calls: Calls<'_>,
        inside: impl Fn(&Device, Vec<DynTensor>, ForwardRun) -> Result<T, TraceError>,
        after: impl Fn(T, Recording) -> Result<U, TraceError>,
    ) -> Result<U, TraceError> {
        let record = |is_moving: bool| {
            let result = record(&self.options, |device| {
                let mut inputs = Vec::new();
                let forward = (self.run)(device, is_moving, calls, &mut || {
                    self.fake_batch(device, is_moving, &mut inputs)
                });
                let forward = forward.map_err(|path| TraceError::Unstable { path })?;
                inside(device, inputs, forward)
            });
            result.map(|(made, recording)| made.and_then(|made| after(made, recording)))
        };
        let known = self.is_moving.load(Ordering::Relaxed);
        let recorded = match record(known) {
            Err(RecordError::Moved { .. }) if !known => record(true).inspect(|recorded| {
                if recorded.is_ok() {
                    self.is_moving.store(true, Ordering::Relaxed);
                }
            }),
            recorded => recorded,
        };
        recorded.map_err(|source| TraceError::Record { source })?
    }

    /// Creates a batch like the example on a recording device; adds its tensors to `inputs`.
    fn fake_batch(&self, device: &Device, is_moving: bool, inputs: &mut Vec<DynTensor>) -> B {
        let plain = device.clone().without_autodiff();
        let mut fake = |_: &LeafName, tensor: DynTensor| {
            let device = match is_moving && tensor.kind() != TensorKind::Float {
                true => &plain,
                false => device,
            };
            let fake = DynTensor::zeros(tensor.shape(), tensor.dtype(), device);
            inputs.push(fake.clone());
            match self.compute {
                Some(dtype) => fake.cast_float(dtype),
                None => fake,
            }
        };
        let example = self.example.clone();
        example.map_tensors(&mut BatchMapper::new(&mut fake))
    }
}
