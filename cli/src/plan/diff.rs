//! `plan diff`: compares two plans.

use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::bail;
use clap::Args;

use super::file::load;
use crate::{outcome::Outcome, terminal::Output};

/// Arguments of `diff`.
#[derive(Args, Debug)]
pub(crate) struct Flags {
    /// The earlier plan; `-` is standard input
    #[arg(value_name = "A")]
    first: PathBuf,
    /// The later plan; `-` is standard input
    #[arg(value_name = "B")]
    second: PathBuf,
}

/// Compares them.
pub(crate) fn run(flags: &Flags, out: &mut Output) -> anyhow::Result<Outcome> {
    if [&flags.first, &flags.second]
        .iter()
        .all(|path| **path == Path::new("-"))
    {
        bail!("only one of the plans can be read from standard input");
    }
    let found = load(&flags.first)?.diff(&load(&flags.second)?);
    out.answer(&found, |out| write!(out, "{found}"))?;
    Ok(match found.is_empty() {
        true => Outcome::Done,
        false => Outcome::No,
    })
}
