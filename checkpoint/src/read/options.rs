//! Options of a load.

use std::collections::{BTreeMap, BTreeSet};

use regex::Regex;
use tinderbox_deferred::ParameterTable;

use super::load::default_threads;
use crate::format::{BATCHES_TRACKED, PyTorchForm, path_in, tracks_batches};

/// The deviations from an exact match that a load allows. The default allows none: missing or extra parameters and other shapes
/// or dtypes cause an error that lists all of them.
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct LoadOptions {
    pub(super) allow_extra: bool,
    pub(super) allow_missing: bool,
    pub(super) allow_other_shapes: bool,
    pub(super) cast: bool,
    pub(super) renames: Vec<(Regex, String)>,
    transposes: Vec<Regex>,
    /// Paths of the model whose weights PyTorch stores transposed.
    transposed: BTreeSet<String>,
    /// Paths of the model by their PyTorch names.
    aliases: BTreeMap<String, String>,
    /// Names that PyTorch saves and Burn does not have.
    pub(super) ignored: BTreeSet<String>,
    threads: Option<usize>,
    /// Whether the weights are a record of Burn.
    pub(super) is_record: bool,
}

impl LoadOptions {
    /// Ignores saved parameters that the model does not have.
    pub fn allow_extra(mut self) -> Self {
        self.allow_extra = true;
        self
    }

    /// Leaves parameters that were not saved to the next source, see [`or_else`](tinderbox_deferred::Source::or_else).
    pub fn allow_missing(mut self) -> Self {
        self.allow_missing = true;
        self
    }

    /// Treats parameters that were saved in another shape as missing.
    pub fn allow_other_shapes(mut self) -> Self {
        self.allow_other_shapes = true;
        self
    }

    /// Casts float types to each other, rounding to nearest, ties to even.
    pub fn cast(mut self) -> Self {
        self.cast = true;
        self
    }

    /// Renames saved tensors: in every name, replaces the first match of the pattern, where `$1` and
    /// `${name}` refer to groups. Multiple renames are applied one after the other.
    pub fn rename(mut self, pattern: Regex, replacement: impl Into<String>) -> Self {
        self.renames.push((pattern, replacement.into()));
        self
    }

    /// Transposes saved two-dimensional tensors whose names match, after all renames: PyTorch stores the weight of a linear
    /// layer as `[out, in]`, Burn as `[in, out]`. [`Self::pytorch`] transposes the weights of `Linear` modules without a
    /// pattern.
    pub fn transpose(mut self, pattern: Regex) -> Self {
        self.transposes.push(pattern);
        self
    }

    /// Converts from PyTorch's layout of the modules of this model: transposes the weight of a `Linear`, and maps `weight` and
    /// `bias` of a `BatchNorm`, `GroupNorm`, `InstanceNorm`, `LayerNorm` or `RmsNorm` to `gamma` and `beta`. Ignores
    /// `num_batches_tracked` of a `BatchNorm`, which Burn does not have. Applies after all renames, so renames only have to map
    /// module names.
    pub fn pytorch(mut self, model: &ParameterTable) -> Self {
        for parameter in model.iter() {
            let path = parameter.path.as_str();
            let (module, name) = (parameter.path.module(), parameter.path.leaf());
            if tracks_batches(parameter.owner(), name) {
                self.ignored.insert(path_in(module, BATCHES_TRACKED));
            }
            let theirs = PyTorchForm::of(parameter.owner(), name);
            if theirs.transposed {
                self.transposed.insert(path.to_owned());
            }
            if theirs.name != name {
                self.aliases
                    .insert(path_in(module, theirs.name), path.to_owned());
            }
        }
        self
    }

    /// Converts from the layout in which Burn's records store the parameters of this model: transposes the weight of a `Linear`
    /// in column layout. Applies after all renames.
    pub fn burn(mut self, model: &ParameterTable) -> Self {
        let transposed = model.iter().filter(|parameter| parameter.saved_transposed);
        let paths = transposed.map(|parameter| parameter.path.as_str().to_owned());
        self.transposed.extend(paths);
        self
    }

    /// Sets the number of reader threads, at least one. The default is the number of cores, at most 8. A load around the
    /// system's cache uses twice the number, because its threads wait for the disk.
    pub fn threads(mut self, threads: usize) -> Self {
        self.threads = Some(threads);
        self
    }

    /// Returns the number of reader threads.
    pub(super) fn reader_threads(&self) -> usize {
        self.threads.unwrap_or_else(default_threads)
    }

    /// Returns whether the load transposes a saved tensor of this name and shape.
    pub(super) fn transposed(&self, name: &str, shape: &[u64]) -> bool {
        shape.len() == 2
            && (self.transposed.contains(name)
                || self.transposes.iter().any(|pattern| pattern.is_match(name)))
    }

    /// Returns the name of a saved tensor after all renames.
    pub(super) fn renamed(&self, name: &str) -> String {
        let name = renamed(&self.renames, name);
        self.aliases.get(&name).cloned().unwrap_or(name)
    }
}

/// Returns a name after all renames, one after the other.
pub(crate) fn renamed(renames: &[(Regex, String)], name: &str) -> String {
    let renames = renames.iter();
    renames.fold(name.to_owned(), |name, (pattern, replacement)| {
        pattern.replace(&name, replacement).into_owned()
    })
}
