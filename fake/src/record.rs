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

/// Whether gradients are tracked while a recording runs: the recorded code runs on a plain or on an
/// autodiff device. Burn's dropout, for example, is only active in training.
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
    /// The device that fake tensors claim to be on; it need not exist.
    pub claim: DeviceLabel,
}

impl Default for RecordOptions {
    /// Returns inference, with the dtypes (f32, i32, native bool) and the name of the CPU backend.
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
    /// Returns the options to record as if on `device`: its default dtypes, its name, and gradients if it tracks them.
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

    /// Sets the device that fake tensors claim to be on.
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

    /// Returns the values that [`mark`](crate::mark()) was called with, in order.
    pub fn marks(&self) -> Vec<ValueId> {
        let marks = self.marks.iter();
        marks.filter_map(|id| self.ids.value_of(*id)).collect()
    }

    /// Returns the value of a fake tensor of this recording; `None` for other tensors.
    pub fn value(&self, tensor: &DynTensor) -> Option<ValueId> {
        self.value_of(tensor.captured_id()?)
    }

    /// Returns the value of a tensor by its id in this recording; `None` for other tensors.
    pub fn value_of(&self, id: TensorId) -> Option<ValueId> {
        self.ids.value_of(id)
    }
}

/// The settings of a capture device. Burn sets default dtypes once per device, and a device's
/// claim must not change while its tensors are alive.
type PoolKey = (String, DeviceLabel);

/// The capture devices that no recording uses, for reuse: Burn never recycles their ids and allows 65,536 per process.
/// Global, because the ids are. A thread that outlives the closure of its recording can record into a later recording
/// that has the same device.
static POOL: Mutex<BTreeMap<PoolKey, Vec<Device>>> = Mutex::new(BTreeMap::new());

/// A device from the pool. Dropping it returns the device, also while a panic unwinds.
struct Pooled {
    key: PoolKey,
    device: Device,
    /// Whether the device has no default dtypes yet.
    is_new: bool,
}

impl Pooled {
    fn take(options: &RecordOptions) -> Self {
        let key = (format!("{:?}", options.defaults), options.claim.clone());
        let known = POOL.lock().get_mut(&key).and_then(Vec::pop);
        let is_new = known.is_none();
        let device = known.unwrap_or_else(|| {
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

/// Runs `run` on a recording device and returns its result and the recording.
///
/// Recordings may be nested and may run on several threads at once: each has its own device. The
/// fake tensors in the result keep their shape and dtype; any operation on them after the recording
/// panics in Burn, since it can't be recorded.
///
/// Cost: time and memory proportional to the number of operations, independent of the size of tensors.
///
/// # Errors
///
/// When the code panics, reads data, or uses a tensor of another recording. The error does not affect later recordings.
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

/// [`record`] with a closure of dynamic type, so that it is compiled once.
fn record_dyn(
    options: &RecordOptions,
    run: &mut dyn FnMut(&Device),
) -> Result<Recording, RecordError> {
    let pooled = Pooled::take(options);
    let mut device = pooled.device.clone();
    let scope_device = device.clone();
    let noted = Scope::begin();
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
    // Dereferenced, because a reference to the box would itself be the payload.
    let captured = captured.map_err(|panic| explain(&*panic, noted.panic()))?;
    // A scope without declared inputs and outputs only rejects a graph that reads tensors of others.
    let captured = captured.map_err(|_| RecordError::Foreign {
        message: "an operation reads an undeclared input".into(),
        origin: ErrorOrigin::default(),
    })?;
    let caught = noted.panic();
    if let Some(message) = caught.message() {
        // The hook did not print it.
        tracing::warn!("the recorded code caught a panic{caught}: {message}");
    }
    let Built { graph, ids } = build(captured)?;
    let marks = noted.marks();
    Ok(Recording { graph, ids, marks })
}

/// The messages of the panics by which Burn 0.22.1 reports wrong use of a fake tensor. They are whole phrases,
/// because a panic of the recorded code may contain the same words.
const READ: [&str; 2] = ["has no concrete value", "has no initialized value"];
const MOVED: [&str; 4] = [
    "Cannot move a tensor from a capture device",
    "Cannot move a tensor to a capture device",
    "Cannot move this autodiff tensor between",
    "Capture tensors do not support autodiff",
];
/// The whole message, which `unimplemented!` of the recorded code has as well.
const NOT_IMPLEMENTED: &str = "not implemented";
const FOREIGN: [&str; 3] = [
    "The provided tensors are not on the same device",
    "capture scope is already complete",
    "capture tensor operations must run inside CaptureDevice::capture_scope",
];

/// Returns the error for a panic, from Burn's message. The noted origin may be of another panic: a panic of another thread is
/// not noted here, and a hook that was set later may not call ours.
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

/// Returns the message of a caught panic.
pub fn panic_message(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("a panic without a message").to_owned()
}
