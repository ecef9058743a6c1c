//! `ckpt ls`: lists the steps of a run.

use std::io::{self, Write};
use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::bail;
use clap::Args;
use humantime::format_rfc3339_seconds;
use serde::Serialize;
use tinderbox_checkpoint::{Checkpoint, LoadError, Run};
use tinderbox_deferred::human_bytes;

use super::inspect::Sizes;
use super::place::{Place, is_lost, outcome_of};
use crate::outcome::Outcome;
use crate::terminal::{Output, one_line, show_table, visible};

/// Arguments of `ls`.
#[derive(Args, Debug)]
pub(crate) struct LsFlags {
    /// Directory of a run, or its URL in a bucket
    #[arg(value_name = "RUN_DIR")]
    dir: PathBuf,
    /// Also read and check all data, with the exit codes of `ckpt verify`
    #[arg(long)]
    verify: bool,
}

/// The steps of a run, in ascending order.
#[derive(Serialize)]
struct Listing {
    dir: String,
    steps: Vec<Step>,
    /// Directories of damaged checkpoints.
    set_aside: Vec<String>,
    /// Entries that no command uses or removes.
    foreign: Vec<Foreign>,
}

#[derive(Serialize)]
struct Foreign {
    name: String,
    reason: &'static str,
}

#[derive(Serialize)]
struct Step {
    step: u64,
    /// Whether its manifest is valid, and its files have the sizes in it.
    complete: bool,
    /// Whether every byte is intact; `None` if it was not checked, or could not be read.
    intact: Option<bool>,
    /// The time of its manifest, in UTC.
    saved_at: Option<String>,
    #[serde(flatten)]
    sizes: Option<Sizes>,
    error: Option<String>,
    /// The target of its directory, if that is a symbolic link.
    link: Option<String>,
    #[serde(skip)]
    outcome: Outcome,
}

impl Step {
    /// Opens a step. With `verify`, checks its values too.
    fn of(run: &Run, step: u64, verify: bool, out: &Output) -> Self {
        let (opened, link) = (run.open(step), run.link_target(step));
        let checkpoint = opened.as_ref().ok();
        let saved_at = checkpoint.and_then(Checkpoint::saved_at).and_then(date);
        let (complete, sizes) = (opened.is_ok(), checkpoint.map(Sizes::of));
        let errors = match opened {
            Ok(checkpoint) if verify => checkpoint.damage(&out.bar("verify")),
            Ok(_) => Vec::new(),
            Err(error) => vec![error],
        };
        let is_damaged = errors.iter().any(is_lost);
        let is_known = verify && (is_damaged || errors.is_empty());
        Self {
            step,
            complete,
            intact: is_known.then_some(!is_damaged),
            saved_at,
            sizes,
            error: errors.first().map(LoadError::chain),
            link: link.map(|target| target.display().to_string()),
            outcome: errors.into_iter().map(outcome_of).max().unwrap_or_default(),
        }
    }

    fn state(&self) -> &'static str {
        match (self.complete, self.intact) {
            (false, _) => "unusable",
            (true, Some(true)) => "intact",
            (true, Some(false)) => "not intact",
            (true, None) if self.error.is_some() => "unreadable",
            (true, None) => "complete",
        }
    }
}

/// Formats a date of the years 1970 to 9999. A copied file may have any other date.
fn date(time: SystemTime) -> Option<String> {
    const YEAR_10000_S: u64 = 253_402_300_800;
    let since = time.duration_since(UNIX_EPOCH).ok()?;
    (since.as_secs() < YEAR_10000_S).then(|| format_rfc3339_seconds(time).to_string())
}

/// Lists the run.
pub(crate) fn ls(flags: &LsFlags, out: &mut Output) -> anyhow::Result<Outcome> {
    let Place::Run(run, steps) = Place::of(&flags.dir)? else {
        bail!("{} is a step, not a run", flags.dir.display());
    };
    let foreign = run.foreign()?.into_iter();
    let foreign = foreign.map(|(name, reason)| Foreign { name, reason });
    let step = |step| Step::of(&run, step, flags.verify, out);
    let listing = Listing {
        dir: run.place().display().to_string(),
        steps: steps.into_iter().map(step).collect(),
        set_aside: run.set_aside_dirs()?,
        foreign: foreign.collect(),
    };
    out.answer(&listing, |out| show(&listing, out))?;
    let checked = listing.steps.iter().filter(|_| flags.verify);
    let outcomes = checked.map(|step| step.outcome);
    Ok(outcomes.max().unwrap_or_default())
}

fn show(listing: &Listing, out: &mut Output) -> io::Result<()> {
    let header = ["step", "saved", "ranks", "bytes", "data position", "state"];
    let rows = listing.steps.iter().map(|step| {
        let size = |cell: fn(&Sizes) -> String| step.sizes.as_ref().map_or_else(String::new, cell);
        vec![
            step.step.to_string(),
            step.saved_at.clone().unwrap_or_default(),
            size(|sizes| sizes.world_size.to_string()),
            size(|sizes| human_bytes(sizes.total_bytes)),
            size(|sizes| sizes.data_position.to_string()),
            step.state().to_owned(),
        ]
    });
    show_table(&header, &[2, 3, 4], rows, out)?;
    if listing.steps.iter().any(|step| step.state() == "complete") {
        let meaning = "manifest and sizes of files match; --verify also checks all values";
        writeln!(out, "complete: {meaning}")?;
    }
    for saved in &listing.steps {
        let step = saved.step;
        if let Some(target) = &saved.link {
            writeln!(out, "step {step}: a symbolic link to {}", visible(target))?;
        }
        if let Some(error) = &saved.error {
            writeln!(out, "step {step}: {}", one_line(error))?;
        }
    }
    for dir in &listing.set_aside {
        writeln!(out, "{}: set aside, because it was damaged", visible(dir))?;
    }
    for Foreign { name, reason } in &listing.foreign {
        writeln!(out, "{}: {reason}", visible(name))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn times_without_a_date_are_left_out() {
        let second = Duration::from_secs(1);
        let last = UNIX_EPOCH + Duration::from_secs(253_402_300_799);
        for (time, expected) in [
            (UNIX_EPOCH, Some("1970-01-01T00:00:00Z")),
            (last, Some("9999-12-31T23:59:59Z")),
            (last + second, None),
            (UNIX_EPOCH - second, None),
        ] {
            assert_eq!(date(time).as_deref(), expected);
        }
    }
}
