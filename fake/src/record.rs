//! Runs code on a device that executes nothing and records the operations.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

use burn::tensor::{BoolDType, Device, DeviceConfig, FloatDType, IntDType};
use burn_backend::Device as _;
use burn_dispatch::DispatchDevice;
use burn_ir::TensorId;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::graph::{Built, DenseIds, build};
use crate::mark::MARKS;
use crate::origin::{ErrorOrigin, Watch};
use crate::scope::Scope;
use crate::{DeviceLabel, DynTensor, Graph, RecordError, ValueId, meta};

/// Whether gradients are tracked while a recording runs: the recorded code runs on a plain or on an
/// autodiff device. Burn's dropout, for example, is only active in training.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, Default,
)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// No gradients: a plain device.
    #[default]
    Inference,
    /// Gradients: an autodiff device.
    Training,
}

/// The dtypes of tensors that are created without a dtype.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Defaults {
    /// For float tensors.
    pub float: FloatDType,
    /// For int tensors.
    pub int: IntDType,
    /// For bool tensors.
    pub bool: BoolDType,
}

impl Defaults {
    /// Returns the defaults of a real device.
    pub fn of(device: &Device) -> Self {
        let settings = device.settings();
        Self {
            float: settings.float_dtype,
            int: settings.int_dtype,
            bool: settings.bool_dtype,
        }
    }
}

impl Default for Defaults {
    /// Returns the defaults of the CPU backend of the default build: f32, i32, native bool.
    fn default() -> Self {
        Self {
            float: FloatDType::F32,
            int: IntDType::I32,
            bool: BoolDType::Native,
        }
    }
}

/// The options of a recording.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordOptions {
    /// Whether gradients are tracked.
    pub mode: Mode,
    /// Default dtypes of the recording device.
    pub defaults: Defaults,
    /// The device that fake tensors claim to be on; it need not exist.
    pub claim: DeviceLabel,
}

impl Default for RecordOptions {
    /// Returns inference, with the dtypes and the name of the CPU backend.
    fn default() -> Self {
        Self {
            mode: Mode::Inference,
            defaults: Defaults::default(),
            claim: DeviceLabel::flex(),
        }
    }
}

impl RecordOptions {
    /// Returns options to record as if on `device`: its default dtypes, its name, and gradients if it tracks them.
    pub fn like(device: &Device) -> Self {
        Self {
            mode: if device.is_autodiff() {
                Mode::Training
            } else {
                Mode::Inference
            },
            defaults: Defaults::of(device),
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

    /// Returns the values that [`cut`](crate::cut()) was called with, in order.
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

/// Capture devices that no recording uses, for reuse: Burn never recycles their ids and
/// allows 65,536 per process. Global, because the ids are.
static POOL: Mutex<BTreeMap<PoolKey, Vec<Device>>> = Mutex::new(BTreeMap::new());

/// A device from the pool; it is returned when dropped, also while a panic unwinds.
struct Pooled {
    key: PoolKey,
    device: Device,
    configured: bool,
}

impl Pooled {
    fn take(options: &RecordOptions) -> Self {
        let key = (format!("{:?}", options.defaults), options.claim.clone());
        let known = POOL.lock().get_mut(&key).and_then(Vec::pop);
        let configured = known.is_some();
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
            configured,
        }
    }
}

impl Drop for Pooled {
    fn drop(&mut self) {
        // A device whose settings were rejected is not reused.
        if self.configured {
            let mut pool = POOL.lock();
            let devices = pool.entry(self.key.clone()).or_default();
            devices.push(self.device.clone());
        }
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
/// When the code panics, reads data, or uses a tensor of another recording. Later recordings are not affected.
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

/// [`record`] for a closure of dynamic type, so that it is compiled once.
fn record_dyn(
    options: &RecordOptions,
    run: &mut dyn FnMut(&Device),
) -> Result<Recording, RecordError> {
    let mut pooled = Pooled::take(options);
    let mut device = pooled.device.clone();
    let mut refused = None;
    let scope_device = device.clone();
    let configured = pooled.configured;
    let marking = Scope::begin(&MARKS);
    let watch = Watch::begin();
    let captured = catch_unwind(AssertUnwindSafe(|| {
        scope_device.capture_scope(|scope| {
            let Defaults { float, int, bool } = options.defaults;
            let defaults = DeviceConfig::new(Some(float), Some(int), Some(bool));
            if !configured && let Err(source) = device.configure(defaults) {
                refused = Some(source);
                return scope.complete([], []);
            }
            let target = match options.mode {
                Mode::Inference => device.clone(),
                Mode::Training => device.clone().autodiff(),
            };
            run(&target);
            scope.complete([], [])
        })
    }));
    if let Some(source) = refused {
        return Err(RecordError::Defaults { source });
    }
    pooled.configured = true;
    let captured = match captured {
        Ok(Ok(captured)) => captured,
        // A scope without declared inputs rejects a graph that reads foreign tensors.
        Ok(Err(burn_capture::CaptureError::UndeclaredInput { .. })) => {
            return Err(RecordError::Foreign {
                message: "an operation reads an undeclared input".into(),
                origin: ErrorOrigin::default(),
            });
        }
        Ok(Err(reason)) => return Err(RecordError::Capture { reason }),
        // Dereferenced, because a reference to the box would itself be the payload.
        Err(panic) => return Err(explain(&*panic, &watch)),
    };
    watch.report_caught();
    let Built { graph, ids } = build(captured)?;
    let marks = marking.take();
    Ok(Recording { graph, ids, marks })
}

/// Messages of the panics by which Burn 0.22.1 reports wrong use of a fake tensor. They are whole phrases,
/// because a panic of the recorded code may contain the same words.
const READ: [&str; 2] = ["has no concrete value", "has no initialized value"];
const MOVED: [&str; 4] = [
    "Cannot move a tensor from a capture device",
    "Cannot move a tensor to a capture device",
    "Cannot move this autodiff tensor between",
    "Capture tensors do not support autodiff",
];
/// The whole message.
const NOT_IMPLEMENTED: &str = "not implemented";
const FOREIGN: [&str; 3] = [
    "The provided tensors are not on the same device",
    "capture scope is already complete",
    "capture tensor operations must run inside CaptureDevice::capture_scope",
];

/// Returns the error for a panic, from Burn's message.
fn explain(panic: &(dyn std::any::Any + Send), watch: &Watch) -> RecordError {
    let message = panic_message(panic);
    let origin = watch.origin(&message);
    let says = |phrases: &[&str]| {
        let said = phrases.iter().find(|phrase| message.contains(*phrase));
        said.map(|phrase| (*phrase).to_owned())
    };
    if says(&READ).is_some() {
        RecordError::DataRead { message, origin }
    } else if says(&MOVED).is_some() {
        RecordError::Moved { message, origin }
    } else if let Some(message) = says(&FOREIGN) {
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
