//! `ckpt gc`: removes checkpoints and remains of saves from a run directory.

use std::{
    fmt, fs,
    io::{self, Write},
    path::{Path, PathBuf},
};

use anyhow::{Context, bail};
use clap::Args;
use serde::Serialize;
use tinderbox_checkpoint::{Cleaned, ErrorClass, Retention};

use super::place::{run_at, url_of};
use crate::{
    outcome::Outcome,
    terminal::{Output, ShownPath, one_line},
};

/// Arguments of `gc`.
#[derive(Args, Debug)]
pub(crate) struct Flags {
    /// Directory of a run, or its URL in a bucket
    #[arg(value_name = "RUN_DIR")]
    dir: PathBuf,
    /// Keep the newest N steps; without this and --keep-every, all steps are kept
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    keep_last: Option<u32>,
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

impl Flags {
    /// Returns the retention rule; `None` to keep all checkpoints.
    fn retention(&self) -> Option<Retention> {
        match (self.keep_last, self.keep_every) {
            (None, None) => None,
            (last, every) => Some(Retention {
                last: last.unwrap_or(1) as usize,
                every,
            }),
        }
    }
}

/// The answer: what is kept, and what is or would be removed, each with the reason.
#[derive(Serialize)]
struct Report {
    keep: Vec<Entry>,
    remove: Vec<Entry>,
    removed: bool,
}

#[derive(Serialize)]
struct Entry {
    #[serde(flatten)]
    what: What,
    reason: String,
}

#[derive(Serialize)]
#[serde(rename_all = "lowercase")]
enum What {
    Step(u64),
    Dir(ShownPath),
}

impl fmt::Display for What {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Step(step) => write!(f, "step {step}"),
            Self::Dir(dir) => write!(f, "{dir}"),
        }
    }
}

fn entry(what: What, reason: &str) -> Entry {
    let reason = reason.to_owned();
    Entry { what, reason }
}

/// Reports what can be removed, and removes it with `--yes`.
pub(crate) fn run(flags: &Flags, out: &mut Output) -> anyhow::Result<Outcome> {
    if url_of(&flags.dir).is_none() {
        let listed = fs::read_dir(&flags.dir);
        listed.with_context(|| format!("{} can't be read", flags.dir.display()))?;
    }
    let run = run_at(&flags.dir)?;
    let retention = flags.retention();
    let (mut usable, mut keep) = (Vec::new(), Vec::new());
    let steps = run.steps()?;
    for step in steps.iter().copied() {
        match run.open(step) {
            Ok(_) => usable.push(step),
            Err(error) => {
                let is_lost = matches!(error.class(), ErrorClass::Damaged | ErrorClass::Missing);
                let way_out = match is_lost {
                    true => "; `tinderbox ckpt rm` removes it",
                    false => "",
                };
                let reason = format!("it can't be used{way_out}: {}", one_line(&error.chain()));
                keep.push(entry(What::Step(step), &reason));
            }
        }
    }
    let expired = match retention {
        Some(retention) => run.expired(retention)?,
        None => Vec::new(),
    };
    for (older, step) in usable.iter().enumerate() {
        if !expired.contains(step) {
            let newer = usable.len() - older - 1;
            let reason = why_kept(retention, *step, newer);
            keep.push(entry(What::Step(*step), &reason));
        }
    }
    for dir in run.set_aside_dirs()? {
        let reason = "a damaged checkpoint that was set aside; `tinderbox ckpt rm` removes it";
        keep.push(entry(What::Dir(Path::new(&dir).into()), reason));
    }
    // The same rules find and remove leftovers; attempts that died in between are included.
    let leftovers = match (flags.yes, flags.idle) {
        (true, false) => run.clean(),
        (true, true) => run.clean_when_idle(),
        (false, false) => run.leftovers(),
        (false, true) => run.leftovers_when_idle(),
    }?;
    if url_of(&flags.dir).is_some() && steps.is_empty() && leftovers == Cleaned::default() {
        bail!("{} does not contain a run", run.place().display());
    }
    let kept = leftovers.kept.iter();
    let of_dir = |dir: &Path| What::Dir(dir.into());
    keep.extend(kept.map(|(dir, reason)| entry(of_dir(dir), reason)));
    let removed = leftovers.removed.iter();
    let removed = removed.map(|dir| entry(of_dir(dir), "remains of a save"));
    let mut remove: Vec<Entry> = removed.collect();
    for step in &expired {
        let link = run.link_target(*step);
        let reason = match link {
            Some(target) => format!(
                "not kept by the rule; it is a symbolic link to {}, which is not removed",
                one_line(&target.to_string_lossy())
            ),
            None => "not kept by the rule".to_owned(),
        };
        if flags.yes {
            run.remove(*step)?;
        }
        remove.push(entry(What::Step(*step), &reason));
    }
    let report = Report {
        removed: flags.yes && !remove.is_empty(),
        keep,
        remove,
    };
    out.answer(&report, |out| report.show(out))?;
    Ok(Outcome::Done)
}

impl Report {
    fn show(&self, out: &mut Output) -> io::Result<()> {
        let verb = match self.removed {
            true => "removed",
            false => "would remove",
        };
        for Entry { what, reason } in &self.keep {
            writeln!(out, "keep {what}: {reason}")?;
        }
        for Entry { what, reason } in &self.remove {
            writeln!(out, "{verb} {what}: {reason}")?;
        }
        match self.remove.is_empty() {
            true => writeln!(out, "there is nothing to remove"),
            false if self.removed => Ok(()),
            false => writeln!(out, "nothing was removed: use --yes to remove it"),
        }
    }
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
