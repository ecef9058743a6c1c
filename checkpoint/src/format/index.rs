//! The Hugging Face index of a sharded model.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::FormatError;

/// Encodes `model.safetensors.index.json` from the name, the file and the size of each parameter.
pub(crate) fn encode_index<'a>(
    parameters: impl IntoIterator<Item = (&'a str, &'a str, u64)>,
) -> Result<Vec<u8>, FormatError> {
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
    for (name, file, len_bytes) in parameters {
        total_size = total_size.saturating_add(len_bytes);
        weight_map.insert(name, file);
    }
    let index = Index {
        metadata: Metadata { total_size },
        weight_map,
    };
    let mut bytes =
        serde_json::to_vec_pretty(&index).map_err(|source| FormatError::Json { source })?;
    bytes.push(b'\n');
    Ok(bytes)
}
