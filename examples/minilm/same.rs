//! Bitwise comparison of parameters with the file, read by another library.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::{Context, Result, ensure};
use safetensors::SafeTensors;
use tinderbox::{DynTensor, ParameterPath, Pretrained, parameter_values};

use crate::model::Bert;

/// Compares every parameter with the file, and returns the names of the file's other tensors.
pub fn as_in_file(encoder: &Bert, weights: &Pretrained, path: &Path) -> Result<Vec<String>> {
    let path = match path.is_dir() {
        true => path.join("model.safetensors"),
        false => path.to_owned(),
    };
    let bytes = std::fs::read(&path).with_context(|| format!("reading {}", path.display()))?;
    let file = SafeTensors::deserialize(&bytes)?;
    let mut unused: BTreeSet<String> = weights.tensors().map(|t| t.name.clone()).collect();
    for (path, value) in parameter_values(encoder) {
        let name = name_in_file(path.as_str());
        let view = file.tensor(&name)?;
        let value = value.to_data()?;
        let linear = [
            ".query.weight",
            ".key.weight",
            ".value.weight",
            ".dense.weight",
        ];
        let expected = match linear.iter().any(|end| name.ends_with(end)) {
            true => transposed(view.data(), view.shape()),
            false => view.data().to_vec(),
        };
        ensure!(
            value.as_bytes() == expected,
            "`{path}` differs from the file"
        );
        unused.remove(&name);
    }
    Ok(unused.into_iter().collect())
}

/// Returns the name of a parameter in the file.
fn name_in_file(path: &str) -> String {
    path.replace(".self_attention.", ".self.")
        .replace(".layer_norm.gamma", ".LayerNorm.weight")
        .replace(".layer_norm.beta", ".LayerNorm.bias")
}

/// Transposes a matrix of 4-byte elements.
fn transposed(bytes: &[u8], shape: &[usize]) -> Vec<u8> {
    let (rows, columns) = (shape[0], shape[1]);
    let element = |row: usize, column: usize| &bytes[(row * columns + column) * 4..][..4];
    let columns = 0..columns;
    columns
        .flat_map(|column| (0..rows).flat_map(move |row| element(row, column).iter().copied()))
        .collect()
}

/// Compares two sets of parameters.
pub fn parameters(
    first: &[(ParameterPath, DynTensor)],
    second: &[(ParameterPath, DynTensor)],
) -> Result<()> {
    let second: BTreeMap<_, _> = second.iter().map(|(path, value)| (path, value)).collect();
    ensure!(first.len() == second.len(), "the sets of parameters differ");
    for (path, value) in first {
        let other = second.get(path).with_context(|| format!("no `{path}`"))?;
        ensure!(value.to_data()? == other.to_data()?, "`{path}` differs");
    }
    Ok(())
}
