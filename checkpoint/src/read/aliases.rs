//! Saved tensors of several paths of one parameter: they must have the same values.

use burn::tensor::TensorData;
use tinderbox_deferred::ParameterPath;
use tinderbox_fake::Region;

use super::PIECE_BYTES;
use super::load::{Load, load};
use super::plan::Wanted;
use super::transpose::reversed;
use crate::{LoadError, layout::pieces};

/// Maximum number of comparisons whose results are kept.
const MAX_COMPARED: usize = 1024;

/// A saved tensor of another path of a requested parameter.
#[derive(Debug)]
pub(super) struct Alias<'a> {
    /// Index of the requested tensor whose values are loaded.
    pub(super) at: usize,
    /// The path whose tensor is loaded.
    pub(super) path: &'a ParameterPath,
    /// The other path.
    pub(super) other: &'a ParameterPath,
    /// The part of the other tensor with which the loaded one is compared.
    pub(super) wanted: Wanted<'a>,
}

impl Alias<'_> {
    /// Returns the bytes that a comparison needs in addition to the loaded values.
    pub(super) fn working_bytes(&self, threads: usize) -> u64 {
        let most = PIECE_BYTES.saturating_mul(threads as u64);
        self.wanted.bytes().min(most)
    }

    /// Returns whether the other tensor has the values that were loaded, in their dtype. Parts that were equal once are not
    /// read again.
    pub(super) fn is_equal(
        &self,
        loading: Load<'_>,
        first: &Wanted<'_>,
        values: &TensorData,
    ) -> Result<bool, LoadError> {
        let compared = &loading.from.shared.compared;
        let pair = [first, &self.wanted].map(Wanted::key);
        if compared.lock().contains(&pair) {
            return Ok(true);
        }
        let is_equal = self.has_values(loading, values.as_bytes())?;
        let mut compared = compared.lock();
        if is_equal && compared.len() < MAX_COMPARED {
            compared.push(pair);
        }
        Ok(is_equal)
    }

    /// Reads the other tensor in pieces, several at a time.
    fn has_values(&self, loading: Load<'_>, mut values: &[u8]) -> Result<bool, LoadError> {
        let wanted = &self.wanted;
        // Elements of a piece are consecutive in the loaded values.
        let turned = |region: &Region| match wanted.transposed {
            true => reversed(region),
            false => region.clone(),
        };
        let most = PIECE_BYTES / wanted.dtype.size() as u64;
        let pieces = pieces(&turned(&wanted.region), most).into_iter();
        let pieces = pieces.map(|piece| Wanted {
            region: turned(&piece),
            ..wanted.clone()
        });
        let pieces: Vec<Wanted<'_>> = pieces.collect();
        let mut silent = loading;
        silent.progress = &();
        for some in pieces.chunks(loading.threads.max(1)) {
            for piece in load(silent, some)? {
                let Some(rest) = values.strip_prefix(piece.as_bytes()) else {
                    return Ok(false);
                };
                values = rest;
            }
        }
        Ok(values.is_empty())
    }
}
