//! The tensors of a checkpoint, and their table: a tree of modules, in which equal elements of a list are one row.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use tinderbox_checkpoint::tools::split_state_name;
use tinderbox_checkpoint::{Checkpoint, ModuleTypes, Role, StoredDType};
use tinderbox_deferred::human_bytes;
use tinderbox_ids::text::count_text;

/// The columns of the rows.
pub(super) const COLUMNS: [&str; 6] = ["module", "type", "dtype", "shape", "ranks", "bytes"];

/// The output for a tensor.
#[derive(Serialize)]
pub(super) struct Tensor<'a> {
    pub(super) name: &'a str,
    pub(super) tied: &'a [String],
    pub(super) role: Role,
    pub(super) dtype: StoredDType,
    pub(super) shape: &'a [u64],
    pub(super) chunks: usize,
    pub(super) ranks: BTreeSet<u32>,
    pub(super) bytes: u64,
}

impl Tensor<'_> {
    /// Returns the name of its dtype, as in the arguments of other commands.
    pub(super) fn dtype_name(&self) -> String {
        self.dtype.name().to_lowercase()
    }

    pub(super) fn elements(&self) -> u64 {
        self.shape.iter().product()
    }
}

/// Compares what the same parameter of two equal layers has in common, without names, ranks and values.
impl PartialEq for Tensor<'_> {
    fn eq(&self, other: &Self) -> bool {
        let form = |tensor: &Self| (tensor.dtype, tensor.shape, tensor.tied.len());
        form(self) == form(other)
    }
}

/// Formats ranks as `0-3,5`.
pub(super) fn ranges(ranks: &BTreeSet<u32>) -> String {
    let ranks: Vec<u32> = ranks.iter().copied().collect();
    let ranges = ranks.chunk_by(|rank, next| rank + 1 == *next);
    let texts = ranges.map(|range| match range {
        [first, .., last] => format!("{first}-{last}"),
        _ => range[0].to_string(),
    });
    texts.collect::<Vec<_>>().join(",")
}

/// The name of an entry of a module. The elements of a list are in the order of their numbers.
type Key<'a> = (Option<u64>, &'a str);

/// A module, a tensor, or both. Equal layers of a model are equal.
#[derive(Default, PartialEq)]
struct Node<'a> {
    module_type: Option<&'a str>,
    tensor: Option<&'a Tensor<'a>>,
    entries: BTreeMap<Key<'a>, Node<'a>>,
}

/// Returns a row for each module and parameter, and for each field of the optimizer's state.
pub(super) fn rows(tensors: &[Tensor<'_>], checkpoint: &Checkpoint) -> Vec<Vec<String>> {
    let types = checkpoint.manifest().modules();
    let mut model = Node::default();
    let parameters = tensors.iter().filter(|tensor| tensor.role == Role::Model);
    for tensor in parameters {
        model.insert(tensor, &types);
    }
    let mut rows = Vec::new();
    add_contents(&[&model], 0, &mut rows);
    add_states(tensors, checkpoint, &mut rows);
    rows
}

impl<'a> Node<'a> {
    /// Adds a tensor at any depth.
    fn insert(&mut self, tensor: &'a Tensor<'a>, types: &'a ModuleTypes) {
        let (mut node, mut end) = (self, 0);
        for name in tensor.name.split('.') {
            end += name.len();
            node = node.entries.entry((name.parse().ok(), name)).or_default();
            node.module_type = types.get(&tensor.name[..end]);
            // The dot.
            end += 1;
        }
        node.tensor = Some(tensor);
    }

    /// Returns the tensor in this module if the module contains nothing else.
    fn only_tensor(&self) -> Option<&Key<'a>> {
        let (name, only) = self.entries.first_key_value()?;
        let is_only = self.tensor.is_none() && self.entries.len() == 1 && only.entries.is_empty();
        is_only.then_some(name)
    }

    /// Returns the tensors at any depth.
    fn tensors(&self) -> Vec<&'a Tensor<'a>> {
        let inner = self.entries.values().flat_map(Self::tensors);
        self.tensor.into_iter().chain(inner).collect()
    }
}

