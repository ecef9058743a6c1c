//! Errors of groups of parameters.

use tinderbox_deferred::ParameterPath;

use super::texts::ordinal;

/// Errors of a group of parameters.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GroupError {
    /// A group has an optimizer, and contains no parameter that trains.
    #[error(
        "the {} parameter group with an optimizer contains no parameter that trains: groups match the paths of \
         parameters, not ids",
        ordinal(*number)
    )]
    Empty {
        /// Its number, from 1.
        number: usize,
    },
    /// A group, or what it excludes, has ids of parameters.
    #[error(
        "{} has ids of parameters, which are others in each construction of the model, so they match nothing: match paths, \
         for example with `ParamGroup::from_predicate` or `ParameterTable::group`",
        named(*number)
    )]
    Ids {
        /// Its number among the groups with an optimizer, from 1; `None` for another group.
        number: Option<usize>,
    },
    /// None of the parameters of a group has a gradient.
    #[error(
        "there is no gradient of `{path}`, because it did not train when the model was traced, or is a running state: trace \
         a model in which it trains, and freeze it after the start"
    )]
    NotTraced {
        /// The first parameter.
        path: ParameterPath,
    },
    /// A group contains no parameter.
    #[error("the group contains no parameter: groups match the paths of parameters, not ids")]
    NoParameters,
}

fn named(number: Option<usize>) -> String {
    match number {
        Some(number) => format!("the {} parameter group with an optimizer", ordinal(number)),
        None => "the group".to_owned(),
    }
}
