//! `ckpt ls`: lists the steps of a run.

use std::{
    io::{self, Write},
    path::PathBuf,
    time::{SystemTime, UNIX_EPOCH},
};

use anyhow::bail;
use clap::Args;
use humantime::format_rfc3339_seconds;
use serde::Serialize;
use tinderbox_checkpoint::Run;
use tinderbox_deferred::human_bytes;

use super::{inspect::Sizes, place::Place};
use crate::{
    outcome::Outcome,
    terminal::{Columns, Output, ShownPath, one_line, visible},
};

/// Arguments of `ls`.
#[derive(Args, Debug)]
pub(crate) struct Flags {
    /// Directory of a run, or its URL in a bucket
    #[arg(value_name = "RUN_DIR")]
    dir: PathBuf,
}

/// The steps of a run, in ascending order.
#[derive(Serialize)]
struct Listing {
    dir: ShownPath,
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
    valid: bool,
    /// When its manifest was written, in UTC.
    saved_at: Option<String>,
    #[serde(flatten)]
    sizes: Option<Sizes>,
    error: Option<String>,
    /// The target, if its directory is a symbolic link.
    link: Option<ShownPath>,
}

impl Step {
    fn of(run: &Run, step: u64) -> Self {
        let (checkpoint, error) = match run.open(step) {
            Ok(checkpoint) => (Some(checkpoint), None),
            Err(error) => (None, Some(error.chain())),
        };
        let saved_at = checkpoint.as_ref().and_then(|c| c.saved_at());
        Self {
            step,
            valid: error.is_none(),
            saved_at: saved_at.and_then(date),
            sizes: checkpoint.as_ref().map(Sizes::of),
            error,
            link: run.link_target(step).map(|target| target.as_path().into()),
        }
    }
}

/// Returns a date of the years 1970 to 9999. A file that was copied may have any other.
fn date(time: SystemTime) -> Option<String> {
    const YEAR_10000_S: u64 = 253_402_300_800;
    let since = time.duration_since(UNIX_EPOCH).ok()?;
    (since.as_secs() < YEAR_10000_S).then(|| format_rfc3339_seconds(time).to_string())
}

/// Lists the run.
pub(crate) fn run(flags: &Flags, out: &mut Output) -> anyhow::Result<Outcome> {
    let Place::Run(run, steps) = Place::of(&flags.dir)? else {
        bail!("{} is a step, not a run", flags.dir.display());
    };
    let foreign = run.foreign()?.into_iter();
    let foreign = foreign.map(|(name, reason)| Foreign { name, reason });
    let listing = Listing {
        dir: run.place().as_path().into(),
        steps: steps.into_iter().map(|step| Step::of(&run, step)).collect(),
        set_aside: run.set_aside_dirs()?,
        foreign: foreign.collect(),
    };
    out.answer(&listing, |out| show(&listing, out))?;
    Ok(Outcome::Done)
}

fn show(listing: &Listing, out: &mut Output) -> io::Result<()> {
    let header = ["step", "saved", "ranks", "bytes", "data position", "valid"];
    let mut columns = Columns::new(&header, &[2, 3, 4]);
    for step in &listing.steps {
        let size = |cell: fn(&Sizes) -> String| step.sizes.as_ref().map_or_else(String::new, cell);
        columns.push(vec![
            step.step.to_string(),
            step.saved_at.clone().unwrap_or_default(),
            size(|sizes| sizes.world_size.to_string()),
            size(|sizes| human_bytes(sizes.total_bytes)),
            size(|sizes| sizes.data_position.to_string()),
            if step.valid { "yes" } else { "no" }.to_owned(),
        ]);
    }
    columns.show(out)?;
    for Step {
        step, error, link, ..
    } in &listing.steps
    {
        if let Some(target) = link {
            let target = target.to_string();
            writeln!(out, "step {step}: a symbolic link to {}", visible(&target))?;
        }
        if let Some(error) = error {
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
