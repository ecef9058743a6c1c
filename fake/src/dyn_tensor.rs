//! A tensor whose rank and kind are known at run time.

use burn::tensor::{
    AllocationProperty, BoolStore, Bytes, DType, Device, Shape, Slice, Tensor, TensorData,
    kind::{Basic, BridgeTensor, Kind},
    read_sync,
};
use burn_autodiff::Autodiff;
use burn_backend::{
    AutodiffBackend, TensorMetadata,
    ops::{BoolTensorOps, FloatTensorOps, IntTensorOps},
};
use burn_capture::CaptureBackend;
use burn_dispatch::{
    BackendTensor, Dispatch, DispatchAutodiffContext, DispatchDevice, DispatchTensor,
    DispatchTensorKind,
};
use burn_ir::TensorId;
use bytemuck::pod_collect_to_vec;
use derive_more::{From, Into};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::{FakeError, Region, TensorMeta, dtype_on};

/// Held while a tensor is sent from one device to another.
///
/// With CubeCL 0.11.3, where NCCL can be loaded, such a copy is a send in the queue of one GPU and a receive in the
/// queue of the other, submitted one after the other without a lock. Two threads that copy in opposite directions could queue
/// both sends before both receives and deadlock; two that copy in one direction could pair each other's halves. With
/// one order for all threads neither can happen, because submitted work only waits for work that was submitted before.
/// CubeCL 0.12 has its own lock. Other copies wait while one is submitted: if operations of the source are still
/// to be fused, they are compiled and queued first. The copies themselves run after the lock is released.
static COPIES: Mutex<()> = Mutex::new(());

/// The kind of a tensor in Burn: float, int or bool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TensorKind {
    /// Floating point numbers.
    Float,
    /// Signed or unsigned integers.
    Int,
    /// Booleans.
    Bool,
}

impl TensorKind {
    /// Returns the kind of tensors of this dtype.
    pub fn of(dtype: DType) -> Self {
        if dtype.is_bool() {
            Self::Bool
        } else if dtype.is_int() || dtype.is_uint() {
            Self::Int
        } else {
            Self::Float
        }
    }
}

/// Calls Burn's function for a kind of tensors: one of three, for floats, ints and bools.
macro_rules! by_kind {
    ($kind:expr => $float:ident | $int:ident | $bool:ident ($($argument:expr),*)) => {
        match $kind {
            TensorKind::Float => Dispatch::$float($($argument),*),
            TensorKind::Int => Dispatch::$int($($argument),*),
            TensorKind::Bool => Dispatch::$bool($($argument),*),
        }
    };
}

/// A tensor whose rank and kind are known at run time: the type of a value that crosses a stage boundary, that a source
/// returns, or that is an input of a program. Cloning shares the data.
#[derive(Clone, Debug, From, Into)]
pub struct DynTensor(pub(crate) DispatchTensor);

impl<const D: usize, K: Basic> From<Tensor<D, K>> for DynTensor {
    fn from(tensor: Tensor<D, K>) -> Self {
        Self(tensor.into_dispatch())
    }
}

/// Converts a value of Burn's optimizers.
impl From<BridgeTensor> for DynTensor {
    fn from(tensor: BridgeTensor) -> Self {
        Self(tensor.into())
    }
}

impl DynTensor {
    /// Copies data to a device, in the dtype that it has [there](crate::dtype_on). Cost: one copy.
    pub fn from_data(data: TensorData, device: &Device) -> Self {
        let dtype = dtype_on(data.dtype(), device);
        let (kind, data) = (TensorKind::of(dtype), data.convert_dtype(dtype));
        let device = device.as_dispatch();
        Self(by_kind!(kind => float_from_data | int_from_data | bool_from_data (data, device)))
    }

    /// Creates a tensor of zeros (or `false`) on a device, in the dtype that `dtype` has [there](crate::dtype_on).
    pub fn zeros(shape: Shape, dtype: DType, device: &Device) -> Self {
        let (dtype, device) = (dtype_on(dtype, device), device.as_dispatch());
        let kind = TensorKind::of(dtype);
        Self(by_kind!(kind => float_zeros | int_zeros | bool_zeros (shape, device, dtype.into())))
    }

