//! `ckpt gc` and `ckpt rm`: remove checkpoints and remains of saves from a run directory.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use clap::Args;
use derive_more::Display;
use serde::Serialize;
use tinderbox_checkpoint::store::{LocalStore, Store};
use tinderbox_checkpoint::{LoadError, Retention, Run, SaveError};
use tinderbox_deferred::human_bytes;
use tinderbox_ids::text::count_text;

use super::place::{Place, is_lost, run_at, split, step_of, unknown_step, url_of};
use crate::outcome::Outcome;
use crate::terminal::{Output, one_line};

/// Whether a command removes what it reports.
#[derive(Args, Debug)]
struct Consent {
    /// Remove it; otherwise only report what would be removed
    #[arg(long)]
    yes: bool,
    /// Only report what would be removed, which is the default
    #[arg(long = "dry-run", conflicts_with = "yes")]
    _dry_run: bool,
}

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
    #[command(flatten)]
    consent: Consent,
}

/// The answer: the kept entries, and the entries that are or would be removed, each with the reason.
#[derive(Serialize)]
struct Report {
    keep: Vec<Entry>,
    remove: Vec<Entry>,
    /// The bytes of the files that are or would be removed.
    bytes: u64,
    removed: bool,
}

#[derive(Serialize)]
struct Entry {
    #[serde(flatten)]
    what: What,
    reason: String,
}

#[derive(Display, PartialEq, Eq, PartialOrd, Ord, Serialize)]
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
    let every = flags.keep_every;
    // With `--keep-every` alone, the newest step is kept too.
    let last = flags.keep_last.or(every.map(|_| 1));
    let last = last.map(|last| last as usize);
    let retention = last.map(|last| Retention { last, every });
    let (mut keep, mut usable) = (Vec::new(), BTreeMap::new());
    for step in run.steps()? {
        match run.open(step) {
            Ok(found) => drop(usable.insert(step, found.manifest().attempt)),
            Err(error) => keep.push(entry(What::Step(step), why_unusable(&error))),
        }
    }
    let steps: Vec<u64> = usable.keys().copied().collect();
    let expired = retention.map_or_else(Vec::new, |rule| run.expired(&steps, rule));
    for (newer, step) in (0..steps.len()).rev().zip(&steps) {
        if !expired.contains(step) {
            keep.push(entry(What::Step(*step), why_kept(retention, *step, newer)));
        }
    }
    keep.sort_by(|a, b| a.what.cmp(&b.what));
    let removes = flags.consent.yes;
    for dir in run.set_aside_dirs()? {
        let reason = "a damaged checkpoint that was set aside; `tinderbox ckpt rm` removes it";
        keep.push(entry(What::Dir(dir), reason));
    }
    // The same rules find and remove leftovers, also of attempts that have ended since.
    let leftovers = match (removes, flags.idle) {
        (true, false) => run.clean(),
        (true, true) => run.clean_when_idle(),
        (false, false) => run.leftovers(),
        (false, true) => run.leftovers_when_idle(),
    }?;
    let of_dir = |dir: &Path, reason| entry(What::Dir(dir.display().to_string()), reason);
    let kept = leftovers.kept.iter();
    keep.extend(kept.map(|(dir, reason)| of_dir(dir, *reason)));
    let leftover = |dir: &PathBuf| of_dir(dir, "remains of a save");
    let mut remove: Vec<Entry> = leftovers.removed.iter().map(leftover).collect();
    let mut bytes = leftovers.removed_bytes;
    for step in expired {
        let mut reason = "not kept by the rule".to_owned();
        if let Some(target) = run.link_target(step) {
            let target = one_line(&target.to_string_lossy());
            reason += &format!("; it is a symbolic link to {target}, which is not removed");
        }
        // Another process may remove files at the same time.
        bytes += run.bytes_of(step, usable[&step]).unwrap_or(0);
        if removes {
            run.remove(step)?;
        }
        remove.push(entry(What::Step(step), reason));
    }
    if keep.is_empty() && remove.is_empty() {
        // The error of a directory that is no run.
        Place::of(&flags.dir)?;
    }
    let report = Report {
        removed: removes && !remove.is_empty(),
        keep,
        remove,
        bytes,
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
        let bytes = human_bytes(self.bytes);
        match self.remove.is_empty() {
            true => writeln!(out, "there is nothing to remove"),
            false if self.removed => writeln!(out, "freed {bytes}"),
            false => writeln!(out, "nothing was removed: use --yes to free {bytes}"),
        }
    }
}

