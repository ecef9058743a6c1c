//! A tensor of a plain `safetensors` file, as what a rank saves.

use std::{path::PathBuf, sync::Arc};

use crate::{LoadError, SaveError, StoredDType, format::stored_len, store::ReadFile};

/// The most that is read at once, in bytes.
const PIECE_BYTES: u64 = 8 << 20;

/// A whole tensor of a plain `safetensors` file. Such a file has no digests: its bytes are taken as they
/// are.
#[derive(Clone, Debug)]
pub struct PlainTensor {
    /// The open file.
    pub file: Arc<dyn ReadFile>,
    /// Where the file is, for messages.
    pub path: PathBuf,
    /// Type of an element.
    pub dtype: StoredDType,
    /// Size per dimension.
    pub shape: Vec<u64>,
    /// First byte, counted from the start of the file.
    pub start_bytes: u64,
}

impl PlainTensor {
    /// Gives the bytes of the tensor, in order and in pieces of at most 8 MiB.
    pub(super) fn for_each_piece(
        &self,
        tensor: &str,
        mut take: impl FnMut(&[u8]) -> Result<(), SaveError>,
    ) -> Result<(), SaveError> {
        let failed = |source: LoadError| SaveError::Value {
            tensor: tensor.to_owned(),
            source: Box::new(source),
        };
        // The tensor was checked, so its size fits.
        let len = stored_len(&self.shape, self.dtype).unwrap_or(0);
        let mut piece = vec![0; len.min(PIECE_BYTES) as usize];
        let mut at = 0;
        while at < len {
            let piece = &mut piece[..(len - at).min(PIECE_BYTES) as usize];
            let read = self.file.read_exact_at(piece, self.start_bytes + at);
            read.map_err(|source| {
                failed(LoadError::Io {
                    action: "read",
                    path: self.path.clone(),
                    source,
                })
            })?;
            if self.dtype == StoredDType::Bool && piece.iter().any(|byte| *byte > 1) {
                return Err(failed(LoadError::TruthValue {
                    path: self.path.clone(),
                    tensor: tensor.to_owned(),
                }));
            }
            take(piece)?;
            at += piece.len() as u64;
        }
        Ok(())
    }
}
