//! The Hugging Face index of a sharded model.

use std::collections::BTreeMap;

use serde::Serialize;

use super::{Role, TensorEntry};
use crate::FormatError;

/// The bytes of `model.safetensors.index.json`; `None` when there is no parameter, or one in several
/// chunks: that form has no word for a part of a tensor.
pub(crate) fn encode_index(tensors: &[TensorEntry]) -> Result<Option<Vec<u8>>, FormatError> {
    #[derive(Serialize)]
    struct Index<'a> {
        metadata: Metadata,
        weight_map: BTreeMap<&'a str, &'a str>,
    }
    #[derive(Serialize)]
    struct Metadata {
        total_size: u64,
    }
    let mut weight_map = BTreeMap::new();
    let mut total_size = 0u64;
    for tensor in tensors.iter().filter(|t| t.role == Role::Model) {
        let [chunk] = &tensor.chunks[..] else {
            return Ok(None);
        };
        total_size = total_size.saturating_add(chunk.len_bytes);
        weight_map.insert(&*tensor.name, &*chunk.file);
    }
    if weight_map.is_empty() {
        return Ok(None);
    }
    let index = Index {
        metadata: Metadata { total_size },
        weight_map,
    };
    let mut bytes =
        serde_json::to_vec_pretty(&index).map_err(|source| FormatError::Json { source })?;
    bytes.push(b'\n');
    Ok(Some(bytes))
}
