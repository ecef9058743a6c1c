//! Runs code on a device that executes nothing and records the operations.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

use burn::tensor::{BoolDType, Device, DeviceConfig, DeviceSettings, FloatDType, IntDType};
use burn_backend::Device as _;
use burn_dispatch::DispatchDevice;
use burn_ir::TensorId;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::graph::{Built, DenseIds, build};
use crate::scope::Scope;
use crate::{DeviceLabel, DynTensor, ErrorOrigin, Graph, RecordError, ValueId, meta};

/// Whether a recording tracks gradients: its code runs on a plain device or on an autodiff device. Burn's dropout, for
/// example, is active only on an autodiff device.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub enum Mode {
    /// No gradients: a plain device.
    #[default]
    Inference,
    /// Gradients: an autodiff device.
    Training,
}

/// The options of a recording.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordOptions {
    /// Whether gradients are tracked.
    pub mode: Mode,
    /// The dtypes of tensors that are created without a dtype.
    pub defaults: DeviceSettings,
    /// The device that fake tensors report as their device. It need not exist.
    pub claim: DeviceLabel,
}

impl Default for RecordOptions {
    /// Returns the options of inference on the CPU backend, with its default dtypes (f32, i32, native bool) and its name.
    fn default() -> Self {
        let (float, int, bool) = (FloatDType::F32, IntDType::I32, BoolDType::Native);
        Self {
            mode: Mode::Inference,
            defaults: DeviceSettings::with_dtypes(float, int, bool),
            claim: DeviceLabel::flex(),
        }
    }
}

impl RecordOptions {
    /// Returns the options to record as if on `device`: its default dtypes and its name. Tracks gradients if the device
    /// does.
    pub fn like(device: &Device) -> Self {
        Self {
            mode: match device.is_autodiff() {
                true => Mode::Training,
                false => Mode::Inference,
            },
            defaults: device.settings(),
            claim: DeviceLabel::of(device),
        }
    }

    /// Sets the mode.
    pub fn in_mode(self, mode: Mode) -> Self {
        Self { mode, ..self }
    }

    /// Sets the device that fake tensors report as their device.
    pub fn claiming(self, claim: DeviceLabel) -> Self {
        Self { claim, ..self }
    }
}

/// The result of a recording: the graph, and the value of each fake tensor in it.
#[derive(Clone, Debug)]
pub struct Recording {
    graph: Graph,
    ids: DenseIds,
    marks: Vec<TensorId>,
}

impl Recording {
    /// Returns the recorded operations.
    pub fn graph(&self) -> &Graph {
        &self.graph
    }

    /// Returns the graph and drops the rest.
    pub fn into_graph(self) -> Graph {
        self.graph
    }

    /// Returns the values of the tensors that were [marked](crate::mark()), in the order of the calls.
    pub fn marks(&self) -> Vec<ValueId> {
        let marks = self.marks.iter();
        marks.filter_map(|id| self.ids.value_of(*id)).collect()
    }

    /// Returns the value of a fake tensor of this recording; `None` for other tensors.
    pub fn value(&self, tensor: &DynTensor) -> Option<ValueId> {
        self.value_of(tensor.captured_id()?)
    }

    /// Returns the value of a tensor by Burn's id of the tensor; `None` for tensors of other recordings.
    pub fn value_of(&self, id: TensorId) -> Option<ValueId> {
        self.ids.value_of(id)
    }
}

/// The default dtypes and the claim of a capture device. A pooled device is reused only with the same key: Burn sets the
/// default dtypes of a device once, and the claim must not change while tensors of the device are alive.
type PoolKey = (String, DeviceLabel);

/// The capture devices that no recording uses at present. They are reused, because Burn allows 65,536 devices per process
/// and never reuses an id. The pool is global, because the ids are.
///
/// Reuse has a risk. If recorded code starts a thread that outlives its recording, operations of this thread can end up in
/// a later recording on the same device.
static POOL: Mutex<BTreeMap<PoolKey, Vec<Device>>> = Mutex::new(BTreeMap::new());

/// A device from the pool. When it is dropped, also by a panic, the device goes back to the pool.
struct Pooled {
    key: PoolKey,
    device: Device,
    /// Whether the device was just created. Its default dtypes must then be set.
    is_new: bool,
}

impl Pooled {
    /// Takes a device with these options from the pool, or creates one.
    fn take(options: &RecordOptions) -> Self {
        let key = (format!("{:?}", options.defaults), options.claim.clone());
        let reused = POOL.lock().get_mut(&key).and_then(Vec::pop);
        let is_new = reused.is_none();
        let device = reused.unwrap_or_else(|| {
            let device = Device::capture();
            if let DispatchDevice::Capture(capture) = device.as_dispatch() {
                meta::claim(capture.to_id().index_id, options.claim.clone());
            }
            device
        });
        Self {
            key,
            device,
            is_new,
        }
    }
}

impl Drop for Pooled {
    fn drop(&mut self) {
        let (key, device) = (self.key.clone(), self.device.clone());
        POOL.lock().entry(key).or_default().push(device);
    }
}