    /// Returns the size per dimension.
    pub fn shape(&self) -> Shape {
        self.0.shape()
    }

    /// Returns the type of an element.
    pub fn dtype(&self) -> DType {
        self.0.dtype()
    }

    /// Returns the kind: float, int or bool.
    pub fn kind(&self) -> TensorKind {
        TensorKind::of(self.dtype())
    }

    /// Returns the bytes of the elements.
    pub fn bytes(&self) -> u64 {
        self.shape().num_elements() as u64 * self.dtype().size() as u64
    }

    /// Returns the device that holds the tensor.
    pub fn device(&self) -> Device {
        Device::new(self.0.device())
    }

    /// Returns shape, dtype and device.
    pub fn meta(&self) -> TensorMeta {
        TensorMeta::new(self.shape(), self.dtype(), &self.0.device())
    }

    /// Fails if the tensor has no data.
    fn check_real(&self) -> Result<(), FakeError> {
        if !self.is_fake() {
            return Ok(());
        }
        let tensor = Box::new(self.meta());
        Err(FakeError::NoData { tensor })
    }

    /// Returns whether the tensor has no data.
    pub fn is_fake(&self) -> bool {
        matches!(self.backend_kind(), DispatchTensorKind::Capture(_))
    }

    /// Returns the backend's tensor, which may be inside of an autodiff context.
    fn backend_kind(&self) -> &DispatchTensorKind {
        match &self.0.kind {
            DispatchTensorKind::Autodiff(tracked) => tracked,
            kind => kind,
        }
    }

    /// Returns the same tensor with its rank and kind in its type.
    ///
    /// # Errors
    ///
    /// When rank or kind differ.
    pub fn typed<const D: usize, K: Basic>(self) -> Result<Tensor<D, K>, FakeError> {
        let kind = match K::KIND {
            Kind::Float => TensorKind::Float,
            Kind::Int => TensorKind::Int,
            Kind::Bool => TensorKind::Bool,
        };
        if self.shape().num_dims() != D || self.kind() != kind {
            return Err(FakeError::WrongType {
                tensor: Box::new(self.meta()),
                rank: D,
                kind: K::name(),
            });
        }
        Ok(Tensor::from_dispatch(self.0))
    }

    /// Copies the data to the host immediately: later changes to the tensor do not affect the copy.
    ///
    /// # Errors
    ///
    /// When the tensor is fake, or the device fails.
    pub fn to_data(&self) -> Result<TensorData, FakeError> {
        self.clone().into_data()
    }

    /// Moves the data to the host: copies it as [`to_data`](Self::to_data) does, except for a tensor on the CPU that is not
    /// a view and has no other handle.
    ///
    /// # Errors
    ///
    /// As [`to_data`](Self::to_data).
    pub fn into_data(self) -> Result<TensorData, FakeError> {
        self.check_real()?;
        let meta = self.meta();
        let (kind, tensor) = (self.kind(), self.0);
        let data = match kind {
            TensorKind::Float => read_sync(Dispatch::float_into_data(tensor)),
            TensorKind::Int => read_sync(Dispatch::int_into_data(tensor)),
            TensorKind::Bool => read_sync(Dispatch::bool_into_data(tensor)),
        };
        data.and_then(read_now)
            .map_err(|source| FakeError::Execution {
                tensor: Box::new(meta),
                source: Box::new(source),
            })
    }

