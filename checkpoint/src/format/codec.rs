//! Encoding, decoding and validation of a manifest. Both directions validate it, before its contents are used or determine an
//! allocation.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserializer;

use super::document::{Fields, VERSION};
use super::header::header_len;
use super::json::Json;
use super::limits::{
    MAX_MANIFEST_BYTES, MAX_METADATA_BYTES, MAX_TIED_NAMES, MAX_WORLD_SIZE, check_size, stored_len,
};
use super::manifest::FORMAT;
use super::{FileEntry, Manifest, StoredPlan, TensorEntry, UnknownFields, envelope, lists, names};
use crate::FormatError;
use crate::error::{short, short_shape};
use crate::layout::check_tiling;

/// Maximum size of a plan in a manifest of version 1.0, in bytes of JSON; later versions store the plan in a separate file.
const MAX_PLAN_BYTES: u64 = 16 << 20;

impl Manifest {
    /// Decodes and validates a manifest: digest, version, limits, names, layout. Accesses no other file.
    ///
    /// Memory: at most three times the size of `bytes`, in addition to `bytes`.
    ///
    /// # Errors
    ///
    /// Returns the first violation.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, FormatError> {
        let mut fields = Fields::of(bytes, FORMAT)?;
        let minor = fields.take_minor()?;
        let metadata = fields.take_text("metadata")?;
        let plan = match minor {
            0 => match fields.take_text("plan")? {
                "null" => None,
                text => Some(StoredPlan::Inline(Json::within(text, MAX_PLAN_BYTES)?)),
            },
            _ => fields.take::<Option<_>>("plan")?.map(StoredPlan::File),
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
}

/// Encodes the manifest file.
///
/// # Errors
///
/// Returns an error if a reader would reject the manifest: it passes the same validation here.
pub(crate) fn encode_manifest(manifest: &Manifest) -> Result<Vec<u8>, FormatError> {
    let bytes = envelope::seal(manifest)?;
    Manifest::from_bytes(&bytes)?;
    Ok(bytes)
}

/// Deserializes the tensors of a manifest while they are sorted.
fn tensors<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<TensorEntry>, D::Error> {
    let mut tied = 0;
    lists::list_while(deserializer, |all: &[TensorEntry]| {
        let last = all.last().expect("one was read");
        tied += last.tied.len();
        let is_sorted = lists::ends_in_order(all, |a, b| a.key() < b.key());
        is_sorted && !last.chunks.is_empty() && tied <= MAX_TIED_NAMES
    })
}

/// Maximum index of a file; its name has five digits for it.
const MAX_FILE_NUMBER: u32 = 99_999;
/// Maximum length of a tensor or scalar name in bytes.
const MAX_NAME_BYTES: usize = 4096;

/// Rejects a name that can't be the key of a tensor.
pub(crate) fn check_tensor_name(name: &str) -> Result<(), FormatError> {
    match name {
        "" => Err(invalid_name(name, "is empty")),
        "__metadata__" => Err(invalid_name(name, "is reserved by safetensors")),
        _ if name.len() > MAX_NAME_BYTES => Err(invalid_name(name, "is longer than 4096 bytes")),
        _ => Ok(()),
    }
}

fn invalid_name(name: &str, reason: &'static str) -> FormatError {
    // Shortened to keep the message readable.
    let name = short(name);
    FormatError::Name { name, reason }
}

/// Validates all properties that readers rely on: a writer would choose the same names, lists are sorted without duplicates,
/// chunks tile every tensor, and the tensors of a file tile its data section.
fn check_manifest(manifest: &Manifest) -> Result<(), FormatError> {
    check_world_size(manifest.world_size)?;
    check_order("files", &manifest.files, |a, b| a.name < b.name)?;
    check_order("tensors", &manifest.tensors, |a, b| a.key() < b.key())?;
    let mut scalars = manifest.scalars.keys();
    scalars.try_for_each(|name| check_tensor_name(name))?;
    let mut files = BTreeMap::new();
    for file in &manifest.files {
        check_file(file, manifest.world_size)?;
        let spans = Vec::new();
        files.insert(&*file.name, FileUse { file, spans });
    }
    check_numbers(&manifest.files)?;
    let block = manifest.block_bytes.bytes();
    for tensor in &manifest.tensors {
        check_tensor(tensor, block, &mut files)?;
    }
    check_tied(&manifest.tensors)?;
    files.into_values().try_for_each(FileUse::check)?;
    check_documents(manifest)
}

/// A file and its bytes that chunks use.
struct FileUse<'a> {
    file: &'a FileEntry,
    spans: Vec<(u64, u64)>,
}

impl FileUse<'_> {
    /// Checks that every byte after the header belongs to exactly one chunk, and therefore has a digest.
    fn check(mut self) -> Result<(), FormatError> {
        self.spans.sort_unstable();
        let mut expected_bytes = self.file.header_bytes;
        let end_of_file = (self.file.size_bytes, 0);
        for (found_bytes, len) in self.spans.iter().copied().chain([end_of_file]) {
            if found_bytes != expected_bytes || self.spans.is_empty() {
                return Err(FormatError::Data {
                    file: self.file.name.clone(),
                    expected_bytes,
                    found_bytes,
                });
            }
            expected_bytes = found_bytes.saturating_add(len);
        }
        Ok(())
    }
}

