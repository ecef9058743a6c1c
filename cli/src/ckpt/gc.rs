//! `ckpt gc`: removes checkpoints and remains of saves from a run directory.

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
    /// Keep the newest N steps; without this and --keep-every, all steps are kept
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    keep_last: Option<usize>,
    /// Keep steps that are multiples of M, and the newest
    #[arg(long, value_name = "M", value_parser = clap::value_parser!(u64).range(1..))]
    keep_every: Option<u64>,
    /// Assert that no process is saving to the run: also remove attempts that may be alive because a bucket
    /// or a shared file system has no reliable locks
    #[arg(long)]
    idle: bool,
    /// Remove them; otherwise only report what would be removed
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
    /// Returns the retention rule; `None` to keep all checkpoints.
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

/// Reports what can be removed, and removes it with `--yes`.
pub(crate) fn run(flags: &Flags, out: &mut dyn Write) -> anyhow::Result<Outcome> {
    if url_of(&flags.dir).is_none() && !flags.dir.is_dir() {
        bail!("{} is not a directory", flags.dir.display());
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
    // The same rules find and remove leftovers; attempts that died in between are included.
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
        writeln!(out, "{verb} {}: remains of a save", dir.display())?;
    }
    for step in &expired {
        if flags.yes {
            run.remove(*step)?;
        }
        writeln!(out, "{verb} step {step}: not kept by the rule")?;
    }
    if url_of(&flags.dir).is_some() && steps.is_empty() && leftovers == Cleaned::default() {
        bail!("{} does not contain a run", run.place().display());
    }
    let something = !expired.is_empty() || !leftovers.removed.is_empty();
    match something {
        true if flags.yes => {}
        true => writeln!(out, "nothing was removed: use --yes to remove it")?,
        false => writeln!(out, "there is nothing to remove")?,
    }
    Ok(Outcome::Fine)
}

/// Returns why a checkpoint is kept, given the number of newer ones.
fn why_kept(retention: Option<Retention>, step: u64, newer: usize) -> String {
    let Some(Retention { last, every }) = retention else {
        return "without --keep-last and --keep-every all steps are kept".to_owned();
    };
    match every {
        _ if newer == 0 => "it is the newest".to_owned(),
        _ if newer < last => format!("it is one of the newest {last}"),
        Some(every) if step.is_multiple_of(every) => format!("it is a multiple of {every}"),
        _ => "no newer kept checkpoint is intact".to_owned(),
    }
}
