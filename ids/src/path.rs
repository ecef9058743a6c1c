//! The path of a parameter in a module tree.

use derive_more::{Display, From};
use serde::{Deserialize, Serialize};

/// The path of a parameter in its module: field names and indices joined by dots, such as
/// `blocks.3.norm.gamma`. It identifies the parameter in every process, file and plan, whereas Burn's
/// `ParamId` is random per construction.
#[derive(Serialize, Deserialize)]
#[serde(transparent)]
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Display, From)]
#[from(&str)]
pub struct ParameterPath(String);

impl ParameterPath {
    /// Creates a path from its text.
    pub fn new(path: impl Into<String>) -> Self {
        Self(path.into())
    }

    /// Returns the path as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the path of the module that owns the parameter: all but the last component.
    pub fn module(&self) -> &str {
        self.0.rsplit_once('.').map_or("", |(module, _)| module)
    }

    /// Returns the name of the parameter in its module: the last component.
    pub fn leaf(&self) -> &str {
        self.0.rsplit('.').next().unwrap_or_default()
    }

    /// Returns whether the parameter is at or below a module path. Every path is below the empty one.
    pub fn is_under(&self, module: &str) -> bool {
        let rest = self.0.strip_prefix(module);
        module.is_empty() || rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
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
