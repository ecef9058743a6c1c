//! Merging of the parts of all ranks to one manifest. Pure.

use std::collections::{BTreeMap, btree_map::Entry};

use crate::format::{FileEntry, Manifest, Part, Role, TensorEntry};
use crate::layout::check_tiling;
use crate::{FormatError, LayoutError, SaveError};

/// Merges the parts of all ranks, without index and plan, and validates that every tensor is complete, with
/// each element once.
///
/// # Errors
///
/// Returns an error if two ranks save the same elements or disagree, or if elements are missing.
pub(super) fn merge(parts: Vec<Part>, manifest: &mut Manifest) -> Result<(), SaveError> {
    let mut tensors: BTreeMap<(Role, String), TensorEntry> = BTreeMap::new();
    let mut scalar_ranks: BTreeMap<String, u32> = BTreeMap::new();
    for part in parts {
        let rank = part.rank;
        manifest.files.extend(part.files);
        for tensor in part.tensors {
            match tensors.entry((tensor.role, tensor.name.clone())) {
                Entry::Occupied(known) => add(known.into_mut(), tensor, rank)?,
                Entry::Vacant(place) => {
                    place.insert(tensor);
                }
            }
        }
        for (scalar, value) in part.scalars {
            if let Some(first_rank) = scalar_ranks.insert(scalar.clone(), rank) {
                return Err(SaveError::ScalarTwice {
                    scalar,
                    first_rank,
                    second_rank: rank,
                });
            }
            manifest.scalars.insert(scalar, value);
        }
    }
    manifest.files.sort_by(|a, b| a.name.cmp(&b.name));
    let files = &manifest.files;
    let tensors = tensors.into_values().map(|tensor| finish(tensor, files));
    manifest.tensors = tensors.collect::<Result<_, _>>()?;
    Ok(())
}

/// Adds the chunks of a tensor that another rank saves.
fn add(known: &mut TensorEntry, tensor: TensorEntry, rank: u32) -> Result<(), SaveError> {
    let other = (tensor.dtype, &tensor.shape, &tensor.tied);
    if (known.dtype, &known.shape, &known.tied) != other {
        return Err(SaveError::Disagree {
            expected: form(known),
            found: form(&tensor),
            tensor: tensor.name,
            rank,
        });
    }
    known.chunks.extend(tensor.chunks);
    Ok(())
}

/// Describes the properties of a tensor that are the same on all ranks.
fn form(tensor: &TensorEntry) -> String {
    let form = format!("{} of shape {:?}", tensor.dtype, tensor.shape);
    match tensor.tied.is_empty() {
        true => form,
        false => format!("{form} with tied names {:?}", tensor.tied),
    }
}

/// Validates the tiling of one tensor and sorts its chunks.
fn finish(mut entry: TensorEntry, files: &[FileEntry]) -> Result<TensorEntry, SaveError> {
    let rank_of = |chunk: usize| {
        let file = &entry.chunks[chunk].file;
        // The validation of the manifest rejects a chunk in another file.
        files
            .iter()
            .find(|listed| listed.name == *file)
            .map_or(0, |listed| listed.rank)
    };
    let regions: Vec<_> = entry.chunks.iter().map(|c| &c.region).collect();
    check_tiling(&entry.shape, &regions).map_err(|error| match error {
        LayoutError::Overlap {
            first,
            second,
            region,
        } => SaveError::SavedTwice {
            tensor: entry.name.clone(),
            region,
            first_rank: rank_of(first),
            second_rank: rank_of(second),
        },
        source => SaveError::Meta(FormatError::Layout {
            tensor: entry.name.clone(),
            source: Box::new(source),
        }),
    })?;
    entry.chunks.sort_by(|a, b| a.region.cmp(&b.region));
    Ok(entry)
}
