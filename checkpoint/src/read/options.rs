//! What a load allows.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use regex::Regex;
use tinderbox_deferred::ParameterTable;

use super::load::default_threads;
use crate::Progress;

/// Burn's modules whose `gamma` and `beta` are PyTorch's `weight` and `bias`.
const NORMS: [&str; 5] = [
    "BatchNorm",
    "GroupNorm",
    "InstanceNorm",
    "LayerNorm",
    "RmsNorm",
];

/// What a load allows beyond an exact fit. By default nothing: a parameter that is missing, an extra
/// one, another shape or dtype is an error that lists all of them.
#[derive(Clone, derive_more::Debug)]
pub struct LoadOptions {
    pub(super) allow_extra: bool,
    pub(super) allow_missing: bool,
    pub(super) allow_shape: bool,
    pub(super) cast: bool,
    pub(super) renames: Vec<(Regex, String)>,
    transposes: Vec<Regex>,
    /// Paths of the model whose weights PyTorch keeps transposed.
    transposed: BTreeSet<String>,
    /// Paths of the model by the names that PyTorch has for them.
    aliases: BTreeMap<String, String>,
    /// Names of what PyTorch saves and Burn has not.
    ignored: BTreeSet<String>,
    pub(super) threads: usize,
    #[debug(skip)]
    pub(super) progress: Arc<dyn Progress>,
}

impl Default for LoadOptions {
    fn default() -> Self {
        Self {
            allow_extra: false,
            allow_missing: false,
            allow_shape: false,
            cast: false,
            renames: Vec::new(),
            transposes: Vec::new(),
            transposed: BTreeSet::new(),
            aliases: BTreeMap::new(),
            ignored: BTreeSet::new(),
            threads: default_threads(),
            progress: Arc::new(()),
        }
    }
}

impl LoadOptions {
    /// Saved parameters that the model does not have are left alone.
    #[must_use]
    pub fn allow_extra(self) -> Self {
        Self {
            allow_extra: true,
            ..self
        }
    }

    /// Parameters that were not saved come from elsewhere: from the source after this one,
    /// see [`or_else`](tinderbox_deferred::Source::or_else).
    #[must_use]
    pub fn allow_missing(self) -> Self {
        Self {
            allow_missing: true,
            ..self
        }
    }

    /// Parameters that were saved in another shape count as missing.
    #[must_use]
    pub fn allow_shape(self) -> Self {
        Self {
            allow_shape: true,
            ..self
        }
    }

    /// Float types are cast to each other, rounded to the nearest, ties to even.
    #[must_use]
    pub fn cast(self) -> Self {
        Self { cast: true, ..self }
    }

    /// Renames what was saved: in every name, the first match of the pattern becomes the replacement,
    /// where `$1` and `${name}` are groups. Several are done one after the other.
    #[must_use]
    pub fn rename(mut self, pattern: Regex, replacement: impl Into<String>) -> Self {
        self.renames.push((pattern, replacement.into()));
        self
    }

    /// Transposes what was saved with two dimensions under a name that matches, after all renames: PyTorch
    /// keeps the weight of a linear layer as `[out, in]`, Burn as `[in, out]`. [`Self::pytorch`] finds these by
    /// itself.
    #[must_use]
    pub fn transpose(mut self, pattern: Regex) -> Self {
        self.transposes.push(pattern);
        self
    }

    /// Takes what was saved for PyTorch's layout of the modules of this model: the weight of a `Linear` is
    /// transposed, and `weight` and `bias` of a `BatchNorm`, `GroupNorm`, `InstanceNorm`, `LayerNorm` or
    /// `RmsNorm` become `gamma` and `beta`. The `num_batches_tracked` of a `BatchNorm`, which Burn does not
    /// count, is no extra parameter. Comes after all renames, so those give the names of modules only.
    #[must_use]
    pub fn pytorch(mut self, model: &ParameterTable) -> Self {
        for parameter in model.iter() {
            let path = parameter.path.as_str();
            let (module, name) = path.rsplit_once('.').unwrap_or(("", path));
            let sibling = |name: &str| match module {
                "" => name.to_owned(),
                _ => format!("{module}.{name}"),
            };
            if parameter.owner() == "BatchNorm" {
                self.ignored.insert(sibling("num_batches_tracked"));
            }
            let theirs = match (parameter.owner(), name) {
                ("Linear", "weight") => {
                    self.transposed.insert(path.to_owned());
                    continue;
                }
                (owner, "gamma") if NORMS.contains(&owner) => "weight",
                (owner, "beta") if NORMS.contains(&owner) => "bias",
                _ => continue,
            };
            self.aliases.insert(sibling(theirs), path.to_owned());
        }
        self
    }

    /// Reads on so many threads; the number of cores, up to 8, unless chosen.
    #[must_use]
    pub fn threads(self, threads: usize) -> Self {
        Self { threads, ..self }
    }

    /// Reports how far a load is.
    #[must_use]
    pub fn progress(self, progress: Arc<dyn Progress>) -> Self {
        Self { progress, ..self }
    }

    /// Whether a saved tensor of this shape is transposed under this name.
    pub(super) fn transposed(&self, name: &str, shape: &[u64]) -> bool {
        shape.len() == 2
            && (self.transposed.contains(name)
                || self.transposes.iter().any(|pattern| pattern.is_match(name)))
    }

    /// Whether no model has something of this name.
    pub(super) fn is_ignored(&self, name: &str) -> bool {
        self.ignored.contains(name)
    }

    /// The name of a saved tensor after all renames.
    pub(super) fn renamed(&self, name: &str) -> String {
        let mut name = name.to_owned();
        for (pattern, replacement) in &self.renames {
            name = pattern.replace(&name, replacement).into_owned();
        }
        self.aliases.get(&name).cloned().unwrap_or(name)
    }
}
