//! Merging of the parts of all ranks to one manifest. Pure.

use std::collections::{BTreeMap, btree_map::Entry};

use crate::{
    FormatError, LayoutError, SaveError,
    format::{Manifest, Part, Role, TensorEntry},
    layout::check_tiling,
};

/// A tensor of the merged parts, with the rank of each of its chunks.
struct Gathered {
    entry: TensorEntry,
    ranks: Vec<u32>,
}

/// Merges the parts of all ranks, without index and plan, and validates that every tensor is complete, with
/// each element once.
///
/// # Errors
///
/// Returns an error if two ranks save the same elements or disagree, or if elements are missing.
pub(super) fn merge(parts: Vec<Part>, manifest: &mut Manifest) -> Result<(), SaveError> {
    let mut tensors: BTreeMap<(Role, String), Gathered> = BTreeMap::new();
    let mut scalar_ranks: BTreeMap<String, u32> = BTreeMap::new();
    for part in parts {
        let rank = part.rank;
        manifest.files.extend(part.files);
        for tensor in part.tensors {
            match tensors.entry((tensor.role, tensor.name.clone())) {
                Entry::Occupied(known) => known.into_mut().add(tensor, rank)?,
                Entry::Vacant(place) => {
                    let ranks = vec![rank; tensor.chunks.len()];
                    let entry = tensor;
                    place.insert(Gathered { entry, ranks });
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
    let tensors = tensors.into_values().map(finish);
    manifest.tensors = tensors.collect::<Result<_, _>>()?;
    Ok(())
}

impl Gathered {
    /// Adds the chunks that another rank saves.
    fn add(&mut self, tensor: TensorEntry, rank: u32) -> Result<(), SaveError> {
        let known = &mut self.entry;
        if known.tied != tensor.tied {
            return Err(SaveError::TiedNames {
                tensor: tensor.name,
                rank,
                expected: known.tied.clone(),
                found: tensor.tied,
            });
        }
        if known.dtype != tensor.dtype || known.shape != tensor.shape {
            return Err(SaveError::Disagree {
                tensor: tensor.name,
                rank,
                expected_dtype: known.dtype,
                expected: known.shape.clone(),
                found_dtype: tensor.dtype,
                found: tensor.shape,
            });
        }
        known.chunks.extend(tensor.chunks);
        self.ranks.resize(known.chunks.len(), rank);
        Ok(())
    }
}

/// Validates the tiling of one tensor and sorts its chunks.
fn finish(gathered: Gathered) -> Result<TensorEntry, SaveError> {
    let Gathered { mut entry, ranks } = gathered;
    let regions: Vec<_> = entry.chunks.iter().map(|c| &c.region).collect();
    check_tiling(&entry.shape, &regions).map_err(|error| match error {
        LayoutError::Overlap {
            first,
            second,
            region,
        } => SaveError::SavedTwice {
            tensor: entry.name.clone(),
            region,
            first_rank: ranks[first],
            second_rank: ranks[second],
        },
        source => SaveError::Meta(FormatError::Layout {
            tensor: entry.name.clone(),
            source: Box::new(source),
        }),
    })?;
    entry.chunks.sort_by(|a, b| a.region.cmp(&b.region));
    Ok(entry)
}
