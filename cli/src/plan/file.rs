//! Reads plan files.

use std::path::Path;

use anyhow::Context;
use tinderbox_planner::{PlanFile, PlanFileError};

/// Loads a plan file; errors include the path.
pub(super) fn load(path: &Path) -> anyhow::Result<PlanFile> {
    match PlanFile::load(path) {
        Ok(plan) => Ok(plan),
        // The error includes the path.
        Err(error @ PlanFileError::Io { .. }) => Err(error.into()),
        Err(error) => Err(error).with_context(|| path.display().to_string()),
    }
}
