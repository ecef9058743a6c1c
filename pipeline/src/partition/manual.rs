//! Cuts that a user names by module path.

use serde::{Deserialize, Serialize};
use tinderbox_deferred::ParameterTable;

use super::Unit;
use crate::PlanError;

/// A cut at a module, nested as deep as wanted, such as `blocks.3` or `blocks.3.attention`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Cut {
    /// The module begins a stage.
    Before(String),
    /// The module ends a stage.
    After(String),
}

impl Cut {
    /// A cut before a module.
    pub fn before(module: impl Into<String>) -> Self {
        Self::Before(module.into())
    }

    /// A cut after a module.
    pub fn after(module: impl Into<String>) -> Self {
        Self::After(module.into())
    }

    fn module(&self) -> &str {
        let (Self::Before(module) | Self::After(module)) = self;
        module
    }
}

/// The first unit of every stage.
pub(crate) fn manual(
    units: &[Unit],
    cuts: &[Cut],
    table: &ParameterTable,
) -> Result<Vec<usize>, PlanError> {
    let mut starts = vec![0];
    for cut in cuts {
        let module = cut.module();
        let inside = |unit: &Unit| unit.parameters.iter().any(|path| path.is_under(module));
        let found = match cut {
            Cut::Before(_) => units.iter().position(inside),
            Cut::After(_) => units.iter().rposition(inside).map(|last| last + 1),
        };
        let start = found.ok_or_else(|| PlanError::UnknownModule {
            module: module.to_owned(),
            near: table.near_modules(module),
        })?;
        let previous = *starts.last().expect("it starts with one");
        if start <= previous || start >= units.len() {
            return Err(PlanError::EmptyStage {
                module: module.to_owned(),
                stage: starts.len(),
            });
        }
        starts.push(start);
    }
    Ok(starts)
}
