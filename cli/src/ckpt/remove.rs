//! `ckpt gc` and `ckpt rm`: remove checkpoints and remains of saves from a run directory.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use clap::Args;
use derive_more::Display;
use serde::Serialize;
use tinderbox_checkpoint::store::{FoundKind, LocalStore, Store};
use tinderbox_checkpoint::{Cleaned, LoadError, Retention, Run, SaveError};
use tinderbox_deferred::human_bytes;

use super::place::{is_lost, run_at, split, step_of, url_of};
use crate::outcome::Outcome;
use crate::terminal::{Output, one_line};

/// Arguments of `gc`.
#[derive(Args, Debug)]
pub(crate) struct GcFlags {
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

/// The answer: the kept entries, and the entries that are or would be removed, each with the reason.
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

#[derive(Display, Serialize)]
#[serde(rename_all = "lowercase")]
enum What {
    #[display("step {_0}")]
    Step(u64),
    Dir(String),
}

fn entry(what: What, reason: impl Into<String>) -> Entry {
    let reason = reason.into();
    Entry { what, reason }
}

/// Reports what can be removed, and removes it with `--yes`.
pub(crate) fn gc(flags: &GcFlags, out: &mut Output) -> anyhow::Result<Outcome> {
    if url_of(&flags.dir).is_none() {
        let listed = fs::read_dir(&flags.dir);
        listed.with_context(|| format!("{} can't be read", flags.dir.display()))?;
    }
    let run = run_at(&flags.dir)?;
    let steps = run.steps()?;
    let every = flags.keep_every;
    // With `--keep-every` alone, the newest step is kept too.
    let last = flags.keep_last.or(every.map(|_| 1));
    let last = last.map(|last| last as usize);
    let retention = last.map(|last| Retention { last, every });
    let expired = retention.map(|rule| run.expired(rule)).transpose()?;
    let expired = expired.unwrap_or_default();
    let mut keep = kept(&run, &steps, retention, &expired);
    for dir in run.set_aside_dirs()? {
        let reason = "a damaged checkpoint that was set aside; `tinderbox ckpt rm` removes it";
        keep.push(entry(What::Dir(dir), reason));
    }
    // The same rules find and remove leftovers, also of attempts that have ended since.
    let leftovers = match (flags.yes, flags.idle) {
        (true, false) => run.clean(),
        (true, true) => run.clean_when_idle(),
        (false, false) => run.leftovers(),
        (false, true) => run.leftovers_when_idle(),
    }?;
    if url_of(&flags.dir).is_some() && steps.is_empty() && leftovers == Cleaned::default() {
        bail!("{} does not contain a run", run.place().display());
    }
    let of_dir = |dir: &Path, reason| entry(What::Dir(dir.display().to_string()), reason);
    let kept = leftovers.kept.iter();
    keep.extend(kept.map(|(dir, reason)| of_dir(dir, *reason)));
    let leftover = |dir: &PathBuf| of_dir(dir, "remains of a save");
    let mut remove: Vec<Entry> = leftovers.removed.iter().map(leftover).collect();
    for step in &expired {
        let mut reason = "not kept by the rule".to_owned();
        if let Some(target) = run.link_target(*step) {
            let target = one_line(&target.to_string_lossy());
            reason += &format!("; it is a symbolic link to {target}, which is not removed");
        }
        if flags.yes {
            run.remove(*step)?;
        }
        remove.push(entry(What::Step(*step), reason));
    }
    let report = Report {
        removed: flags.yes && !remove.is_empty(),
        keep,
        remove,
    };
    out.answer(&report, |out| report.show(out))
}

impl Report {
    fn show(&self, out: &mut Output) -> io::Result<()> {
        let verb = match self.removed {
            true => "removed",
            false => "would remove",
        };
        let keep = self.keep.iter().map(|entry| ("keep", entry));
        let remove = self.remove.iter().map(|entry| (verb, entry));
        for (verb, Entry { what, reason }) in keep.chain(remove) {
            writeln!(out, "{verb} {what}: {reason}")?;
        }
        match self.remove.is_empty() {
            true => writeln!(out, "there is nothing to remove"),
            false if self.removed => Ok(()),
            false => writeln!(out, "nothing was removed: use --yes to remove it"),
        }
    }
}

/// Returns the kept steps: first the steps that can't be used, then the steps that do not expire.
fn kept(run: &Run, steps: &[u64], rule: Option<Retention>, expired: &[u64]) -> Vec<Entry> {
    let (mut usable, mut kept) = (Vec::new(), Vec::new());
    for step in steps {
        let Err(error) = run.open(*step) else {
            usable.push(*step);
            continue;
        };
        let reason = one_line(&error.chain());
        let reason = match is_lost(&error) {
            true => format!("it can't be used; `tinderbox ckpt rm` removes it: {reason}"),
            false => format!("it can't be used: {reason}"),
        };
        kept.push(entry(What::Step(*step), reason));
    }
    for (older, step) in usable.iter().enumerate() {
        if !expired.contains(step) {
            let reason = why_kept(rule, *step, usable.len() - older - 1);
            kept.push(entry(What::Step(*step), reason));
        }
    }
    kept
}

/// Returns the reason why a checkpoint is kept, given the number of newer ones.
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

/// Arguments of `rm`.
#[derive(Args, Debug)]
pub(crate) struct RmFlags {
    /// Step directory (step-00000100) or directory that was set aside (damaged-00000100), or its URL in a
    /// bucket
    #[arg(value_name = "STEP_DIR")]
    dir: PathBuf,
    /// Remove it even if it is not known to be damaged
    #[arg(long)]
    sound: bool,
    /// Remove it; otherwise only report what would be removed
    #[arg(long)]
    yes: bool,
}

/// The answer: the state of the directory, and its files in a directory of this machine.
#[derive(Serialize)]
struct Removal {
    dir: String,
    state: String,
    /// The target, if it is a symbolic link. Only the link is removed.
    link: Option<String>,
    /// Names and bytes.
    files: BTreeMap<String, u64>,
    removed: bool,
}

/// Reports the state of the directory, and removes it with `--yes`.
pub(crate) fn rm(flags: &RmFlags, out: &mut Output) -> anyhow::Result<Outcome> {
    let dir = &flags.dir;
    let (parent, name) =
        split(dir).with_context(|| format!("{} is not a directory in a run", dir.display()))?;
    let run = run_at(parent)?;
    let in_bucket = url_of(dir).is_some();
    let (link, files) = match in_bucket {
        true => (None, BTreeMap::new()),
        false => contents(dir).with_context(|| format!("{} can't be read", dir.display()))?,
    };
    let report = Removal {
        dir: dir.display().to_string(),
        link: link.map(|target| target.display().to_string()),
        state: state_of(&run, dir, name, flags.sound)?,
        files,
        removed: flags.yes,
    };
    if flags.yes {
        run.discard(name)?;
    }
    out.answer(&report, |out| report.show(in_bucket, out))
}

impl Removal {
    fn show(&self, in_bucket: bool, out: &mut Output) -> io::Result<()> {
        let dir = &self.dir;
        writeln!(out, "{}", self.state)?;
        if let Some(target) = &self.link {
            let to = one_line(target);
            writeln!(out, "it is a symbolic link to {to}, which is not removed")?;
        }
        for (name, bytes) in &self.files {
            writeln!(out, "  {} ({})", one_line(name), human_bytes(*bytes))?;
        }
        match (self.removed, in_bucket) {
            (false, _) => {
                let what = match self.link {
                    Some(_) => "the link",
                    None => "it with all its contents",
                };
                writeln!(out, "nothing was removed: use --yes to remove {what}")
            }
            (true, false) => writeln!(out, "removed {dir}"),
            (true, true) => writeln!(
                out,
                "removed {dir}\n`tinderbox ckpt gc --yes` removes the files of its attempt"
            ),
        }
    }
}

/// Describes the directory; returns an error for a checkpoint that is not known to be damaged unless `sound` is set.
fn state_of(run: &Run, dir: &Path, name: &str, sound: bool) -> anyhow::Result<String> {
    let Some(step) = step_of(name) else {
        if run.set_aside_dirs()?.iter().any(|found| found == name) {
            let dir = dir.display();
            return Ok(format!("{dir} was set aside, because it was damaged"));
        }
        let name = name.to_owned();
        return Err(SaveError::NotAStep { name }.into());
    };
    match run.open(step) {
        Ok(_) if sound => Ok(format!("{} has a valid manifest", dir.display())),
        Ok(_) => bail!(
            "{} has a valid manifest: `tinderbox ckpt verify` says whether its values are damaged; use `tinderbox ckpt gc` to \
             remove old checkpoints, or --sound to remove this one anyway",
            dir.display()
        ),
        // In a bucket, a step without a manifest has no files.
        Err(error @ LoadError::NotPublished { .. }) if url_of(dir).is_some() => Err(error.into()),
        Err(error) if sound || is_lost(&error) => Ok(one_line(&error.chain())),
        Err(error) => Err(anyhow::Error::from(error).context(format!(
            "{} is not known to be damaged: use --sound to remove it anyway",
            dir.display()
        ))),
    }
}

/// Returns the target of a link, or the files of a directory with their sizes; neither for a file.
fn contents(dir: &Path) -> io::Result<(Option<PathBuf>, BTreeMap<String, u64>)> {
    // Without a separator at its end, which would be the path of the target.
    let store = LocalStore::new(dir.components().as_path());
    let entries = match store.look("")?.kind {
        FoundKind::Dir => store.list("")?,
        _ => Vec::new(),
    };
    let files = entries.into_iter().map(|found| (found.name, found.bytes));
    Ok((store.link_target("")?, files.collect()))
}
