//! The part of a rank and the marker of an attempt's directory.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::codec::check_world_size;
use super::document::{Fields, VERSION};
use super::{FileEntry, Scalar, TensorEntry, envelope, lists};
use crate::{AttemptId, BlockSize, FormatError};

const PART_FORMAT: &str = "tinderbox-checkpoint-part";
/// The value of `format` in the marker file of an attempt's directory.
const MARKER_FORMAT: &str = "tinderbox-checkpoint-attempt";

/// The default size at which a rank starts another file, so that several files are written and read
/// concurrently.
pub(crate) const FILE_BYTES: u64 = 1 << 30;

/// The part of one rank: a section of the manifest. Its tensors list only this rank's chunks.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Part {
    format: &'static str,
    version: u32,
    pub(crate) attempt: AttemptId,
    pub(crate) rank: u32,
    pub(crate) files: Vec<FileEntry>,
    pub(crate) tensors: Vec<TensorEntry>,
    #[serde(serialize_with = "lists::serialize_scalars")]
    pub(crate) scalars: BTreeMap<String, Scalar>,
}

impl Part {
    /// Creates an empty part.
    pub(crate) fn new(attempt: AttemptId, rank: u32) -> Self {
        Self {
            format: PART_FORMAT,
            version: VERSION,
            attempt,
            rank,
            files: Vec::new(),
            tensors: Vec::new(),
            scalars: BTreeMap::new(),
        }
    }
}

/// Encodes the part file.
pub(crate) fn encode_part(part: &Part) -> Result<Vec<u8>, FormatError> {
    let bytes = envelope::seal(part)?;
    decode_part(&bytes)?;
    Ok(bytes)
}

/// Decodes a part. Its contents are validated when the parts are merged to a manifest.
pub(crate) fn decode_part(bytes: &[u8]) -> Result<Part, FormatError> {
    let mut fields = Fields::of(bytes, PART_FORMAT)?;
    let mut part = Part::new(fields.take("attempt")?, fields.take("rank")?);
    part.files = fields.take_with("files", |json| lists::list(json))?;
    part.tensors = fields.take_with("tensors", |json| lists::list(json))?;
    part.scalars = fields.take_with("scalars", |json| lists::scalars(json))?;
    fields.end()?;
    Ok(part)
}

/// The contents of the marker file, which identifies a directory as an attempt of this crate and has the settings that a rank
/// needs to take part.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Marker {
    pub(crate) format: String,
    pub(crate) version: u32,
    pub(crate) attempt: AttemptId,
    pub(crate) step: u64,
    pub(crate) world_size: u32,
    pub(crate) block_bytes: BlockSize,
    pub(crate) file_bytes: u64,
}

impl Marker {
    /// Creates the marker of an attempt.
    pub(crate) fn new(attempt: AttemptId, step: u64) -> Self {
        Self {
            format: MARKER_FORMAT.to_owned(),
            version: VERSION,
            attempt,
            step,
            world_size: 1,
            block_bytes: BlockSize::default(),
            file_bytes: FILE_BYTES,
        }
    }

    /// Encodes the marker file.
    pub(crate) fn encode(&self) -> Result<Vec<u8>, FormatError> {
        Ok(serde_json::to_vec(self)?)
    }

    /// Decodes a marker; returns `None` for anything else, including other versions.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let marker: Self = serde_json::from_slice(bytes).ok()?;
        let known = marker.format == MARKER_FORMAT
            && marker.version == VERSION
            && check_world_size(marker.world_size).is_ok();
        known.then_some(marker)
    }
}
