//! Lookups of paths that a user wrote, with suggestions for a path that no parameter has.

use std::collections::BTreeSet;

use tinderbox_ids::text::count_text;

use super::{Parameter, ParameterTable};
use crate::ParameterPath;
use crate::error::listed;

/// The number of paths in an error.
const SHOWN: usize = 3;

/// An error of looking up a path.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum UnknownPath {
    /// Nothing is at the path.
    #[error("the model has no parameter `{path}`{}", did_you_mean(near))]
    Nothing {
        /// The path.
        path: String,
        /// The nearest existing paths, the nearest first.
        near: Vec<ParameterPath>,
    },
    /// A module is at the path.
    #[error(
        "{} is a module of {}: {}", module(path), count_text(*count, "parameter"),
        listed(quoted(parameters), count - parameters.len())
    )]
    Module {
        /// The path.
        path: String,
        /// Number of parameters at and below it.
        count: usize,
        /// The first of these parameters.
        parameters: Vec<ParameterPath>,
    },
}

fn did_you_mean(near: &[ParameterPath]) -> String {
    let listed = listed(quoted(near), 0);
    match near.len() {
        0 => ": it has no parameters".into(),
        1 => format!(": the nearest is {listed}"),
        _ => format!(": the nearest are {listed}"),
    }
}

fn module(path: &str) -> String {
    match path {
        "" => "the empty path".into(),
        path => format!("`{path}`"),
    }
}

fn quoted(paths: &[ParameterPath]) -> impl Iterator<Item = String> {
    paths.iter().map(|path| format!("`{path}`"))
}

impl ParameterTable {
    /// Returns the parameter at a path, or an error with suggestions.
    ///
    /// # Errors
    ///
    /// When there is no such parameter: the error names the nearest existing paths, or the parameters of the
    /// module at the path.
    pub fn find(&self, path: &str) -> Result<&Parameter, UnknownPath> {
        self.at(path).ok_or_else(|| self.unknown(path))
    }

    fn unknown(&self, path: &str) -> UnknownPath {
        let inside = self.iter().filter(|p| p.path.is_under(path));
        let mut parameters: Vec<ParameterPath> = inside.map(|p| p.path.clone()).collect();
        let count = parameters.len();
        parameters.truncate(SHOWN);
        let path = path.to_owned();
        if count == 0 {
            let near = self.near(&path);
            return UnknownPath::Nothing { path, near };
        }
        UnknownPath::Module {
            path,
            count,
            parameters,
        }
    }

    /// Returns the paths of parameters that are most similar to an unknown one, the nearest first, for error
    /// messages. Cost: an edit distance to every path.
    pub fn near(&self, path: &str) -> Vec<ParameterPath> {
        let paths = self.iter().map(|parameter| parameter.path.as_str());
        let nearest = nearest(path, paths).into_iter();
        nearest.map(ParameterPath::new).collect()
    }

    /// Returns the paths of modules with parameters that are most similar to an unknown one, the nearest first,
    /// for error messages. Cost: an edit distance to every module's path.
    pub fn near_modules(&self, path: &str) -> Vec<String> {
        let mut modules = BTreeSet::new();
        for parameter in self {
            let mut module = parameter.path.module();
            while !module.is_empty() && modules.insert(module) {
                module = module.rsplit_once('.').map_or("", |(outer, _)| outer);
            }
        }
        let nearest = nearest(path, modules.into_iter()).into_iter();
        nearest.map(str::to_owned).collect()
    }
}

/// Returns the candidates that are most similar to a path: few typing errors, a common prefix, and the same
/// indices, since `layers.4.weight` is hardly meant by `layers.3.weigth`.
fn nearest<'a>(path: &str, candidates: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let ranked = candidates.map(|candidate| (far(path, candidate), candidate));
    let mut ranked: Vec<_> = ranked.collect();
    ranked.sort_by_key(|(far, _)| *far);
    ranked.truncate(SHOWN);
    let best = ranked.first().map_or(0, |((slips, _), _)| *slips);
    ranked.retain(|((slips, _), _)| *slips < best + OTHER_INDEX);
    ranked.into_iter().map(|(_, path)| path).collect()
}

/// The number of typing errors that a different index is equivalent to.
const OTHER_INDEX: i64 = 8;
/// The number of typing errors that a common component compensates.
const COMMON_COMPONENT: i64 = 2;

/// Returns the distance of two paths: typing errors, and the difference of their first different indices.
fn far(path: &str, candidate: &str) -> (i64, u64) {
    // A transposition is one error, not two.
    let slips = strsim::osa_distance(path, candidate) as i64;
    let mut pairs = path.split('.').zip(candidate.split('.'));
    let mut common = 0;
    let other = pairs.find(|(a, b)| {
        common += i64::from(a == b);
        a != b
    });
    let gap = other.and_then(|(a, b)| Some(a.parse::<u64>().ok()?.abs_diff(b.parse().ok()?)));
    let slips = slips - COMMON_COMPONENT * common;
    gap.map_or((slips, 0), |gap| (slips + OTHER_INDEX, gap))
}
