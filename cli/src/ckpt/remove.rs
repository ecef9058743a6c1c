//! `ckpt remove`: removes one directory of a run, whatever its contents.

use std::{
    fs,
    io::Write,
    path::{Path, PathBuf},
};

use anyhow::{Context, bail};
use clap::Args;
use tinderbox_checkpoint::{ErrorClass, Run};
use tinderbox_deferred::human_bytes;

use super::place::{run_at, step_of, url_of};
use crate::{outcome::Outcome, terminal::one_line};

/// Arguments of `remove`.
#[derive(Args, Debug)]
pub(crate) struct Flags {
    /// Step directory (step-00000100) or directory that was set aside (damaged-00000100), or its URL in a
    /// bucket
    #[arg(value_name = "STEP_DIR")]
    dir: PathBuf,
    /// Remove it even if its manifest is valid
    #[arg(long)]
    sound: bool,
    /// Remove it; otherwise only report what would be removed
    #[arg(long)]
    yes: bool,
}

/// Reports the state of the directory, and removes it with `--yes`.
pub(crate) fn run(flags: &Flags, out: &mut dyn Write) -> anyhow::Result<Outcome> {
    let dir = &flags.dir;
    let (parent, name) = split(dir)?;
    let run = run_at(parent)?;
    let state = state_of(&run, dir, name, flags.sound)?;
    writeln!(out, "{}: {state}", dir.display())?;
    if url_of(dir).is_none() {
        list(dir, out)?;
    }
    if !flags.yes {
        writeln!(
            out,
            "nothing was removed: use --yes to remove it with all its contents"
        )?;
        return Ok(Outcome::Fine);
    }
    run.discard(name)?;
    writeln!(out, "removed {}", dir.display())?;
    if url_of(dir).is_some() {
        writeln!(
            out,
            "`tinderbox ckpt gc --yes` removes the files of its attempt"
        )?;
    }
    Ok(Outcome::Fine)
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

/// Describes the directory; returns an error for a checkpoint with a valid manifest unless `sound` is set.
fn state_of(run: &Run, dir: &Path, name: &str, sound: bool) -> anyhow::Result<String> {
    let Some(step) = step_of(name) else {
        return Ok("a checkpoint that was set aside".to_owned());
    };
    match run.open(step) {
        Ok(_) if sound => Ok(format!("step {step}, with a valid manifest")),
        Ok(_) => bail!(
            "{} has a valid manifest: use `tinderbox ckpt gc` to remove old checkpoints, or --sound to \
             remove this one anyway",
            dir.display()
        ),
        Err(error) if error.class() == ErrorClass::Damaged => Ok(format!(
            "step {step}, damaged: {}",
            one_line(&error.chain())
        )),
        Err(error) if error.class() == ErrorClass::Missing => {
            Ok(format!("step {step}, without a manifest"))
        }
        Err(error) => Ok(format!(
            "step {step}, which can't be used: {}",
            one_line(&error.chain())
        )),
    }
}

/// Lists its files with their sizes.
fn list(dir: &Path, out: &mut dyn Write) -> anyhow::Result<()> {
    let found = fs::symlink_metadata(dir).with_context(|| dir.display().to_string())?;
    if !found.is_dir() {
        writeln!(
            out,
            "  not a directory; the target of a link is not removed"
        )?;
        return Ok(());
    }
    let mut files = Vec::new();
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        files.push((name, entry.metadata()?.len()));
    }
    files.sort();
    let bytes = files.iter().map(|(_, bytes)| bytes).sum();
    for (name, bytes) in &files {
        writeln!(out, "  {} ({})", one_line(name), human_bytes(*bytes))?;
    }
    writeln!(out, "  {} entries, {}", files.len(), human_bytes(bytes))?;
    Ok(())
}
