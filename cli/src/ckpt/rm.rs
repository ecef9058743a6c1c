//! `ckpt rm`: removes one directory of a run, whatever its contents.

use std::{
    collections::BTreeMap,
    fs,
    io::{self, Write},
    path::{Path, PathBuf},
};

use anyhow::{Context, bail};
use clap::Args;
use serde::Serialize;
use tinderbox_checkpoint::{ErrorClass, LoadError, Run, SaveError};
use tinderbox_deferred::human_bytes;

use super::place::{is_link, run_at, step_of, url_of};
use crate::{
    outcome::Outcome,
    terminal::{Output, ShownPath, one_line},
};

/// Arguments of `rm`.
#[derive(Args, Debug)]
pub(crate) struct Flags {
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
struct Report {
    dir: ShownPath,
    state: String,
    /// The target, if it is a symbolic link, of which only the link is removed.
    link: Option<ShownPath>,
    /// Names and bytes.
    files: BTreeMap<String, u64>,
    removed: bool,
}

/// Reports the state of the directory, and removes it with `--yes`.
pub(crate) fn run(flags: &Flags, out: &mut Output) -> anyhow::Result<Outcome> {
    let dir = &flags.dir;
    let (parent, name) = split(dir)?;
    let run = run_at(parent)?;
    let in_bucket = url_of(dir).is_some();
    let unreadable = || format!("{} can't be read", dir.display());
    let link = match !in_bucket && is_link(dir) {
        true => Some(fs::read_link(parent.join(name)).with_context(unreadable)?),
        false => None,
    };
    let files = match in_bucket || link.is_some() {
        true => BTreeMap::new(),
        false => files_of(dir).with_context(unreadable)?,
    };
    let report = Report {
        dir: dir.as_path().into(),
        link: link.map(|target| target.as_path().into()),
        state: state_of(&run, dir, name, flags.sound)?,
        files,
        removed: flags.yes,
    };
    if flags.yes {
        run.discard(name)?;
    }
    out.answer(&report, |out| report.show(in_bucket, out))?;
    Ok(Outcome::Done)
}

impl Report {
    fn show(&self, in_bucket: bool, out: &mut Output) -> io::Result<()> {
        let dir = &self.dir;
        writeln!(out, "{}", self.state)?;
        if let Some(target) = &self.link {
            let target = one_line(&target.to_string());
            writeln!(
                out,
                "it is a symbolic link to {target}, which is not removed"
            )?;
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

/// Splits a path into the run and the name in it.
fn split(dir: &Path) -> anyhow::Result<(&Path, &str)> {
    let parts = match url_of(dir) {
        Some(url) => {
            let parts = url.trim_end_matches('/').rsplit_once('/');
            parts.map(|(run, name)| (Path::new(run), name))
        }
        None => {
            let name = dir.file_name().and_then(|name| name.to_str());
            let parent = dir.parent().filter(|parent| !parent.as_os_str().is_empty());
            name.map(|name| (parent.unwrap_or(Path::new(".")), name))
        }
    };
    parts.with_context(|| format!("{} is not a directory in a run", dir.display()))
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
        // In a bucket there is nothing else.
        Err(error @ LoadError::NotPublished { .. }) if url_of(dir).is_some() => Err(error.into()),
        Err(error) => match error.class() {
            ErrorClass::Damaged | ErrorClass::Missing => Ok(one_line(&error.chain())),
            _ if sound => Ok(one_line(&error.chain())),
            _ => Err(anyhow::Error::from(error).context(format!(
                "{} is not known to be damaged: use --sound to remove it anyway",
                dir.display()
            ))),
        },
    }
}

/// Returns its files with their sizes; none for a file.
fn files_of(dir: &Path) -> io::Result<BTreeMap<String, u64>> {
    if !fs::symlink_metadata(dir)?.is_dir() {
        return Ok(BTreeMap::new());
    }
    let files = fs::read_dir(dir)?.map(|entry| {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        Ok((name, entry.metadata()?.len()))
    });
    files.collect()
}
