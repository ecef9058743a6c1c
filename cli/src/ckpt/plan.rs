//! `ckpt plan`: prints the plan of a checkpoint.

use std::{io::Write, path::PathBuf};

use anyhow::bail;
use clap::Args;
use tinderbox_planner::PlanFile;

use super::place::open;
use crate::{
    outcome::{No, Outcome},
    terminal::Output,
};

/// Arguments of `plan`.
#[derive(Args, Debug)]
pub(crate) struct Flags {
    /// Step directory, or run directory for its newest step, or the URL of one in a bucket
    dir: PathBuf,
}

/// Prints the plan.
pub(crate) fn run(flags: &Flags, out: &mut Output) -> anyhow::Result<Outcome> {
    let checkpoint = open(&flags.dir)?;
    let Some(plan) = checkpoint.plan()? else {
        let dir = checkpoint.dir().display();
        bail!(No(format!("{dir} was saved without a plan")));
    };
    let text = serde_json::to_string_pretty(&plan)?;
    // The form of a plan file; the plan of another version stays as it is.
    let text = PlanFile::from_json(&text).map_or(text + "\n", |plan| plan.to_json());
    out.write_all(text.as_bytes())?;
    Ok(Outcome::Done)
}
