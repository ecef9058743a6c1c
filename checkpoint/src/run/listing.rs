//! The entries of a run's directory: steps, checkpoints that were set aside, and entries of other programs. Selection of the
//! checkpoint to resume from.

use std::path::PathBuf;

use super::Run;
use crate::format::{MANIFEST_FILE, names};
use crate::store::{Found, FoundKind};
use crate::{Checkpoint, ErrorClass, LoadError};

/// The prefix of the names of steps.
const STEP: &str = "step-";

/// The newest usable checkpoint, and the newer damaged ones.
#[derive(Debug)]
pub struct Latest {
    /// The checkpoint.
    pub checkpoint: Checkpoint,
    /// The newer, damaged checkpoints, newest first.
    pub skipped: Vec<Skipped>,
}

/// A damaged checkpoint that was skipped.
#[derive(Debug)]
pub struct Skipped {
    /// The step.
    pub step: u64,
    /// The directory.
    pub dir: PathBuf,
    /// The reason why it is damaged; names its directory or file.
    pub reason: LoadError,
}

/// Returns the step of a directory, or of a link to a directory. A link to an empty directory, such as the mount point of a
/// disk that is not mounted, has no manifest, and is skipped with a warning.
fn step_of(found: &Found) -> Option<u64> {
    let step = names::parse_step_dir(&found.name);
    step.filter(|_| matches!(found.kind, FoundKind::Dir | FoundKind::Link))
}

/// Returns the reason why an entry is neither a checkpoint nor another directory of this crate; `None` if it is one of them.
fn reason(found: &Found) -> Option<&'static str> {
    let name = &*found.name;
    let is_ours = names::parse_damaged_dir(name).is_some() || names::is_of_attempt(name);
    if is_ours || step_of(found).is_some() {
        return None;
    }
    Some(match name.starts_with(STEP) {
        true if names::parse_step_dir(name).is_some() => {
            "it has the name of a step, and is not a directory"
        }
        true => "it does not have the name of a step, such as step-00000100",
        false => "it is not part of the run",
    })
}

impl Run {
    /// Returns the steps that have a directory, or a symbolic link to one, sorted. They are published; whether they are intact,
    /// and whether the target of a link exists, is not checked.
    ///
    /// An entry that begins with `step-` and is not a step causes a `tracing` warning, once for each name and run.
    ///
    /// # Errors
    ///
    /// Returns an error if the store can't be listed.
    pub fn steps(&self) -> Result<Vec<u64>, LoadError> {
        let listing = self.list()?;
        let mut steps: Vec<u64> = listing.iter().filter_map(step_of).collect();
        steps.sort_unstable();
        for found in listing.iter().filter(|found| found.name.starts_with(STEP)) {
            if let Some(reason) = reason(found)
                && self.warned.lock().insert(found.name.clone())
            {
                let path = self.store.place(&found.name);
                tracing::warn!(path = %path.display(), reason, "this is not a checkpoint");
            }
        }
        Ok(steps)
    }

    /// Returns the directories of damaged checkpoints that were [set aside](Self::set_aside), sorted by name.
    ///
    /// # Errors
    ///
    /// Returns an error if the store can't be listed.
    pub fn set_aside_dirs(&self) -> Result<Vec<String>, LoadError> {
        let names = self.list()?.into_iter().map(|found| found.name);
        let set_aside = names.filter(|name| names::parse_damaged_dir(name).is_some());
        let mut names: Vec<String> = set_aside.collect();
        names.sort_unstable();
        Ok(names)
    }

    /// Lists the root; returns an empty list if it does not exist.
    fn list(&self) -> Result<Vec<Found>, LoadError> {
        let listing = self.store.entries("")?;
        match listing.iter().any(|found| found.name == MANIFEST_FILE) {
            true => Err(LoadError::NotARun { path: self.place() }),
            false => Ok(listing),
        }
    }

    /// Returns the unknown entries of the run, by name, each with the reason: they are neither steps, nor attempts, nor
    /// checkpoints that were [set aside](Self::set_aside). Nothing uses or removes them. A name that is not UTF-8 is lossy.
    ///
    /// # Errors
    ///
    /// Returns an error if the store can't be listed.
    pub fn foreign(&self) -> Result<Vec<(String, &'static str)>, LoadError> {
        let listing = self.list()?.into_iter();
        let foreign = listing.filter_map(|found| Some((reason(&found)?, found.name)));
        let mut foreign: Vec<_> = foreign.map(|(reason, name)| (name, reason)).collect();
        foreign.sort_unstable();
        Ok(foreign)
    }

    /// Returns the usable checkpoint with the highest step; `None` if the run has no checkpoints.
    ///
    /// Skips a checkpoint that is known to be damaged or has no manifest, and reports the reason in the result and in a
    /// `tracing` warning. Does not read tensor data: a load or [`latest_verified`](Self::latest_verified) detects damage in it.
    ///
    /// # Errors
    ///
    /// Returns [`LoadError::NotUsable`] if the newest checkpoint that is not damaged can't be used, because
    /// it has another version of the format, or the store fails or denies access. Returns
    /// [`LoadError::NoneUsable`] with all reasons if checkpoints exist and all of them are damaged.
    pub fn latest(&self) -> Result<Option<Latest>, LoadError> {
        self.latest_that(|_| Ok(()))
    }

    /// Returns the checkpoint that [`latest`](Self::latest) returns, if every byte of it is intact, and otherwise an older one.
    /// Time: a pass over the files of each examined checkpoint.
    ///
    /// # Errors
    ///
    /// See [`latest`](Self::latest).
    pub fn latest_verified(&self) -> Result<Option<Latest>, LoadError> {
        self.latest_that(Checkpoint::verify)
    }

    /// Returns the usable checkpoint with the highest step that also passes a check.
    fn latest_that(
        &self,
        test: impl Fn(&Checkpoint) -> Result<(), LoadError>,
    ) -> Result<Option<Latest>, LoadError> {
        let mut skipped = Vec::new();
        for step in self.steps()?.into_iter().rev() {
            let opened = self.open(step);
            match opened.and_then(|checkpoint| test(&checkpoint).map(|()| checkpoint)) {
                Ok(checkpoint) => {
                    return Ok(Some(Latest {
                        checkpoint,
                        skipped,
                    }));
                }
                Err(reason) => skipped.extend(self.skip_damaged(step, reason)?),
            }
        }
        if skipped.is_empty() {
            return Ok(None);
        }
        let reasons = skipped.into_iter().map(|skipped| skipped.reason).collect();
        let path = self.place();
        Err(LoadError::NoneUsable { path, reasons })
    }

    /// Returns the report on a checkpoint that is known to be damaged; `None` if another process has removed it.
    fn skip_damaged(&self, step: u64, reason: LoadError) -> Result<Option<Skipped>, LoadError> {
        if !matches!(reason.class(), ErrorClass::Damaged | ErrorClass::Missing) {
            let source = Box::new(reason);
            return Err(LoadError::NotUsable { step, source });
        }
        let name = names::step_dir(step);
        if self.store.find(&name)?.is_none() {
            return Ok(None);
        }
        let dir = self.store.place(&name);
        tracing::warn!(dir = %dir.display(), reason = %reason.chain(), "skipped a damaged checkpoint");
        Ok(Some(Skipped { step, dir, reason }))
    }
}
