//! What one rank says that it wrote, and the mark of an attempt's directory.

use serde::{Deserialize, Serialize};

use super::{
    AttemptId, FileEntry, NamedScalar, TensorEntry, envelope,
    manifest::{VERSION, decode_document},
};
use crate::FormatError;

const PART_FORMAT: &str = "tinderbox-checkpoint-part";
/// The value of `format` in the file that marks an attempt's directory.
pub(crate) const MARKER_FORMAT: &str = "tinderbox-checkpoint-attempt";

/// What one rank wrote: a piece of the manifest. Its tensors hold this rank's chunks only.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Part {
    format: String,
    version: u32,
    pub(crate) attempt: AttemptId,
    pub(crate) rank: u32,
    pub(crate) files: Vec<FileEntry>,
    pub(crate) tensors: Vec<TensorEntry>,
    pub(crate) scalars: Vec<NamedScalar>,
}

impl Part {
    /// A rank's part of an attempt, still empty.
    pub(crate) fn new(attempt: AttemptId, rank: u32) -> Self {
        Self {
            format: PART_FORMAT.to_owned(),
            version: VERSION,
            attempt,
            rank,
            files: Vec::new(),
            tensors: Vec::new(),
            scalars: Vec::new(),
        }
    }
}

/// The bytes of the part's file.
pub(crate) fn encode_part(part: &Part) -> Result<Vec<u8>, FormatError> {
    let body = serde_json::to_vec(part).map_err(|source| FormatError::Json { source })?;
    let bytes = envelope::seal(&body);
    decode_part(&bytes)?;
    Ok(bytes)
}

/// The part of these bytes. Its contents are proven when the parts become a manifest.
pub(crate) fn decode_part(bytes: &[u8]) -> Result<Part, FormatError> {
    decode_document(bytes, PART_FORMAT)
}

/// The contents of the file that marks a directory as an attempt of ours.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Marker {
    pub(crate) format: String,
    pub(crate) attempt: AttemptId,
    pub(crate) step: u64,
}
