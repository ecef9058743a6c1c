//! `plan diff`: compares two plans.

use std::io::Write;
use std::path::PathBuf;

use clap::Args;

use super::file::load;
use crate::outcome::Outcome;

/// Text after the help.
const EXAMPLES: &str = "\
Examples:
  tinderbox plan diff before.json after.json           the differences, one per line
  tinderbox plan diff before.json after.json --json    every change, machine-readable

Exit codes: 0 if the plans are the same, 1 if they differ, 2 if one can't be read.";

/// Arguments of `diff`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Flags {
    /// The earlier plan
    #[arg(value_name = "A")]
    first: PathBuf,
    /// The later plan
    #[arg(value_name = "B")]
    second: PathBuf,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Compares them.
pub(crate) fn run(flags: &Flags, out: &mut dyn Write) -> anyhow::Result<Outcome> {
    let found = load(&flags.first)?.diff(&load(&flags.second)?);
    match flags.json {
        true => writeln!(out, "{}", serde_json::to_string(&found)?)?,
        false => write!(out, "{found}")?,
    }
    Ok(match found.is_empty() {
        true => Outcome::Fine,
        false => Outcome::Found,
    })
}