    /// Moves the tensor to another device; returns the same data if it is there already. On an autodiff device
    /// the result is always a leaf without gradient, and has the device's strategy of gradient checkpointing.
    ///
    /// # Errors
    ///
    /// When the tensor is fake: a fake tensor can't leave its recording.
    pub fn to_device(self, device: &Device) -> Result<Self, FakeError> {
        self.check_real()?;
        // There is one `flex` device. Tensors of ints and booleans may be in an autodiff context without being tracked.
        if let (DispatchTensorKind::Flex(_), DispatchDevice::Flex(_)) =
            (&self.0.kind, device.as_dispatch())
            && let DispatchAutodiffContext::Disabled = self.0.autodiff
        {
            return Ok(self);
        }
        let plain = device.clone().without_autodiff();
        let to = plain.as_dispatch();
        let tensor = self.without_autodiff();
        let kind = tensor.kind();
        let is_on_host = matches!(tensor.0.kind, DispatchTensorKind::Flex(_));
        let crosses = matches!(to, DispatchDevice::Flex(_)) != is_on_host;
        let is_between_devices = !is_on_host && !crosses && tensor.0.device() != *to;
        let copying = is_between_devices.then(|| COPIES.lock());
        let moved = match kind {
            // Booleans are stored differently on the two devices.
            TensorKind::Bool if crosses => {
                let native = DType::Bool(BoolStore::Native);
                Self::from_data(tensor.to_data()?.convert_dtype(native), &plain).0
            }
            // Burn would copy lazily, when the tensor is first used.
            _ if crosses && !is_on_host => Self::from_data(tensor.to_data()?, &plain).0,
            _ => by_kind!(kind => float_to_device | int_to_device | bool_to_device (tensor.0, to)),
        };
        drop(copying);
        let Some(strategy) = device.gradient_checkpointing_strategy() else {
            return Ok(Self(moved));
        };
        let mut tracked = by_kind!(kind => from_inner | int_from_inner | bool_from_inner (moved));
        // Burn uses the default strategy on entering autodiff, and rejects operations on tensors with different
        // strategies.
        tracked.autodiff = DispatchAutodiffContext::Enabled(strategy);
        Ok(Self(tracked))
    }

    /// Returns the tensor outside of any autodiff context; a tensor without one is unchanged.
    pub fn without_autodiff(mut self) -> Self {
        if self.0.autodiff == DispatchAutodiffContext::Disabled {
            return self;
        }
        let kind = self.kind();
        // Burn's own functions refuse captured tensors.
        self.0.kind = match self.0.kind {
            DispatchTensorKind::Autodiff(tracked) => match *tracked {
                DispatchTensorKind::Capture(BackendTensor::Autodiff(tensor)) => {
                    return Self::captured(BackendTensor::Float(tensor.into_primitive()));
                }
                other => DispatchTensorKind::Autodiff(Box::new(other)),
            },
            DispatchTensorKind::Capture(tensor) => return Self::captured(tensor),
            other => other,
        };
        Self(by_kind!(kind => inner | int_inner | bool_inner (self.0)))
    }

    /// Returns a fake float tensor in autodiff, as a leaf. A tensor that is in autodiff, real or not a float tensor is
    /// unchanged. Burn's own functions refuse captured tensors.
    pub fn in_autodiff(self) -> Self {
        match self.0.kind {
            DispatchTensorKind::Capture(BackendTensor::Float(tensor)) => {
                let tracked = Autodiff::<CaptureBackend>::from_inner(tensor);
                let tracked = DispatchTensorKind::Capture(BackendTensor::Autodiff(tracked));
                Self(DispatchTensor {
                    kind: DispatchTensorKind::Autodiff(Box::new(tracked)),
                    autodiff: DispatchAutodiffContext::Enabled(Default::default()),
                })
            }
            _ => self,
        }
    }

    /// Returns a captured tensor outside of autodiff.
    pub(crate) fn captured(tensor: BackendTensor<CaptureBackend>) -> Self {
        let kind = DispatchTensorKind::Capture(tensor);
        let autodiff = DispatchAutodiffContext::Disabled;
        Self(DispatchTensor { kind, autodiff })
    }

    /// Returns the elements of a region.
    ///
    /// # Panics
    ///
    /// When the region is not inside the tensor.
    pub fn slice(self, region: &Region) -> Self {
        let slices: Vec<Slice> = region.ranges().into_iter().map(Slice::from).collect();
        Self(by_kind!(self.kind() => float_slice | int_slice | bool_slice (self.0, &slices)))
    }