/// Calls `run` with a recording device, and returns its result and the recording.
///
/// Recordings may be nested, and may run on several threads at once, because each has its own device. The fake tensors in
/// the result keep their shape and dtype. An operation on them after the recording can't be recorded, so it panics in Burn.
///
/// Cost: time and memory proportional to the number of operations, independent of the size of tensors.
///
/// # Errors
///
/// When the code panics, reads the data of a fake tensor, or uses a tensor that was created outside of the recording. Later
/// recordings are not affected.
pub fn record<T>(
    options: &RecordOptions,
    run: impl FnOnce(&Device) -> T,
) -> Result<(T, Recording), RecordError> {
    let (mut run, mut result) = (Some(run), None);
    let recording = record_dyn(options, &mut |device| {
        let run = run.take().expect("a recording runs its closure once");
        result = Some(run(device));
    })?;
    let result = result.expect("the closure returned, or its panic was handled");
    Ok((result, recording))
}

/// Does the work of [`record`]. The type of the closure is dynamic, so that this function is compiled once.
fn record_dyn(
    options: &RecordOptions,
    run: &mut dyn FnMut(&Device),
) -> Result<Recording, RecordError> {
    let pooled = Pooled::take(options);
    let mut device = pooled.device.clone();
    let scope_device = device.clone();
    let notes = Scope::begin();
    let captured = catch_unwind(AssertUnwindSafe(|| {
        scope_device.capture_scope(|scope| {
            if pooled.is_new {
                let DeviceSettings {
                    float_dtype,
                    int_dtype,
                    bool_dtype,
                    ..
                } = options.defaults;
                let dtypes =
                    DeviceConfig::new(Some(float_dtype), Some(int_dtype), Some(bool_dtype));
                let set = device.configure(dtypes);
                set.expect("a new recording device accepts every dtype that is not quantized");
            }
            let target = match options.mode {
                Mode::Inference => device.clone(),
                Mode::Training => device.clone().autodiff(),
            };
            run(&target);
            scope.complete([], [])
        })
    }));
    // `&*panic` is the payload. `&panic` would coerce too, but to a payload that is the box.
    let captured = captured.map_err(|panic| explain(&*panic, notes.panic()))?;
    // The scope was completed without inputs and outputs, so Burn has one reason to reject its graph: an operation reads a
    // tensor that was not created in the scope.
    let captured = captured.map_err(|_| RecordError::Foreign {
        message: "an operation reads an undeclared input".into(),
        origin: ErrorOrigin::default(),
    })?;
    let caught = notes.panic();
    if let Some(message) = caught.message() {
        // The panic hook did not print this panic, and no error reports it, because the recorded code has caught it.
        tracing::warn!("the recorded code caught a panic{caught}: {message}");
    }
    let Built { graph, ids } = build(captured)?;
    let marks = notes.marks();
    Ok(Recording { graph, ids, marks })
}

// Burn 0.22.1 reports wrong use of a fake tensor by panics. These are phrases of their messages. The phrases are long,
// because a panic of the recorded code may contain the same words.

/// The recorded code read data.
const READ: [&str; 2] = ["has no concrete value", "has no initialized value"];
/// The recorded code moved a tensor between devices or autodiff contexts.
const MOVED: [&str; 4] = [
    "Cannot move a tensor from a capture device",
    "Cannot move a tensor to a capture device",
    "Cannot move this autodiff tensor between",
    "Capture tensors do not support autodiff",
];
/// The operation is not implemented on a recording device. This is the whole message. `unimplemented!` in the recorded code
/// has the same message.
const NOT_IMPLEMENTED: &str = "not implemented";
/// The recorded code used a tensor of another recording or device.
const FOREIGN: [&str; 3] = [
    "The provided tensors are not on the same device",
    "capture scope is already complete",
    "capture tensor operations must run inside CaptureDevice::capture_scope",
];

/// Returns the error for a panic, chosen by its message. `noted` is the last panic that our hook has seen on this thread.
/// It may be another panic: the hook of a later caller may not call ours, and a panic of another thread is not noted here.
/// So its origin is used only if the messages are equal.
fn explain(panic: &(dyn std::any::Any + Send), noted: ErrorOrigin) -> RecordError {
    let message = panic_message(panic);
    let origin = match noted.message() == Some(&*message) {
        true => noted,
        false => ErrorOrigin::default(),
    };
    let contained = |phrases: &[&str]| {
        let phrase = phrases.iter().find(|phrase| message.contains(*phrase));
        phrase.map(|phrase| (*phrase).to_owned())
    };
    if contained(&READ).is_some() {
        RecordError::DataRead { message, origin }
    } else if contained(&MOVED).is_some() {
        RecordError::Moved { message, origin }
    } else if let Some(message) = contained(&FOREIGN) {
        RecordError::Foreign { message, origin }
    } else if message == NOT_IMPLEMENTED {
        RecordError::NotImplemented { message, origin }
    } else {
        RecordError::Panicked { message, origin }
    }
}

/// Returns the message of a caught panic, or a fixed text if the payload is not a string.
pub fn panic_message(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("a panic without a message").to_owned()
}
