//! Bitwise comparison of parameters with the file, which is read by its specification alone.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use tinderbox::deferred::parameter_values;
use tinderbox::{DynTensor, ParameterPath, Pretrained};
use tinderbox_models::minilm::Bert;

/// Compares every parameter with the file, and returns the names of the file's other tensors.
pub fn as_in_file(encoder: &Bert, weights: &Pretrained, path: &Path) -> Result<Vec<String>> {
    let path = match path.is_dir() {
        true => path.join("model.safetensors"),
        false => path.to_owned(),
    };
    let file = File::read(&path).with_context(|| format!("reading {}", path.display()))?;
    let mut unused: BTreeSet<String> = weights.tensors().map(|t| t.name.clone()).collect();
    for (path, value) in parameter_values(encoder) {
        let name = name_in_file(path.as_str());
        let (bytes, shape) = file.tensor(&name)?;
        let value = value.to_data()?;
        let linear = [
            ".query.weight",
            ".key.weight",
            ".value.weight",
            ".dense.weight",
        ];
        let expected = match linear.iter().any(|end| name.ends_with(end)) {
            true => transposed(bytes, &shape),
            false => bytes.to_vec(),
        };
        ensure!(
            value.as_bytes() == expected,
            "`{path}` differs from the file"
        );
        unused.remove(&name);
    }
    Ok(unused.into_iter().collect())
}

/// A file of safetensors.
struct File {
    header: Value,
    /// The bytes after the header.
    bytes: Vec<u8>,
}

impl File {
    fn read(path: &Path) -> Result<Self> {
        let mut bytes = std::fs::read(path)?;
        let (length, rest) = bytes.split_first_chunk().context("no header")?;
        let length = usize::try_from(u64::from_le_bytes(*length))?;
        let header = rest.get(..length).context("the header is cut off")?;
        let header = serde_json::from_slice(header)?;
        bytes.drain(..size_of::<u64>() + length);
        Ok(Self { header, bytes })
    }

    /// Returns the bytes and the shape of a tensor.
    fn tensor(&self, name: &str) -> Result<(&[u8], Vec<usize>)> {
        let entry = self.header.get(name);
        let entry = entry.with_context(|| format!("no `{name}`"))?;
        let shape = serde_json::from_value(entry["shape"].clone())?;
        let (start, end): (usize, usize) = serde_json::from_value(entry["data_offsets"].clone())?;
        let bytes = self.bytes.get(start..end);
        Ok((
            bytes.with_context(|| format!("`{name}` is cut off"))?,
            shape,
        ))
    }
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