    /// Joins float tensors along their first dimension; a single tensor is unchanged.
    ///
    /// # Panics
    ///
    /// When there is no tensor, or their other dimensions differ.
    pub fn joined(mut parts: Vec<Self>) -> Self {
        if parts.len() == 1 {
            return parts.remove(0);
        }
        let parts = parts.into_iter().map(|part| part.0);
        Self(Dispatch::float_cat(parts.collect(), 0))
    }

    /// Copies the tensor to memory of its own size: a slice shares the memory of the whole tensor and keeps it
    /// allocated. Cost: one copy, on the tensor's device.
    ///
    /// # Errors
    ///
    /// When the tensor is fake, or the device fails.
    pub fn compact(self) -> Result<Self, FakeError> {
        let device = self.device();
        if self.is_fake() || matches!(self.0.kind, DispatchTensorKind::Flex(_)) {
            return Ok(Self::from_data(self.to_data()?, &device));
        }
        let shape = self.shape();
        let all: Vec<Slice> = shape.iter().map(|size| Slice::from(0..*size)).collect();
        let (own, kind) = (Self::zeros(shape, self.dtype(), &device).0, self.kind());
        Ok(Self(by_kind!(
            kind => float_slice_assign | int_slice_assign | bool_slice_assign (own, &all, self.0)
        )))
    }

    /// Casts a float tensor to another float dtype; other kinds are returned unchanged.
    pub fn cast_float(self, dtype: DType) -> Self {
        if self.dtype() == dtype || self.kind() != TensorKind::Float {
            return self;
        }
        Self(Dispatch::float_cast(self.0, dtype.into()))
    }

    /// Returns the id of a fake tensor in its recording; `None` for a real one.
    pub fn captured_id(&self) -> Option<TensorId> {
        match self.backend_kind() {
            DispatchTensorKind::Capture(
                BackendTensor::Float(t) | BackendTensor::Int(t) | BackendTensor::Bool(t),
            ) => Some(t.id()),
            DispatchTensorKind::Capture(BackendTensor::Autodiff(t)) => Some(t.primitive().id()),
            _ => None,
        }
    }
}

/// Copies data that is still on a GPU to the host; other data is unchanged. Burn transfers the data of a GPU tensor when
/// it is first accessed: until then it shows in-place changes of the tensor, and keeps the GPU's memory allocated.
/// Cost: the transfer, and a copy of the bytes on the host.
///
/// # Errors
///
/// When the device fails.
pub fn read_now(data: TensorData) -> Result<TensorData, burn_backend::ExecutionError> {
    let (shape, dtype) = (data.shape().clone(), data.dtype());
    let bytes = data.into_bytes();
    if bytes.property() != AllocationProperty::Device {
        return Ok(TensorData::from_bytes(bytes, shape, dtype));
    }
    let read = bytes.read(Default::default());
    let read = read.map_err(|error| burn_backend::ExecutionError::WithContext {
        reason: error.to_string(),
    })?;
    // Aligned as the elements require, otherwise Burn copies it again.
    let own = match dtype.size() {
        2 => Bytes::from_elems::<u16>(pod_collect_to_vec(read)),
        4 => Bytes::from_elems::<u32>(pod_collect_to_vec(read)),
        8 => Bytes::from_elems::<u64>(pod_collect_to_vec(read)),
        _ => Bytes::from_bytes_vec(read.to_vec()),
    };
    Ok(TensorData::from_bytes(own, shape, dtype))
}

/// Adds two float tensors of one shape, in place if the left one does not share its data.
///
/// # Panics
///
/// When the shapes or kinds differ.
impl std::ops::Add for DynTensor {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self(Dispatch::float_add(self.0, other.0))
    }
}

impl TensorMeta {
    /// Returns the metadata of `tensor`. Reads no data; works after the recording of a fake tensor is closed.
    pub fn of<const D: usize, K: Basic>(tensor: &Tensor<D, K>) -> Self {
        DynTensor::from(tensor.clone()).meta()
    }
}

/// Returns whether a tensor is fake: it has a shape and a dtype, and no data.
pub fn is_fake<const D: usize, K: Basic>(tensor: &Tensor<D, K>) -> bool {
    DynTensor::from(tensor.clone()).is_fake()
}
