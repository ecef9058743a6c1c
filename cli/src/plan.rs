//! `tinderbox plan`: shows and compares plan files, and the plans of checkpoints.

use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Error, anyhow, bail, ensure};
use clap::Args;
use tinderbox_planner::{Plan, PlanFileError};
use tinderbox_schedule::StageIndex;

use crate::ckpt;
use crate::outcome::Outcome;
use crate::terminal::{Output, name_of, one_input, read_text, unexpected};

/// Reads a plan file, standard input for `-`, or the plan of a checkpoint: of this step of a run, or of its newest one.
fn load(path: &Path, step: Option<u64>) -> anyhow::Result<Plan> {
    let name = name_of(path);
    let is_saved = path.is_dir() || name.contains("://");
    ensure!(
        is_saved || step.is_none(),
        "--step chooses a step of a run, and {name} is not the directory of a run"
    );
    let text = match is_saved {
        true => ckpt::saved_plan(path, step)?,
        false => read_text(path)?,
    };
    Plan::from_json(&text).map_err(|error| {
        if let Some(other) = unexpected(path, text.as_bytes(), "a plan") {
            return other;
        }
        let is_object = text.trim_start().starts_with('{');
        match &error {
            PlanFileError::Json { source } if source.is_eof() => {
                anyhow!("{name} ends inside a plan: it was cut off")
            }
            PlanFileError::Json { .. } if !is_object => {
                anyhow!("{name}: expected a plan, found no JSON object")
            }
            _ => Error::new(error).context(name.into_owned()),
        }
    })
}

/// Arguments of `show`.
#[derive(Args, Debug)]
pub(crate) struct ShowFlags {
    /// The plan file; `-` is standard input. Or a step directory, or a run directory for its newest step, or the URL of one in
    /// a bucket
    #[arg(value_name = "FILE|DIR")]
    from: PathBuf,
    /// Show the plan of this step of the run
    #[arg(long, value_name = "STEP")]
    step: Option<u64>,
    /// Print the programs of the stages, line by line
    #[arg(long, conflicts_with = "json")]
    program: bool,
    /// Print the programs of this stage; can be repeated
    #[arg(long, value_name = "K", conflicts_with = "json")]
    stage: Vec<usize>,
}

/// Shows a plan.
pub(crate) fn show(flags: &ShowFlags, out: &mut Output) -> anyhow::Result<Outcome> {
    let plan = load(&flags.from, flags.step)?;
    let stages = plan.stages.len();
    if let Some(stage) = flags.stage.iter().find(|stage| **stage >= stages) {
        match stages.saturating_sub(1) {
            0 => bail!("the plan has no stage {stage}: its only stage is 0"),
            last => bail!("the plan has no stage {stage}: its stages are 0 to {last}"),
        }
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
    one_input([first, second])?;
    let found = load(first, None)?.diff(&load(second, None)?);
    out.answer(&found, |out| write!(out, "{found}"))?;
    Ok(Outcome::of_answer(found.is_empty()))
}
