//! Selection of the checkpoint to resume from.

use std::path::PathBuf;

use super::Run;
use crate::{
    Checkpoint, ErrorClass, LoadError, error::chain, format::step_dir_name, read::failed,
    store::existing,
};

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

impl Run {
    /// Returns the usable checkpoint with the highest step; `None` if the run has no checkpoints.
    ///
    /// Skips a checkpoint that is known to be damaged or has no manifest, and reports the reason in the
    /// result and in a `tracing` warning. Does not read tensor data: damage in it is detected by a load, or
    /// by [`latest_verified`](Self::latest_verified).
    ///
    /// # Errors
    ///
    /// Returns [`LoadError::NotUsable`] if the newest checkpoint that is not damaged can't be used, because
    /// it has another version of the format, or the store fails or denies access. Returns
    /// [`LoadError::NoneUsable`] with all reasons if checkpoints exist and all of them are damaged.
    pub fn latest(&self) -> Result<Option<Latest>, LoadError> {
        self.latest_that(|_| Ok(()))
    }

    /// As [`latest`](Self::latest), and reads and checks every byte of the checkpoint. Time: a pass over the
    /// files of each examined checkpoint.
    ///
    /// # Errors
    ///
    /// See [`latest`](Self::latest).
    pub fn latest_verified(&self) -> Result<Option<Latest>, LoadError> {
        self.latest_that(Checkpoint::verify)
    }

    /// Returns the usable checkpoint with the highest step that also passes a check.
    ///
    /// # Errors
    ///
    /// See [`latest`](Self::latest); the reasons include the reasons of the check.
    pub fn latest_that(
        &self,
        test: impl Fn(&Checkpoint) -> Result<(), LoadError>,
    ) -> Result<Option<Latest>, LoadError> {
        let mut skipped = Vec::new();
        for step in self.steps()?.into_iter().rev() {
            let tested = self.open(step).and_then(|checkpoint| {
                test(&checkpoint)?;
                Ok(checkpoint)
            });
            match tested {
                Ok(checkpoint) => {
                    return Ok(Some(Latest {
                        checkpoint,
                        skipped,
                    }));
                }
                Err(reason) => skipped.extend(self.skip_damaged(step, reason)?),
            }
        }
        match skipped.is_empty() {
            true => Ok(None),
            false => Err(LoadError::NoneUsable {
                path: self.place(),
                reasons: skipped.into_iter().map(|skipped| skipped.reason).collect(),
            }),
        }
    }

    /// Returns the report on a checkpoint that is known to be damaged; `None` if another process has removed
    /// it meanwhile.
    fn skip_damaged(&self, step: u64, reason: LoadError) -> Result<Option<Skipped>, LoadError> {
        if !matches!(reason.class(), ErrorClass::Damaged | ErrorClass::Missing) {
            return Err(LoadError::NotUsable {
                step,
                source: Box::new(reason),
            });
        }
        let name = step_dir_name(step);
        let found = existing(self.store.look(&name));
        let found = found.map_err(failed(&*self.store, "look at", &name))?;
        if found.is_none() {
            return Ok(None);
        }
        let dir = self.store.place(&name);
        tracing::warn!(
            dir = %dir.display(), reason = %chain(&reason),
            "skipped a damaged checkpoint"
        );
        Ok(Some(Skipped { step, dir, reason }))
    }
}
