//! `plan show`: shows a plan.

use std::fs;
use std::io::Write;
use std::path::PathBuf;

use anyhow::{Context, bail};
use clap::Args;
use tinderbox_planner::PlanFile;
use tinderbox_schedule::StageIndex;

use super::file::load;
use crate::outcome::Outcome;

/// Text after the help.
const EXAMPLES: &str = "\
Examples:
  tinderbox plan show plan.json                        tables of stages, ranks and boundaries
  tinderbox plan show plan.json --stage 2 --stage 3    the programs of stages 2 and 3
  tinderbox plan show plan.json --html -o plan.html    a page for a browser
  tinderbox plan show plan.json --dot | dot -Tsvg -o plan.svg";

/// Arguments of `show`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Flags {
    /// The plan file
    file: PathBuf,
    /// Print the programs of the stages, line by line
    #[arg(long, group = "form")]
    program: bool,
    /// Print the graph of the stages for Graphviz
    #[arg(long, group = "form")]
    dot: bool,
    /// Print a self-contained page for a browser
    #[arg(long, group = "form")]
    html: bool,
    /// Print the plan as JSON
    #[arg(long, group = "form")]
    json: bool,
    /// Print the programs of this stage; can be repeated
    #[arg(long, value_name = "K", conflicts_with_all = ["dot", "html", "json"])]
    stage: Vec<usize>,
    /// Write to this file instead of the terminal
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
}

/// Prints the plan, or writes it to a file.
pub(crate) fn run(flags: &Flags, out: &mut dyn Write) -> anyhow::Result<Outcome> {
    let plan = load(&flags.file)?;
    let text = flags.text(&plan)?;
    match &flags.output {
        None => out.write_all(text.as_bytes())?,
        Some(path) => {
            fs::write(path, &text).with_context(|| format!("writing {}", path.display()))?;
        }
    }
    Ok(Outcome::Fine)
}

impl Flags {
    fn text(&self, plan: &PlanFile) -> anyhow::Result<String> {
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
            () if self.json => plan.to_json(),
            () => plan.to_string(),
        })
    }
}