/// Adds the rows of the contents of a module, or of several modules that are alike.
fn add_contents(modules: &[&Node<'_>], depth: usize, rows: &mut Vec<Vec<String>>) {
    let entries: Vec<_> = modules[0].entries.iter().collect();
    let indent = 2 * depth;
    for group in entries.chunk_by(|(name, one), (next_name, next)| {
        name.0.is_some() && next_name.0.is_some() && one == next
    }) {
        let (first, node) = group[0];
        let mut name = format!("{:indent$}{}", "", first.1);
        let mut kind = node.module_type.unwrap_or_default().to_owned();
        let mut dot = ".";
        if let [_, .., (last, _)] = group {
            name += &format!(" .. {}, each", last.1);
            kind = match node.module_type {
                Some(kind) => format!("{} x {kind}", group.len()),
                None if node.tensor.is_some() => count_text(group.len(), "tensor"),
                None => count_text(group.len(), "module"),
            };
            dot = " ";
        }
        // The nodes that this row shows.
        let mut shown: Vec<&Node<'_>> = Vec::new();
        for module in modules {
            shown.extend(group.iter().map(|(name, _)| &module.entries[*name]));
        }
        if let Some(only) = node.only_tensor() {
            name += &format!("{dot}{}", only.1);
            shown = shown.iter().map(|module| &module.entries[only]).collect();
        }
        rows.push(row(name, kind, &shown));
        add_contents(&shown, depth + 1, rows);
    }
}

/// Returns the row of equal nodes: the bytes of one of them, and the ranks of all.
fn row(name: String, kind: String, shown: &[&Node<'_>]) -> Vec<String> {
    let bytes = shown[0].tensors().iter().map(|tensor| tensor.bytes).sum();
    let all = shown.iter().flat_map(|node| node.tensors());
    let ranks = all.flat_map(|tensor| tensor.ranks.iter().copied());
    let form = shown[0].tensor;
    let dtype = form.map_or_else(String::new, Tensor::dtype_name);
    let shape = form.map_or_else(String::new, |tensor| format!("{:?}", tensor.shape));
    let (ranks, bytes) = (ranges(&ranks.collect()), human_bytes(bytes));
    vec![name, kind, dtype, shape, ranks, bytes]
}

/// Adds a row for each field of the optimizer's state, such as `optimizer.*.moment_1`, with the bytes of all tensors.
fn add_states(tensors: &[Tensor<'_>], checkpoint: &Checkpoint, rows: &mut Vec<Vec<String>>) {
    let is_parameter = |path: &str| checkpoint.tensor(Role::Model, path).is_some();
    let mut fields: BTreeMap<&str, Vec<&Tensor<'_>>> = BTreeMap::new();
    for state in tensors.iter().filter(|tensor| tensor.role == Role::State) {
        let split = split_state_name(state.name, is_parameter);
        let field = split.map_or(state.name, |(_, field)| field);
        fields.entry(field).or_default().push(state);
    }
    for (field, states) in fields {
        let dtypes: BTreeSet<String> = states.iter().map(|state| state.dtype_name()).collect();
        let dtypes = dtypes.into_iter().collect::<Vec<_>>().join(", ");
        let ranks = states.iter().flat_map(|state| state.ranks.iter().copied());
        let bytes: u64 = states.iter().map(|state| state.bytes).sum();
        let (name, kind, shape) = match &states[..] {
            [only] => {
                let shape = format!("{:?}", only.shape);
                (only.name.to_owned(), String::new(), shape)
            }
            _ => {
                let count = count_text(states.len(), "tensor");
                (format!("optimizer.*.{field}"), count, String::new())
            }
        };
        let (ranks, bytes) = (ranges(&ranks.collect()), human_bytes(bytes));
        rows.push(vec![name, kind, dtypes, shape, ranks, bytes]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_shown_as_ranges() {
        for (ranks, expected) in [
            (&[][..], ""),
            (&[3], "3"),
            (&[0, 1, 2], "0-2"),
            (&[0, 2, 3, 5], "0,2-3,5"),
        ] {
            assert_eq!(ranges(&ranks.iter().copied().collect()), expected);
        }
    }
}
