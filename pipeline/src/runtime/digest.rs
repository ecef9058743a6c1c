//! The bytes of values, and their digests.

use std::error::Error;

use tinderbox_fake::{DynTensor, FakeError};
use twox_hash::XxHash3_64;

/// Any error, for example from reading a value of a device.
pub(crate) type AnyError = Box<dyn Error + Send + Sync>;

/// Reads the bytes of a value, without a copy if they are in the memory of the host in row-major order.
pub(crate) fn with_bytes<T>(
    value: &DynTensor,
    read: impl FnOnce(&[u8]) -> T,
) -> Result<T, FakeError> {
    Ok(match value.host_bytes() {
        Some(bytes) => read(bytes),
        None => read(value.to_data()?.as_bytes()),
    })
}

/// Joins parts of the rows of a tensor: at least one part. Some may be on a device and others in the memory of the host.
pub(crate) fn joined(parts: Vec<DynTensor>) -> Result<DynTensor, FakeError> {
    let device = parts[0].device();
    let parts = parts.into_iter().map(|part| part.to_device(&device));
    parts.collect::<Result<_, _>>().map(DynTensor::joined)
}

/// The digest of the bytes of a value: 64 bits.
pub(crate) fn of_value(value: &DynTensor) -> Result<u64, FakeError> {
    with_bytes(value, XxHash3_64::oneshot)
}
