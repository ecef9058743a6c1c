//! What may have been meant by a path that no parameter has.

use std::collections::BTreeSet;

use super::ParameterTable;
use crate::ParameterPath;

/// Number of paths that an error names.
const SHOWN: usize = 3;

/// Why a path names no parameter.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum UnknownPath {
    /// Nothing stands there.
    #[error("the model has no parameter `{path}`{}", did_you_mean(near))]
    Nothing {
        /// The path.
        path: String,
        /// The nearest existing ones, the nearest first.
        near: Vec<ParameterPath>,
    },
    /// A module stands there.
    #[error("{} is a module of {}", module(path), parameters_of_module(*count, parameters))]
    Module {
        /// The path.
        path: String,
        /// Number of parameters at and below it.
        count: usize,
        /// The first of them.
        parameters: Vec<ParameterPath>,
    },
}

fn did_you_mean(near: &[ParameterPath]) -> String {
    match near {
        [] => ": it has none at all".into(),
        [only] => format!(": the nearest is `{only}`"),
        several => format!(": the nearest are {}", quoted(several)),
    }
}

fn module(path: &str) -> String {
    match path {
        "" => "the empty path".into(),
        path => format!("`{path}`"),
    }
}

fn parameters_of_module(count: usize, shown: &[ParameterPath]) -> String {
    let listed = quoted(shown);
    match (count, count - shown.len()) {
        (1, _) => format!("1 parameter, which is {listed}"),
        (_, 0) => format!("{count} parameters, which are {listed}"),
        _ => format!("{count} parameters, of which the first are {listed}"),
    }
}

fn quoted(paths: &[ParameterPath]) -> String {
    let quoted: Vec<String> = paths.iter().map(|path| format!("`{path}`")).collect();
    quoted.join(", ")
}

impl ParameterTable {
    pub(super) fn unknown(&self, path: &str) -> UnknownPath {
        let path = path.to_owned();
        let inside = self.iter().filter(|p| p.path.is_under(&path));
        let count = inside.clone().count();
        match count {
            0 => UnknownPath::Nothing {
                near: self.near(&path),
                path,
            },
            _ => UnknownPath::Module {
                parameters: inside.map(|p| p.path.clone()).take(SHOWN).collect(),
                path,
                count,
            },
        }
    }

    /// The paths of parameters that resemble an unknown one most, the nearest first, for error
    /// messages. Cost: an edit distance to every path.
    pub fn near(&self, path: &str) -> Vec<ParameterPath> {
        let paths = self.iter().map(|parameter| parameter.path.as_str());
        let nearest = nearest(path, paths).into_iter();
        nearest.map(ParameterPath::new).collect()
    }

    /// The paths of modules with parameters that resemble an unknown one most, the nearest first,
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

/// The candidates that resemble a path most: few slips of the pen, a common beginning, and the same
/// indices, since `layers.4.weight` is hardly what `layers.3.weigth` means.
fn nearest<'a>(path: &str, candidates: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let mut ranked: Vec<_> = candidates
        .map(|candidate| (far(path, candidate), candidate))
        .collect();
    ranked.sort_by_key(|(far, _)| *far);
    ranked.truncate(SHOWN);
    let best = ranked.first().map_or(0, |((slips, _), _)| *slips);
    ranked.retain(|((slips, _), _)| *slips < best + OTHER_INDEX);
    ranked.into_iter().map(|(_, path)| path).collect()
}

/// As many slips as another index counts for.
const OTHER_INDEX: i64 = 8;
/// Slips that a common component makes up for.
const COMMON_COMPONENT: i64 = 2;

/// How far a path is from another: slips, and the difference of their first different indices.
fn far(path: &str, candidate: &str) -> (i64, u64) {
    // A transposition is one slip, not two.
    let slips = strsim::osa_distance(path, candidate) as i64;
    let mut pairs = path.split('.').zip(candidate.split('.'));
    let mut common = 0;
    let other = pairs.find(|(a, b)| {
        common += i64::from(a == b);
        a != b
    });
    let gap = other.and_then(|(a, b)| Some(a.parse::<u64>().ok()?.abs_diff(b.parse().ok()?)));
    let slips = slips - COMMON_COMPONENT * common;
    match gap {
        Some(gap) => (slips + OTHER_INDEX, gap),
        None => (slips, 0),
    }
}
