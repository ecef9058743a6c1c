//! Validation of a manifest, before any of its contents is used or determines an allocation.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    FileEntry, Json, Manifest, Role, StoredPlan, TensorEntry,
    header::header_len,
    limits::{MAX_MANIFEST_BYTES, MAX_METADATA_BYTES, MAX_TIED_NAMES, MAX_WORLD_SIZE, stored_len},
    names::shard_file_name,
};
use crate::{
    FormatError,
    error::{short, short_shape},
    layout::check_tiling,
};

/// Maximum index of a file; its name has five digits for it.
const MAX_FILE_NUMBER: u32 = 99_999;
/// Maximum length of a tensor or scalar name in bytes.
const MAX_NAME_BYTES: usize = 4096;

/// Rejects a name that can't be the key of a tensor.
pub(crate) fn check_tensor_name(name: &str) -> Result<(), FormatError> {
    let reason = if name.is_empty() {
        "is empty"
    } else if name.len() > MAX_NAME_BYTES {
        "is longer than 4096 bytes"
    } else if name == "__metadata__" {
        "is reserved by safetensors"
    } else {
        return Ok(());
    };
    Err(FormatError::Name {
        // Shortened to keep the message readable.
        name: short(name),
        reason,
    })
}

/// Validates all properties that readers rely on: names are those that a writer would choose, lists are
/// sorted without duplicates, chunks tile every tensor, and the tensors of a file tile its data section.
pub(super) fn check_manifest(manifest: &Manifest) -> Result<(), FormatError> {
    if manifest.world_size == 0 || manifest.world_size > MAX_WORLD_SIZE {
        return Err(FormatError::WorldSize {
            found: manifest.world_size,
            limit: MAX_WORLD_SIZE,
        });
    }
    check_order("files", &manifest.files, |a, b| a.name < b.name)?;
    check_order("tensors", &manifest.tensors, |a, b| {
        (a.role, &a.name) < (b.role, &b.name)
    })?;
    for name in manifest.scalars.keys() {
        check_tensor_name(name)?;
    }
    let mut files = BTreeMap::new();
    for file in &manifest.files {
        check_file(file, manifest.world_size)?;
        files.insert(
            &*file.name,
            FileUse {
                file,
                spans: Vec::new(),
            },
        );
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
        let mut end = self.file.header_bytes;
        for (start, len) in &self.spans {
            if *start != end {
                return Err(FormatError::Data {
                    file: self.file.name.clone(),
                    expected_bytes: end,
                    found_bytes: *start,
                });
            }
            end = start.saturating_add(*len);
        }
        if end == self.file.size_bytes && !self.spans.is_empty() {
            Ok(())
        } else {
            Err(FormatError::Data {
                file: self.file.name.clone(),
                expected_bytes: end,
                found_bytes: self.file.size_bytes,
            })
        }
    }
}

fn check_order<T>(
    list: &'static str,
    items: &[T],
    in_order: impl Fn(&T, &T) -> bool,
) -> Result<(), FormatError> {
    if items.is_sorted_by(in_order) {
        Ok(())
    } else {
        Err(FormatError::Order { list })
    }
}

fn check_file(file: &FileEntry, world_size: u32) -> Result<(), FormatError> {
    // A writer has exactly one choice of name, so a path outside the directory is never accepted.
    if file.rank >= world_size || file.name != shard_file_name(file.role, file.rank, file.number) {
        return Err(FormatError::FileName {
            found: short(&file.name),
        });
    }
    let sane = file
        .header_bytes
        .checked_sub(8)
        .is_some_and(|json_bytes| header_len(&json_bytes.to_le_bytes(), file.size_bytes).is_ok());
    if sane {
        Ok(())
    } else {
        Err(FormatError::HeaderBytes {
            file: file.name.clone(),
            found_bytes: file.header_bytes,
        })
    }
}

/// Checks that the files of a role and rank are numbered from 0 without gaps.
fn check_numbers(files: &[FileEntry]) -> Result<(), FormatError> {
    let mut numbers: BTreeMap<(Role, u32), BTreeSet<u32>> = BTreeMap::new();
    for file in files {
        let of_rank = numbers.entry((file.role, file.rank)).or_default();
        of_rank.insert(file.number);
    }
    let gap = files.iter().find(|file| {
        let of_rank = &numbers[&(file.role, file.rank)];
        file.number as usize >= of_rank.len() || file.number > MAX_FILE_NUMBER
    });
    match gap {
        Some(file) => Err(FormatError::FileName {
            found: short(&file.name),
        }),
        None => Ok(()),
    }
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
    let own = |role, name: &str| {
        tensors
            .binary_search_by(|t| (t.role, &*t.name).cmp(&(role, name)))
            .is_ok()
    };
    let found = tensors.iter().map(|tensor| tensor.tied.len()).sum();
    if found > MAX_TIED_NAMES {
        return Err(FormatError::TiedNames {
            found,
            limit: MAX_TIED_NAMES,
        });
    }
    let mut seen = BTreeSet::new();
    for tensor in tensors {
        check_order("tied names", &tensor.tied, |a, b| a < b)?;
        for name in &tensor.tied {
            check_tensor_name(name)?;
            if own(tensor.role, name) || !seen.insert((tensor.role, name)) {
                return Err(FormatError::Name {
                    name: short(name),
                    reason: "identifies two tensors",
                });
            }
        }
    }
    Ok(())
}

/// Converts a caller's metadata; rejects values that are too large or nested too deeply.
pub(crate) fn metadata(value: &serde_json::Value) -> Result<Json, FormatError> {
    Json::of(value)?.at_most(MAX_METADATA_BYTES)
}

/// Checks that the Hugging Face index exists exactly if that form can describe the checkpoint, and that
/// neither it nor the plan is larger than the maximum size of a manifest, because verification reads both
/// into memory.
fn check_documents(manifest: &Manifest) -> Result<(), FormatError> {
    let plan = match &manifest.plan {
        StoredPlan::File(plan) => Some(plan),
        StoredPlan::None(()) | StoredPlan::Inline(_) => None,
    };
    for document in manifest.index.iter().chain(plan) {
        if document.size_bytes > MAX_MANIFEST_BYTES {
            return Err(FormatError::TooLarge {
                found_bytes: document.size_bytes,
                limit_bytes: MAX_MANIFEST_BYTES,
            });
        }
    }
    let mut parameters = manifest
        .tensors
        .iter()
        .filter(|t| t.role == Role::Model)
        .peekable();
    let expected = parameters.peek().is_some() && parameters.all(|t| t.chunks.len() == 1);
    if expected == manifest.index.is_some() {
        Ok(())
    } else {
        Err(FormatError::Index { expected })
    }
}

#[cfg(test)]
#[path = "tests/validate.rs"]
mod tests;
