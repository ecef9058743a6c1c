//! `tinderbox plan`: shows and compares plan files, and the plans of checkpoints.

use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Error, anyhow, bail, ensure};
use clap::Args;
use tinderbox_planner::{Plan, PlanFileError};
use tinderbox_schedule::StageIndex;

use crate::ckpt::{self, parse_step};
use crate::outcome::Outcome;
use crate::terminal::{Output, name_of, one_input, read_text, unexpected};

/// Reads a plan file, standard input for `-`, or the plan of a checkpoint: of this step of a run, or of its newest one.
pub(crate) fn load(path: &Path, step: Option<u64>) -> anyhow::Result<Plan> {
    let name = name_of(path);
    let is_saved = path.is_dir() || name.contains("://");
    ensure!(
        is_saved || step.is_none(),
        "--step chooses a step of a run, and {name} is not the directory of a run: leave it out, or choose a step by its \
         directory, such as run/step-00000100"
    );
    let text = match is_saved {
        true => ckpt::saved_plan(path, step)?,
        false => read_text(path)?,
    };
    Plan::from_json(&text).map_err(|error| {
        if let Some(other) = unexpected(path, text.as_bytes(), "a plan", &["prediction"]) {
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
    /// Use this step of the run instead of the newest
    #[arg(long, value_name = "STEP", value_parser = parse_step)]
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

/// Arguments of `diff`.
#[derive(Args, Debug)]
pub(crate) struct DiffFlags {
    /// The earlier plan: a file or a directory, as in `plan show`; `-` is standard input
    #[arg(value_name = "A")]
    first: PathBuf,
    /// The later plan
    #[arg(value_name = "B")]
    second: PathBuf,
    /// Use this step of the runs instead of the newest; given twice: the step of A, then the step of B
    #[arg(long, value_name = "STEP", value_parser = parse_step)]
    step: Vec<u64>,
}

/// Compares two plans.
pub(crate) fn diff(flags: &DiffFlags, out: &mut Output) -> anyhow::Result<Outcome> {
    one_input([&flags.first, &flags.second])?;
    let [first, second] = ckpt::steps_of_both(&flags.step)?;
    let mut plans = [load(&flags.first, first)?, load(&flags.second, second)?];
    let has_text = |plan: &Plan| plan.stages.iter().any(|stage| !stage.programs.is_empty());
    if has_text(&plans[0]) != has_text(&plans[1]) {
        out.note("one of the plans has no text of its programs, so programs were not compared");
        plans = plans.map(|plan| plan.without_programs());
    }
    let found = plans[0].diff(&plans[1]);
    out.answer(&found, |out| write!(out, "{found}"))?;
    Ok(Outcome::of_answer(found.is_empty()))
}