fn check_order<T>(
    list: &'static str,
    items: &[T],
    in_order: impl Fn(&T, &T) -> bool,
) -> Result<(), FormatError> {
    let is_sorted = items.is_sorted_by(in_order);
    is_sorted.then_some(()).ok_or(FormatError::Order { list })
}

/// Rejects a number of ranks that is 0 or too large.
pub(crate) fn check_world_size(found: u32) -> Result<(), FormatError> {
    let limit = MAX_WORLD_SIZE;
    match (1..=limit).contains(&found) {
        true => Ok(()),
        false => Err(FormatError::WorldSize { found, limit }),
    }
}

fn invalid_file_name(file: &FileEntry) -> FormatError {
    let found = short(&file.name);
    FormatError::FileName { found }
}

fn check_file(file: &FileEntry, world_size: u32) -> Result<(), FormatError> {
    // A writer has exactly one choice of name, so a path outside the directory is never accepted.
    let name = names::shard_file(file.role, file.rank, file.number);
    if file.rank >= world_size || file.name != name {
        return Err(invalid_file_name(file));
    }
    let json_bytes = file.header_bytes.checked_sub(8);
    let header = json_bytes.map(|bytes| header_len(&bytes.to_le_bytes(), file.size_bytes));
    match header {
        Some(Ok(_)) => Ok(()),
        _ => Err(FormatError::HeaderBytes {
            file: file.name.clone(),
            found_bytes: file.header_bytes,
        }),
    }
}

/// Checks that the files of a role and rank are numbered from 0 without gaps.
fn check_numbers(files: &[FileEntry]) -> Result<(), FormatError> {
    // Names, and therefore numbers, are unique, and names with the same role and rank follow each other.
    for files in files.chunk_by(|a, b| (a.role, a.rank) == (b.role, b.rank)) {
        let limit = (files.len() as u32).min(MAX_FILE_NUMBER + 1);
        if let Some(file) = files.iter().find(|file| file.number >= limit) {
            return Err(invalid_file_name(file));
        }
    }
    Ok(())
}

fn check_tensor<'a>(
    tensor: &'a TensorEntry,
    block: u64,
    files: &mut BTreeMap<&'a str, FileUse<'a>>,
) -> Result<(), FormatError> {
    check_tensor_name(&tensor.name)?;
    if stored_len(&tensor.shape, tensor.dtype).is_none() {
        return Err(FormatError::Shape {
            tensor: tensor.name.clone(),
            shape: short_shape(&tensor.shape),
        });
    }
    check_order("chunks", &tensor.chunks, |a, b| a.region < b.region)?;
    let regions: Vec<_> = tensor.chunks.iter().map(|c| &c.region).collect();
    check_tiling(&tensor.shape, &regions).map_err(|source| FormatError::Layout {
        tensor: tensor.name.clone(),
        source: Box::new(source),
    })?;
    for chunk in &tensor.chunks {
        let len = stored_len(chunk.region.size(), tensor.dtype);
        let blocks = chunk.len_bytes.div_ceil(block);
        if len != Some(chunk.len_bytes) || blocks != chunk.digests.len() as u64 {
            return Err(FormatError::ChunkSize {
                tensor: tensor.name.clone(),
                region: chunk.region.clone(),
            });
        }
        let used = files
            .get_mut(&*chunk.file)
            .filter(|used| used.file.role == tensor.role)
            .ok_or_else(|| FormatError::UnlistedFile {
                tensor: tensor.name.clone(),
                file: short(&chunk.file),
            })?;
        used.spans.push((chunk.start_bytes, chunk.len_bytes));
    }
    Ok(())
}

/// Checks that every name identifies one tensor of its role.
fn check_tied(tensors: &[TensorEntry]) -> Result<(), FormatError> {
    let found = tensors.iter().map(|tensor| tensor.tied.len()).sum();
    let limit = MAX_TIED_NAMES;
    if found > limit {
        return Err(FormatError::TiedNames { found, limit });
    }
    let mut seen = BTreeSet::new();
    for tensor in tensors {
        check_order("tied names", &tensor.tied, |a, b| a < b)?;
        for name in &tensor.tied {
            check_tensor_name(name)?;
            let key = (tensor.role, &**name);
            let is_own = tensors.binary_search_by_key(&key, TensorEntry::key).is_ok();
            if is_own || !seen.insert(key) {
                return Err(invalid_name(name, "identifies two tensors"));
            }
        }
    }
    Ok(())
}

/// Checks that the Hugging Face index exists exactly if its form can describe the checkpoint, and that neither the index nor
/// the plan is larger than the maximum size of a manifest, because verification reads both into memory.
fn check_documents(manifest: &Manifest) -> Result<(), FormatError> {
    for document in manifest.index.iter().chain(manifest.plan_file()) {
        check_size(document.size_bytes, MAX_MANIFEST_BYTES)?;
    }
    let expected = manifest.is_indexable();
    match expected == manifest.index.is_some() {
        true => Ok(()),
        false => Err(FormatError::Index { expected }),
    }
}

#[cfg(test)]
#[path = "tests/validate.rs"]
mod tests;
