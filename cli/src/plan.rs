//! `tinderbox plan`: shows and compares plan files.

use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use clap::Args;
use tinderbox_planner::Plan;
use tinderbox_schedule::StageIndex;

use crate::outcome::Outcome;
use crate::terminal::{Output, name_of, read_text};

/// Reads a plan file, or standard input for `-`; errors include the path.
fn load(path: &Path) -> anyhow::Result<Plan> {
    let plan = Plan::from_json(&read_text(path)?);
    plan.with_context(|| name_of(path).into_owned())
}

/// Arguments of `show`.
#[derive(Args, Debug)]
pub(crate) struct ShowFlags {
    /// The plan file; `-` is standard input
    file: PathBuf,
    /// Print the programs of the stages, line by line
    #[arg(long, conflicts_with = "json")]
    program: bool,
    /// Print the programs of this stage; can be repeated
    #[arg(long, value_name = "K", conflicts_with = "json")]
    stage: Vec<usize>,
}

/// Shows a plan.
pub(crate) fn show(flags: &ShowFlags, out: &mut Output) -> anyhow::Result<Outcome> {
    let plan = load(&flags.file)?;
    let stages = plan.stages.len();
    if let Some(stage) = flags.stage.iter().find(|stage| **stage >= stages) {
        let last = stages.saturating_sub(1);
        bail!("the plan has no stage {stage}: its stages are 0 to {last}");
    }
    let stages: Vec<StageIndex> = flags.stage.iter().copied().map(StageIndex::new).collect();
    let text = match () {
        () if flags.program || !stages.is_empty() => plan.programs_text(&stages),
        () if out.json => plan.to_json(),
        () => plan.to_string(),
    };
    out.write_all(text.as_bytes())?;
    Ok(Outcome::DONE)
}

/// Compares two plans.
pub(crate) fn diff(first: &Path, second: &Path, out: &mut Output) -> anyhow::Result<Outcome> {
    if [first, second] == [Path::new("-"); 2] {
        bail!("only one of the plans can be read from standard input");
    }
    let found = load(first)?.diff(&load(second)?);
    out.answer(&found, |out| write!(out, "{found}"))?;
    Ok(Outcome::of_answer(found.is_empty()))
}
