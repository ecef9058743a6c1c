//! The names of parameters in a module tree.
//!
//! The one word that models, plans and checkpoints share, in a crate of its own: what plans without
//! Burn speaks of the same parameters as what trains with it.

use serde::{Deserialize, Serialize};

/// Where a parameter stands in its module: field names and indices joined by dots, such as
/// `blocks.3.norm.gamma`. It identifies the parameter in every process, file and plan; Burn's own
/// `ParamId` is random per construction.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ParameterPath(String);

impl ParameterPath {
    /// A path from its text.
    pub fn new(path: impl Into<String>) -> Self {
        Self(path.into())
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The path of the module that owns the parameter: all but the last component.
    pub fn module(&self) -> &str {
        self.0.rsplit_once('.').map_or("", |(module, _)| module)
    }

    /// The parameter's own name: the last component.
    pub fn leaf(&self) -> &str {
        self.0
            .rsplit_once('.')
            .map_or(self.as_str(), |(_, leaf)| leaf)
    }

    /// Whether the parameter stands at or below a module path. Every path stands below the empty one.
    pub fn is_under(&self, module: &str) -> bool {
        module.is_empty()
            || self
                .0
                .strip_prefix(module)
                .is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    }
}

impl std::fmt::Display for ParameterPath {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl From<&str> for ParameterPath {
    fn from(path: &str) -> Self {
        Self(path.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn components() {
        let path = ParameterPath::new("blocks.1.norm.gamma");
        assert_eq!((path.module(), path.leaf()), ("blocks.1.norm", "gamma"));
        for (module, under) in [
            ("", true),
            ("blocks.1", true),
            ("blocks", true),
            ("block", false),
        ] {
            assert_eq!(path.is_under(module), under, "{module}");
        }
        assert!(!ParameterPath::new("blocks.10.w").is_under("blocks.1"));
        assert_eq!(ParameterPath::new("weight").module(), "");
    }
}
