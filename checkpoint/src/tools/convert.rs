//! Parameters saved again as a checkpoint: cast, renamed, for any number of ranks.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use burn::tensor::DType;
use regex::Regex;
use tinderbox_deferred::Observer;

use super::{SaveOptions, ToolError, save_tensors};
use crate::read::renamed;
use crate::{Checkpoint, CheckpointMeta, Role, Run, SaveTensor};

/// Options of a conversion.
#[derive(Clone, Debug, Default)]
pub struct ConvertOptions {
    /// The dtype of float parameters, rounded to nearest, ties to even; other parameters are not changed. `None` keeps all.
    pub dtype: Option<DType>,
    /// Renames, one after the other, as in [`LoadOptions::rename`](crate::LoadOptions::rename).
    pub renames: Vec<(Regex, String)>,
    /// How they are saved.
    pub save: SaveOptions,
}

/// Saves the parameters of a checkpoint, or of [files of another program](crate::Pretrained::checkpoint), as a checkpoint; returns
/// the directory of the step. `meta` has the step, the number of ranks, and the seed.
///
/// Layouts do not change: a PyTorch `Linear` stays `[out, in]`, whereas Burn has `[in, out]`
/// ([`LoadOptions::pytorch`](crate::LoadOptions::pytorch) loads it). Files of other programs have no digests, so damage in them is
/// not detected.
///
/// Time: one pass over the files to read and one to write. Memory: a piece of 8 MiB, cast, and a block for each of up to 4
/// threads.
///
/// # Errors
///
/// Returns an error if there are no parameters, two would have one name, a pattern matches none, a finite value would become infinite,
/// the memory limit is too low, the step exists and is not to be replaced or has a state of the optimizer, or an I/O operation fails.
/// Nothing is published then.
pub fn convert(
    from: &Checkpoint,
    to: &Run,
    meta: CheckpointMeta,
    options: &ConvertOptions,
    progress: &dyn Observer,
) -> Result<PathBuf, ToolError> {
    let shared = Arc::new(from.clone());
    let mut names: BTreeMap<String, &str> = BTreeMap::new();
    let mut tensors = Vec::new();
    for entry in from.tensors(Role::Model) {
        let mut tensor = SaveTensor::of_checkpoint(&shared, entry, options.dtype);
        for name in std::iter::once(&mut tensor.name).chain(&mut tensor.tied) {
            *name = renamed(&options.renames, name);
        }
        for (was, name) in std::iter::once(&entry.name)
            .chain(&entry.tied)
            .zip(std::iter::once(&tensor.name).chain(&tensor.tied))
        {
            if let Some(first) = names.insert(name.clone(), was) {
                return Err(ToolError::SameName {
                    first: first.to_owned(),
                    second: was.clone(),
                    name: name.clone(),
                });
            }
        }
        tensors.push(tensor);
    }
    if tensors.is_empty() {
        return Err(ToolError::NoParameters {
            path: from.dir().to_owned(),
        });
    }
    if let Some(pattern) = without_match(from, &options.renames) {
        return Err(ToolError::NoMatch {
            pattern: pattern.as_str().to_owned(),
        });
    }
    save_tensors(&tensors, to, meta, &options.save, progress)
}

/// Returns the first pattern that matches no name, as the renames before it have left them.
fn without_match<'a>(from: &Checkpoint, renames: &'a [(Regex, String)]) -> Option<&'a Regex> {
    let patterns = renames.iter().enumerate();
    let mut unused = patterns.filter(|(at, (pattern, _))| {
        let tensors = from.tensors(Role::Model);
        let mut names =
            tensors.flat_map(|tensor| std::iter::once(&tensor.name).chain(&tensor.tied));
        !names.any(|name| pattern.is_match(&renamed(&renames[..*at], name)))
    });
    unused.next().map(|(_, (pattern, _))| pattern)
}
