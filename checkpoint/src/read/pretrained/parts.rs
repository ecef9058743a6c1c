//! Tensors of plain files, whole or assembled from the parts in several files. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde::Deserialize;
use tinderbox_fake::Region;

use super::files::{MAX_NAMED, OpenedFile};
use crate::error::short;
use crate::{Chunk, HeaderTensor, LoadError, Role, StoredDType, TensorEntry, check_tiling};

/// The entry of a header's metadata in which PyTorch's `HuggingFaceStorageWriter` writes the offset of each part of a file in
/// its tensor, as JSON: `{"w":{"saved_offsets":[4,0]}}`. Source: `torch/distributed/checkpoint/_hf_utils.py` of PyTorch 2.8.
const SHARDING_KEY: &str = "DCP_SHARDING_INFO";

/// The offset of a part in its tensor.
#[derive(Deserialize)]
struct Sharding {
    saved_offsets: Vec<u64>,
}

/// The offsets of the parts of a file, by tensor.
type Offsets = BTreeMap<String, Sharding>;

/// The parts of tensors by name.
type Parts<'a> = BTreeMap<&'a str, Vec<Part<'a>>>;

/// A part of a tensor, with its file.
struct Part<'a> {
    tensor: &'a HeaderTensor,
    offset: Vec<u64>,
    file: &'a OpenedFile,
}

/// Returns the tensors of some files, sorted by name; their chunks have no digests. Errors contain `from`.
pub(super) fn tensors_of(files: &[OpenedFile], from: &Path) -> Result<Vec<TensorEntry>, LoadError> {
    let mut parts = Parts::new();
    for file in files {
        let offsets = offsets_of(file, from)?;
        for tensor in &file.header.tensors {
            let offset = match &offsets {
                None => vec![0; tensor.shape.len()],
                Some(offsets) => {
                    let offset = offsets.get(&tensor.name).map(|of| &of.saved_offsets);
                    let offset = offset.filter(|offset| offset.len() == tensor.shape.len());
                    offset.cloned().ok_or_else(|| LoadError::NoOffsets {
                        path: from.join(&file.name),
                        tensor: short(&tensor.name),
                    })?
                }
            };
            parts.entry(&tensor.name).or_default().push(Part {
                tensor,
                offset,
                file,
            });
        }
    }
    let tied = tied_names(files, &parts);
    let tensors = parts.into_iter().map(|(name, parts)| {
        let mut tensor = joined(name, parts, from)?;
        tensor.tied = tied.get(name).cloned().unwrap_or_default();
        Ok(tensor)
    });
    tensors.collect()
}

/// Returns the offsets of the parts of a file; `None` if the file has whole tensors.
fn offsets_of(file: &OpenedFile, from: &Path) -> Result<Option<Offsets>, LoadError> {
    let mut metadata = file.header.metadata.iter();
    let text = metadata.find(|(key, _)| key == SHARDING_KEY);
    let offsets = text.map(|(_, text)| serde_json::from_str(text)).transpose();
    offsets.map_err(|source| LoadError::Offsets {
        path: from.join(&file.name),
        source,
    })
}

/// Returns, for each tensor, the names that the metadata of its file maps to it.
fn tied_names<'a>(files: &'a [OpenedFile], tensors: &Parts<'_>) -> BTreeMap<&'a str, Vec<String>> {
    let mut tied: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    let mut seen = BTreeSet::new();
    for file in files {
        let own = file.header.tensors.iter().map(|tensor| &tensor.name);
        let own: BTreeSet<&String> = own.collect();
        for (left_out, kept) in &file.header.metadata {
            let is_name = own.contains(kept) && !tensors.contains_key(left_out.as_str());
            if is_name && seen.insert(left_out) {
                tied.entry(kept).or_default().push(left_out.clone());
            }
        }
    }
    tied.values_mut().for_each(|names| names.sort());
    tied
}

/// Assembles a tensor from its parts.
fn joined(name: &str, mut parts: Vec<Part<'_>>, from: &Path) -> Result<TensorEntry, LoadError> {
    let first = &parts[0];
    let kind = |part: &Part<'_>| (part.tensor.dtype, part.tensor.shape.len());
    let (dtype, dimensions): (StoredDType, usize) = kind(first);
    if let Some(other) = parts.iter().find(|part| kind(part) != (dtype, dimensions)) {
        let described = |part: &Part<'_>| {
            let (dtype, dimensions) = kind(part);
            format!("{dtype} with {dimensions} dimensions in {}", part.file.name)
        };
        return Err(LoadError::PartsDiffer {
            path: from.to_owned(),
            tensor: short(name),
            parts: [first, other].map(described),
        });
    }
    // The files do not contain the sizes. The check of the region rejects a sum that overflows.
    let size = |d: usize| {
        let end = |part: &Part<'_>| part.offset[d].saturating_add(part.tensor.shape[d]);
        parts.iter().map(end).max().unwrap_or(0)
    };
    let shape: Vec<u64> = (0..dimensions).map(size).collect();
    // A rank that has no row of a tensor writes a part without elements.
    match shape.contains(&0) {
        true => parts.truncate(1),
        false => parts.retain(|part| part.tensor.len_bytes > 0),
    }
    parts.sort_by(|a, b| a.offset.cmp(&b.offset));
    let names = parts.iter().map(|part| part.file.name.clone());
    let refused = |source| LoadError::Parts {
        path: from.to_owned(),
        tensor: short(name),
        files: names.clone().take(MAX_NAMED).collect(),
        source: Box::new(source),
    };
    let region = |part: &Part<'_>| Region::new(part.offset.clone(), part.tensor.shape.clone());
    let regions: Result<Vec<Region>, _> = parts.iter().map(region).collect();
    let regions = regions.map_err(|source| refused(source.into()))?;
    check_tiling(&shape, &regions.iter().collect::<Vec<_>>()).map_err(refused)?;
    let chunks = regions.into_iter().zip(&parts).map(|(region, part)| Chunk {
        region,
        file: part.file.name.clone(),
        start_bytes: part.file.header.data_start_bytes + part.tensor.start_bytes,
        len_bytes: part.tensor.len_bytes,
        digests: Vec::new(),
    });
    Ok(TensorEntry {
        name: name.to_owned(),
        tied: Vec::new(),
        role: Role::Model,
        dtype,
        chunks: chunks.collect(),
        shape,
    })
}
