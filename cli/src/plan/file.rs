//! Reads plan files.

use std::path::Path;

use anyhow::Context;
use tinderbox_planner::{PlanFile, PlanFileError};

/// The plan in a file; an error names the file.
pub(super) fn load(path: &Path) -> anyhow::Result<PlanFile> {
    match PlanFile::load(path) {
        Ok(plan) => Ok(plan),
        // It names the file itself.
        Err(error @ PlanFileError::Io { .. }) => Err(error.into()),
        Err(error) => Err(error).with_context(|| path.display().to_string()),
    }
}
