//! `plan show`: shows a plan.

use std::io::Write;
use std::path::PathBuf;

use anyhow::bail;
use clap::Args;
use tinderbox_planner::PlanFile;
use tinderbox_schedule::StageIndex;

use super::file::load;
use crate::{outcome::Outcome, terminal::Output};

/// Arguments of `show`.
#[derive(Args, Debug)]
pub(crate) struct Flags {
    /// The plan file; `-` is standard input
    file: PathBuf,
    /// Print the programs of the stages, line by line
    #[arg(long, group = "form", conflicts_with = "json")]
    program: bool,
    /// Print the graph of the stages for Graphviz
    #[arg(long, group = "form", conflicts_with = "json")]
    dot: bool,
    /// Print a self-contained page for a browser
    #[arg(long, group = "form", conflicts_with = "json")]
    html: bool,
    /// Print the programs of this stage; can be repeated
    #[arg(long, value_name = "K", conflicts_with_all = ["dot", "html", "json"])]
    stage: Vec<usize>,
}

/// Prints the plan.
pub(crate) fn run(flags: &Flags, out: &mut Output) -> anyhow::Result<Outcome> {
    let plan = load(&flags.file)?;
    out.write_all(flags.text(&plan, out.json)?.as_bytes())?;
    Ok(Outcome::Done)
}

impl Flags {
    fn text(&self, plan: &PlanFile, json: bool) -> anyhow::Result<String> {
        let stages = plan.stages.len();
        if let Some(stage) = self.stage.iter().find(|stage| **stage >= stages) {
            bail!(
                "the plan has no stage {stage}: its stages are 0 to {}",
                stages.saturating_sub(1)
            );
        }
        if self.program || !self.stage.is_empty() {
            let stages: Vec<StageIndex> = self.stage.iter().copied().map(StageIndex::new).collect();
            return Ok(plan.programs_text(&stages));
        }
        Ok(match () {
            () if self.dot => plan.to_dot(),
            () if self.html => plan.to_html(),
            () if json => plan.to_json(),
            () => plan.to_string(),
        })
    }
}
