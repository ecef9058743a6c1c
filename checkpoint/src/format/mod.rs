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
mod names;
mod part;
mod pytorch;
mod scalar;
pub(crate) mod texts;

pub use header::{Header, HeaderTensor, decode_header, encode_header};
pub use manifest::{Chunk, DocumentEntry, FileEntry, Manifest, Role, TensorEntry, UnknownFields};
pub use modules::ModuleTypes;
pub use scalar::Scalar;

pub(crate) use burnpack::{burnpack_len, decode_burnpack, encode_burnpack, is_burnpack, padded};
pub(crate) use codec::{check_tensor_name, check_world_size, encode_manifest, metadata};
pub(crate) use header::{PAGE_BYTES, Texts, header_len};
pub(crate) use json::Json;
pub(crate) use limits::{MAX_MANIFEST_BYTES, MAX_WORLD_SIZE, stored_len};
pub(crate) use lists::NamedScalar;
pub(crate) use manifest::StoredPlan;
pub(crate) use names::{
    INDEX_FILE, MANIFEST_FILE, MARKER_FILE, PLAN_FILE, attempt_dir_name, chunk_key,
    claim_file_name, damaged_dir_name, failed_file_name, parse_attempt_dir_name,
    parse_damaged_dir_name, parse_removed_dir_name, parse_step_dir_name, part_file_name,
    removed_dir_name, shard_file_name, step_dir_name, temporary_name,
};
pub(crate) use part::{FILE_BYTES, Marker, Part, decode_part, encode_part};
pub(crate) use pytorch::{BATCHES_TRACKED, PyTorchForm, encode_index, path_in, tracks_batches};