/// Returns the reason why a step is kept that can't be used.
fn why_unusable(error: &LoadError) -> String {
    let advice = match is_lost(error) {
        true => "; `tinderbox ckpt rm` removes it",
        false => "",
    };
    format!("it can't be used{advice}: {}", one_line(&error.chain()))
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
    /// With --yes, remove it even if it is not known to be damaged
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    consent: Consent,
}

/// The answer: the state of the directory, and its files in a directory of this machine.
#[derive(Serialize)]
struct Removal {
    dir: String,
    state: String,
    /// Whether it is not known to be damaged, so that its removal needs `--force`.
    needs_force: bool,
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
    let link = match in_bucket {
        true => Ok(None),
        false => LocalStore::new(parent).link_target(name),
    };
    let link = match (link, step_of(name)) {
        (Err(error), Some(step)) if error.kind() == io::ErrorKind::NotFound => {
            return Err(unknown_step(&run, step));
        }
        (link, _) => link.with_context(|| format!("{} can't be read", dir.display()))?,
    };
    let (removed, forced) = (flags.consent.yes, flags.force);
    let (state, needs_force) = state_of(&run, dir, name, removed && !forced)?;
    let files = match in_bucket {
        true => BTreeMap::new(),
        false => run.sizes_in(name)?,
    };
    let report = Removal {
        dir: dir.display().to_string(),
        link: link.map(|target| target.display().to_string()),
        state,
        needs_force,
        files,
        removed,
    };
    if removed {
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
        let files = count_text(self.files.len(), "file");
        let bytes = human_bytes(self.files.values().sum());
        let what = match self.link {
            _ if in_bucket => "it".to_owned(),
            Some(_) => "the link".to_owned(),
            None => format!("it with {files}, {bytes}"),
        };
        let also = if self.needs_force { " --force" } else { "" };
        match (self.removed, in_bucket, &self.link) {
            (false, ..) => writeln!(out, "nothing was removed: use --yes{also} to remove {what}"),
            (true, false, None) => writeln!(out, "removed {dir}: {files}, {bytes}"),
            (true, false, Some(_)) => writeln!(out, "removed {dir}"),
            (true, true, _) => writeln!(
                out,
                "removed {dir}\n`tinderbox ckpt gc --yes` removes the files of its attempt"
            ),
        }
    }
}

/// Describes the directory, and returns whether its removal needs `--force`. If `is_refused`, returns an error instead.
fn state_of(run: &Run, dir: &Path, name: &str, is_refused: bool) -> anyhow::Result<(String, bool)> {
    let place = dir.display();
    let Some(step) = step_of(name) else {
        if run.set_aside_dirs()?.iter().any(|found| found == name) {
            let state = format!("{place} was set aside, because it was damaged");
            return Ok((state, false));
        }
        let name = name.to_owned();
        return Err(SaveError::NotAStep { name }.into());
    };
    match run.open(step) {
        Ok(_) if is_refused => bail!(
            "{place} has a valid manifest: `tinderbox ckpt verify` says whether its values are damaged; use `tinderbox ckpt gc` \
             to remove old checkpoints, or --force to remove this one anyway"
        ),
        Ok(_) => Ok((format!("{place} has a valid manifest"), true)),
        // It has no directory.
        Err(LoadError::NotPublished { exists: false, .. }) => Err(unknown_step(run, step)),
        Err(error) if is_lost(&error) => Ok((one_line(&error.chain()), false)),
        Err(error) if is_refused => {
            let refused = "is not known to be damaged: use --force to remove it anyway";
            Err(anyhow::Error::from(error).context(format!("{place} {refused}")))
        }
        Err(error) => Ok((one_line(&error.chain()), true)),
    }
}
