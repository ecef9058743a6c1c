//! Which checkpoint a run goes on from.

use std::path::PathBuf;

use super::Run;
use crate::{
    Checkpoint, ErrorClass, LoadError, error::chain, format::step_dir_name, read::failed,
    store::existing,
};

/// The newest checkpoint that can be used, and the damaged ones after it.
#[derive(Debug)]
pub struct Latest {
    /// The checkpoint.
    pub checkpoint: Checkpoint,
    /// Each newer one, which is damaged; the newest first.
    pub skipped: Vec<Skipped>,
}

/// A damaged checkpoint that was stepped over.
#[derive(Debug)]
pub struct Skipped {
    /// Its step.
    pub step: u64,
    /// Its directory.
    pub dir: PathBuf,
    /// What is wrong with it; names its directory or file.
    pub reason: LoadError,
}

impl Run {
    /// The usable checkpoint with the highest step; `None` when there is none at all.
    ///
    /// One that is proven to be damaged, or has no manifest, is stepped over, with its reason in the result and in a
    /// `tracing` warning. Tensor data is not read: damage in it is found when it is loaded, or by
    /// [`latest_verified`](Self::latest_verified).
    ///
    /// # Errors
    ///
    /// [`LoadError::NotUsable`] when the newest that is not damaged can't be used: another version of the format wrote
    /// it, its store fails or denies it. [`LoadError::NoneUsable`] with all reasons when there are checkpoints and all
    /// are damaged.
    pub fn latest(&self) -> Result<Option<Latest>, LoadError> {
        self.latest_that(|_| Ok(()))
    }

    /// As [`latest`](Self::latest), and every byte of it was read and is right. Time: a pass over the
    /// files of each checkpoint that is looked at.
    ///
    /// # Errors
    ///
    /// As there.
    pub fn latest_verified(&self) -> Result<Option<Latest>, LoadError> {
        self.latest_that(Checkpoint::verify)
    }

    /// The usable checkpoint with the highest step that also passes a test.
    ///
    /// # Errors
    ///
    /// As [`latest`](Self::latest); the reasons are the test's too.
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
                Err(reason) => skipped.extend(self.step_over(step, reason)?),
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

    /// What is reported of a checkpoint that an error proves to be damaged; `None` when somebody has removed it meanwhile.
    fn step_over(&self, step: u64, reason: LoadError) -> Result<Option<Skipped>, LoadError> {
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
            "stepped over a damaged checkpoint"
        );
        Ok(Some(Skipped { step, dir, reason }))
    }
}
