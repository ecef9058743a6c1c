//! Encoding and decoding of a manifest, which is validated in both cases.

use serde::Deserializer;

use super::{
    Manifest, StoredPlan, TensorEntry, UnknownFields,
    document::{Fields, VERSION},
    envelope,
    json::Json,
    limits::{MAX_METADATA_BYTES, MAX_TIED_NAMES},
    lists,
    manifest::FORMAT,
    validate::check_manifest,
};
use crate::FormatError;

/// Maximum size of a plan in a manifest of version 1.0, in bytes of JSON; later versions store it in a
/// separate file.
const MAX_INLINE_PLAN_BYTES: u64 = 16 << 20;

impl Manifest {
    /// Decodes and validates a manifest: digest, version, limits, names, layout. Accesses no other file.
    ///
    /// Memory: at most three times the size of `bytes`, in addition to `bytes`.
    ///
    /// # Errors
    ///
    /// Returns the first violation.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, FormatError> {
        decode_manifest(bytes)
    }
}

/// Encodes the manifest file.
///
/// # Errors
///
/// Returns an error if a reader would reject the manifest: it passes the same validation here.
pub(crate) fn encode_manifest(manifest: &Manifest) -> Result<Vec<u8>, FormatError> {
    let bytes = envelope::seal(manifest)?;
    decode_manifest(&bytes)?;
    Ok(bytes)
}

/// Decodes and validates a manifest: digest, version, limits, names, layout.
pub(crate) fn decode_manifest(bytes: &[u8]) -> Result<Manifest, FormatError> {
    let mut fields = Fields::of(bytes, FORMAT)?;
    let minor = fields.take_or_default("minor")?;
    let metadata = fields.take_text("metadata")?;
    let plan = match minor {
        0 => StoredPlan::inline(fields.take_text("plan")?)?,
        _ => match fields.take("plan")? {
            Some(entry) => StoredPlan::File(entry),
            None => StoredPlan::None(()),
        },
    };
    let manifest = Manifest {
        format: FORMAT,
        version: VERSION,
        minor,
        attempt: fields.take("attempt")?,
        step: fields.take("step")?,
        seed: fields.take("seed")?,
        data_position: fields.take("data_position")?,
        world_size: fields.take("world_size")?,
        block_bytes: fields.take("block_bytes")?,
        metadata: Json::within(metadata, MAX_METADATA_BYTES)?,
        plan,
        modules: fields.take_json("modules")?,
        settings: fields.take_json("settings")?,
        numerics: fields.take_json("numerics")?,
        scalars: fields.take_with("scalars", |json| lists::scalars(json))?,
        files: fields.take_with("files", |json| lists::list(json))?,
        index: fields.take("index")?,
        tensors: fields.take_with("tensors", |json| tensors(json))?,
        unknown: UnknownFields(fields.rest()?),
    };
    check_manifest(&manifest)?;
    Ok(manifest)
}

impl StoredPlan {
    fn inline(text: &str) -> Result<Self, FormatError> {
        match text {
            "null" => Ok(Self::None(())),
            text => Json::within(text, MAX_INLINE_PLAN_BYTES).map(Self::Inline),
        }
    }
}

/// Deserializes the tensors of a manifest while they are sorted.
fn tensors<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<TensorEntry>, D::Error> {
    let mut tied = 0;
    lists::list_while(deserializer, |all: &[TensorEntry]| {
        let last = all.last().expect("one was read");
        tied += last.tied.len();
        let in_order = |a: &TensorEntry, b: &TensorEntry| (a.role, &a.name) < (b.role, &b.name);
        lists::ends_in_order(all, in_order) && !last.chunks.is_empty() && tied <= MAX_TIED_NAMES
    })
}
