//! The limits that several files of the format share.

use crate::{FormatError, StoredDType};

/// Maximum size of a manifest in bytes.
pub(crate) const MAX_MANIFEST_BYTES: u64 = 256 << 20;
/// Maximum number of ranks; a file name has five digits for the rank.
pub(crate) const MAX_WORLD_SIZE: u32 = 65_536;
/// Maximum number of dimensions.
pub(super) const MAX_DIMENSIONS: usize = 32;
/// Maximum size of a caller's metadata in bytes of JSON: it is meant for hashes and settings, not tensors.
pub(crate) const MAX_METADATA_BYTES: u64 = 1 << 20;
/// Maximum number of tied names of a checkpoint.
pub(super) const MAX_TIED_NAMES: usize = 65_536;

/// Rejects a size above a limit.
pub(super) fn check_size(found_bytes: u64, limit_bytes: u64) -> Result<(), FormatError> {
    match found_bytes > limit_bytes {
        true => Err(FormatError::TooLarge {
            found_bytes,
            limit_bytes,
        }),
        false => Ok(()),
    }
}

/// Returns the size of a tensor in a file in bytes, or `None` if it is too large.
///
/// Dimensions of size 0 count as 1, because strides are products of the other dimensions and must not
/// overflow for an empty tensor either.
pub(crate) fn stored_len(shape: &[u64], dtype: StoredDType) -> Option<u64> {
    if shape.len() > MAX_DIMENSIONS {
        return None;
    }
    let mut sizes = shape.iter().map(|d| (*d).max(1));
    let bound = sizes.try_fold(dtype.size_bytes(), u64::checked_mul)?;
    // An allocation has at most `isize::MAX` bytes.
    let is_allowed = bound <= i64::MAX as u64;
    is_allowed.then_some(if shape.contains(&0) { 0 } else { bound })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        assert_eq!(stored_len(&[], StoredDType::F32), Some(4));
        assert_eq!(stored_len(&[2, 0], StoredDType::F32), Some(0));
        assert_eq!(stored_len(&[1 << 60], StoredDType::F32), Some(1 << 62));
        assert_eq!(stored_len(&[1 << 61], StoredDType::F32), None);
        assert_eq!(stored_len(&[0, 1 << 61], StoredDType::F32), None);
    }
}
