//! Reads plan files.

use std::path::Path;

use anyhow::Context;
use tinderbox_planner::PlanFile;

use crate::terminal::{name_of, read_text};

/// Reads a plan file, or standard input for `-`; errors include the path.
pub(super) fn load(path: &Path) -> anyhow::Result<PlanFile> {
    let plan = PlanFile::from_json(&read_text(path)?);
    plan.with_context(|| name_of(path).into_owned())
}
