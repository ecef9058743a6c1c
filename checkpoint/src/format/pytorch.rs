//! Names and layouts of other libraries: PyTorch's names and layouts of the parameters of Burn's modules, and the Hugging Face
//! index of a sharded model.

use std::collections::BTreeMap;

use serde_json::json;

use crate::FormatError;

/// The name of the number of batches that a batch norm of PyTorch has seen, a scalar of type I64. Burn has no such value.
pub(crate) const BATCHES_TRACKED: &str = "num_batches_tracked";

/// The form in which PyTorch stores a parameter of a Burn module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PyTorchForm<'a> {
    /// The name in the module.
    pub(crate) name: &'a str,
    /// Whether the two dimensions of a matrix are swapped.
    pub(crate) transposed: bool,
}

impl<'a> PyTorchForm<'a> {
    /// Returns the form of the parameter of this name in a module of this type.
    pub(crate) fn of(module_type: &str, name: &'a str) -> Self {
        let is_norm = matches!(
            module_type,
            "BatchNorm" | "GroupNorm" | "InstanceNorm" | "LayerNorm" | "RmsNorm"
        );
        let name = match name {
            "gamma" if is_norm => "weight",
            "beta" if is_norm => "bias",
            name => name,
        };
        Self {
            name,
            transposed: (module_type, name) == ("Linear", "weight"),
        }
    }
}

/// Returns whether PyTorch has a number of batches next to this parameter.
pub(crate) fn tracks_batches(module_type: &str, name: &str) -> bool {
    (module_type, name) == ("BatchNorm", "running_mean")
}

/// Returns the path of a parameter in a module.
pub(crate) fn path_in(module: &str, name: &str) -> String {
    match module {
        "" => name.to_owned(),
        _ => format!("{module}.{name}"),
    }
}

/// Encodes `model.safetensors.index.json` from the name, the file and the size of each parameter.
pub(crate) fn encode_index<'a>(
    parameters: impl IntoIterator<Item = (&'a str, &'a str, u64)>,
) -> Result<Vec<u8>, FormatError> {
    let mut weight_map = BTreeMap::new();
    let mut total_size = 0u64;
    for (name, file, len_bytes) in parameters {
        total_size = total_size.saturating_add(len_bytes);
        weight_map.insert(name, file);
    }
    let index = json!({"metadata": {"total_size": total_size}, "weight_map": weight_map});
    let mut bytes = serde_json::to_vec_pretty(&index)?;
    bytes.push(b'\n');
    Ok(bytes)
}
