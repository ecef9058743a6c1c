//! Metadata of tensors.

use std::collections::BTreeMap;
use std::str::FromStr;

use burn::tensor::{DType, Shape};
use burn_dispatch::DispatchDevice;
use derive_more::{Display, Into};
use parking_lot::RwLock;
use serde::{Deserialize, Serialize};

use crate::{FakeError, dtype_name};

/// The name of a device, such as `flex` or `cuda:7`. The device need not exist.
#[derive(Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Display, Into)]
pub struct DeviceLabel(String);

impl DeviceLabel {
    /// Returns the label of the CPU backend of the default build.
    pub fn flex() -> Self {
        Self("flex".into())
    }

    /// Returns the label of a real device.
    pub fn of(device: &burn::tensor::Device) -> Self {
        of_dispatch(device.as_dispatch())
    }

    /// Returns the label as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for DeviceLabel {
    type Err = FakeError;

    fn from_str(label: &str) -> Result<Self, FakeError> {
        let (backend, index) = label.split_once(':').unwrap_or((label, "0"));
        let is_letter = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
        let named = !backend.is_empty() && backend.chars().all(is_letter);
        // `+7` and `07` parse as numbers too, but each device has exactly one label.
        let canonical = |number: u16| number.to_string() == index;
        let label = label.to_owned();
        match named && index.parse().is_ok_and(canonical) {
            true => Ok(Self(label)),
            false => Err(FakeError::BadLabel { label }),
        }
    }
}

impl TryFrom<String> for DeviceLabel {
    type Error = FakeError;

    fn try_from(label: String) -> Result<Self, FakeError> {
        label.parse()
    }
}

/// The claimed device of each capture device, by its index.
///
/// Global because a tensor only has the index of its capture device. An
/// entry never changes: the pool reuses a device only for the same claim.
static CLAIMS: RwLock<BTreeMap<u16, DeviceLabel>> = RwLock::new(BTreeMap::new());

/// Registers the claim of a new capture device.
pub(crate) fn claim(index: u16, label: DeviceLabel) {
    CLAIMS.write().insert(index, label);
}

/// Returns whether tensors on a device are in this process' memory, where every CPU backend can read them: true only
/// for `flex`.
pub fn is_host(device: &burn::tensor::Device) -> bool {
    let mut device = device.as_dispatch();
    if let DispatchDevice::Autodiff(tracked) = device {
        device = tracked;
    }
    matches!(device, DispatchDevice::Flex(_))
}

fn of_dispatch(device: &DispatchDevice) -> DeviceLabel {
    match device {
        DispatchDevice::Flex(_) => DeviceLabel::flex(),
        #[cfg(feature = "cubecl")]
        DispatchDevice::Cube(device) => DeviceLabel(match device {
            cubecl::Device::Cuda(device) => format!("cuda:{}", device.index),
            cubecl::Device::Cpu(_) => "cpu".into(),
            other => format!("{other:?}").to_lowercase(),
        }),
        DispatchDevice::Capture(device) => CLAIMS
            .read()
            .get(&burn_backend::Device::to_id(device).index_id)
            .cloned()
            .unwrap_or_else(|| DeviceLabel("capture".into())),
        DispatchDevice::Autodiff(device) => of_dispatch(&device.clone().inner()),
    }
}

/// Shape, dtype and device of a tensor, real or fake.
#[derive(Clone, Debug, Display, PartialEq, Eq)]
#[display(
    "tensor(..., size={:?}, dtype={}, device={device}, fake={fake})",
    shape.as_slice(),
    dtype_name(*dtype)
)]
pub struct TensorMeta {
    /// Size per dimension.
    pub shape: Shape,
    /// Type of an element.
    pub dtype: DType,
    /// The tensor's device; for a fake tensor, the device that it claims to be on.
    pub device: DeviceLabel,
    /// Whether the tensor has no data.
    pub fake: bool,
}

impl TensorMeta {
    pub(crate) fn new(shape: Shape, dtype: DType, device: &DispatchDevice) -> Self {
        Self {
            shape,
            dtype,
            device: of_dispatch(device),
            fake: matches!(device.clone().inner(), DispatchDevice::Capture(_)),
        }
    }

    /// Returns the bytes that the tensor has when it is real.
    pub fn bytes(&self) -> u64 {
        self.shape.num_elements() as u64 * self.dtype.size() as u64
    }
}
