//! The file formats: pure functions between values and bytes, without file access. `FORMAT.md` describes
//! every field.

mod burnpack;
mod codec;
mod document;
mod envelope;
mod header;
mod json;
mod limits;
mod lists;
mod manifest;
mod modules;
pub(crate) mod names;
mod part;
mod pytorch;
mod scalar;
pub(crate) mod texts;

pub use header::{Header, HeaderTensor, decode_header, encode_header};
pub use manifest::{Chunk, DocumentEntry, FileEntry, Manifest, Role, TensorEntry, UnknownFields};
pub use modules::ModuleTypes;
pub use scalar::Scalar;

pub(crate) use burnpack::{burnpack_len, decode_burnpack, encode_burnpack, is_burnpack, padded};
pub(crate) use codec::{check_tensor_name, check_world_size, encode_manifest};
pub(crate) use document::VERSION;
pub(crate) use header::{PAGE_BYTES, Texts, header_len};
pub(crate) use json::Json;
pub(crate) use limits::{MAX_MANIFEST_BYTES, MAX_METADATA_BYTES, MAX_WORLD_SIZE, stored_len};
pub(crate) use lists::NamedScalar;
pub(crate) use manifest::{FORMAT, MINOR, StoredPlan};
pub(crate) use names::{INDEX_FILE, MANIFEST_FILE, MARKER_FILE, PLAN_FILE};
pub(crate) use part::{FILE_BYTES, Marker, Part, decode_part, encode_part};
pub(crate) use pytorch::{BATCHES_TRACKED, PyTorchForm, encode_index, path_in, tracks_batches};
