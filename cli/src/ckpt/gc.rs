//! What may go from the directory of a run.

use std::{io::Write, path::PathBuf};

use anyhow::bail;
use clap::Args;
use tinderbox_checkpoint::{Cleaned, Retention};

use super::place::{run_at, url_of};
use crate::{outcome::Outcome, terminal::one_line};

/// Arguments of `gc`.
#[derive(Args, Debug)]
pub(crate) struct Flags {
    /// Directory of a run, or its URL in a bucket
    #[arg(value_name = "RUN_DIR")]
    dir: PathBuf,
    /// Keep the newest N steps; without this and --keep-every, all
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    keep_last: Option<usize>,
    /// Keep steps that are multiples of M, and the newest
    #[arg(long, value_name = "M", value_parser = clap::value_parser!(u64).range(1..))]
    keep_every: Option<u64>,
    /// Nobody saves into the run: also remove attempts of which a bucket, or a file system that machines share, can't tell
    /// whether they live
    #[arg(long)]
    idle: bool,
    /// Remove it; otherwise only tell what would be
    #[arg(long)]
    yes: bool,
}

fn at_least_one(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(0) => Err("it must be at least 1".into()),
        Ok(number) => Ok(number),
        Err(_) => Err("it must be a whole number".into()),
    }
}

impl Flags {
    /// Which checkpoints to keep; `None` for all.
    fn retention(&self) -> Option<Retention> {
        match (self.keep_last, self.keep_every) {
            (None, None) => None,
            (last, every) => Some(Retention {
                last: last.unwrap_or(1),
                every,
            }),
        }
    }
}

/// Tells what may go, and removes it when that was asked for.
pub(crate) fn run(flags: &Flags, out: &mut dyn Write) -> anyhow::Result<Outcome> {
    if url_of(&flags.dir).is_none() && !flags.dir.is_dir() {
        bail!("{} is no directory", flags.dir.display());
    }
    let run = run_at(&flags.dir)?;
    let retention = flags.retention();
    let mut usable = Vec::new();
    let steps = run.steps()?;
    for step in steps.iter().copied() {
        match run.open(step) {
            Ok(_) => usable.push(step),
            Err(error) => writeln!(
                out,
                "keep step {step}: it can't be used; `tinderbox ckpt remove` removes it: {}",
                one_line(&error.chain())
            )?,
        }
    }
    let expired = match retention {
        Some(retention) => run.expired(retention)?,
        None => Vec::new(),
    };
    for (older, step) in usable.iter().enumerate() {
        if !expired.contains(step) {
            let newer = usable.len() - older - 1;
            writeln!(
                out,
                "keep step {step}: {}",
                why_kept(retention, *step, newer)
            )?;
        }
    }
    for dir in run.set_aside_dirs()? {
        writeln!(
            out,
            "keep {dir}: a damaged checkpoint that was set aside; `tinderbox ckpt remove` removes it"
        )?;
    }
    let verb = match flags.yes {
        true => "removed",
        false => "would remove",
    };
    // The same rules find leftovers and clean them; what has died meanwhile is told as well.
    let leftovers = match (flags.yes, flags.idle) {
        (true, false) => run.clean(),
        (true, true) => run.clean_when_idle(),
        (false, false) => run.leftovers(),
        (false, true) => run.leftovers_when_idle(),
    }?;
    for (dir, reason) in &leftovers.kept {
        writeln!(out, "keep {}: {reason}", dir.display())?;
    }
    for dir in &leftovers.removed {
        writeln!(out, "{verb} {}: left behind by a save", dir.display())?;
    }
    for step in &expired {
        if flags.yes {
            run.remove(*step)?;
        }
        writeln!(out, "{verb} step {step}: not to be kept")?;
    }
    if url_of(&flags.dir).is_some() && steps.is_empty() && leftovers == Cleaned::default() {
        bail!("there is nothing of a run in {}", run.place().display());
    }
    let something = !expired.is_empty() || !leftovers.removed.is_empty();
    match something {
        true if flags.yes => {}
        true => writeln!(out, "nothing was removed: give --yes to do it")?,
        false => writeln!(out, "there is nothing to remove")?,
    }
    Ok(Outcome::Fine)
}

/// Why a checkpoint stays, of which so many are newer.
fn why_kept(retention: Option<Retention>, step: u64, newer: usize) -> String {
    let Some(Retention { last, every }) = retention else {
        return "without --keep-last and --keep-every all are kept".to_owned();
    };
    match every {
        _ if newer == 0 => "it is the newest".to_owned(),
        _ if newer < last => format!("it is one of the newest {last}"),
        Some(every) if step.is_multiple_of(every) => format!("it is a multiple of {every}"),
        _ => "no newer one that is to be kept is whole".to_owned(),
    }
}
