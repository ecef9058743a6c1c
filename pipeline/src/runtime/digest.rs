//! The digest of a value.

use std::error::Error;

use tinderbox_fake::{DynTensor, FakeError};
use twox_hash::XxHash3_64;

/// The error of a value that can't be read from its device.
pub(crate) type ReadError = Box<dyn Error + Send + Sync>;

/// The digest of the bytes of a value: 64 bits.
pub(crate) fn of_value(value: &DynTensor) -> Result<u64, FakeError> {
    Ok(match value.host_bytes() {
        Some(bytes) => XxHash3_64::oneshot(bytes),
        None => XxHash3_64::oneshot(value.to_data()?.as_bytes()),
    })
}
