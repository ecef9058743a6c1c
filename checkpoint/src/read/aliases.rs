//! Saved tensors of several paths of one parameter, which must have the same values.

use burn::tensor::TensorData;
use tinderbox_deferred::ParameterPath;
use tinderbox_fake::Region;

use super::{
    Checkpoint, PIECE_BYTES,
    compared::Pair,
    load::{Reading, load},
    plan::Wanted,
    transpose::reversed,
};
use crate::{LoadError, layout::pieces};

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
        let size = self.wanted.dtype.size() as u64;
        let bytes = self.wanted.region.num_elements().saturating_mul(size);
        bytes.min(PIECE_BYTES.saturating_mul(threads as u64))
    }

    /// Returns whether the other tensor has the values that were loaded, in their dtype. What was equal once is not read
    /// again.
    pub(super) fn is_equal(
        &self,
        checkpoint: &Checkpoint,
        loaded: (&Wanted<'_>, &TensorData),
        reading: Reading,
    ) -> Result<bool, LoadError> {
        let (first, values) = loaded;
        let pair = Pair::of(first, &self.wanted);
        if checkpoint.compared.contains(&pair) {
            return Ok(true);
        }
        let is_equal = self.has_values(checkpoint, values.as_bytes(), reading)?;
        if is_equal {
            checkpoint.compared.insert(pair);
        }
        Ok(is_equal)
    }

    /// Reads the other tensor in pieces, several at a time.
    fn has_values(
        &self,
        checkpoint: &Checkpoint,
        mut values: &[u8],
        reading: Reading,
    ) -> Result<bool, LoadError> {
        let wanted = &self.wanted;
        let invalid = |source| LoadError::Region {
            tensor: wanted.tensor.name.clone(),
            source,
        };
        // Elements of a piece are consecutive in the loaded values.
        let turned = |region: &Region| match wanted.transposed {
            true => reversed(region).map_err(invalid),
            false => Ok(region.clone()),
        };
        let pieces = pieces(
            &turned(&wanted.region)?,
            PIECE_BYTES / wanted.dtype.size() as u64,
        );
        for some in pieces.chunks(reading.threads.max(1)) {
            let some = some.iter().map(|piece| {
                Ok(Wanted {
                    region: turned(piece)?,
                    ..wanted.clone()
                })
            });
            let some = some.collect::<Result<Vec<_>, LoadError>>()?;
            for piece in load(checkpoint, &some, reading, &())? {
                let Some(rest) = values.strip_prefix(piece.as_bytes()) else {
                    return Ok(false);
                };
                values = rest;
            }
        }
        Ok(values.is_empty())
    }
}
