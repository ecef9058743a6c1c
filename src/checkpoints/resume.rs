//! A run goes on from its newest checkpoint that is not damaged.

use std::path::PathBuf;

use burn::module::Module;
use serde_json::Value;
use tinderbox_checkpoint::{ErrorClass, Latest, LoadError, Skipped};
use tinderbox_pipeline::{Batch, Pipeline};

use super::restored::restore;
use super::{Checkpoints, chain};
use crate::CheckpointsError;

/// Where a run was resumed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resumed {
    /// Training steps that the checkpoint has behind it.
    pub step: u64,
    /// How far the data was read, in the caller's unit.
    pub data_position: u64,
    /// What was saved with it by [`Checkpoints::save_with`]; `null` without.
    pub metadata: Value,
    /// The checkpoint.
    pub dir: PathBuf,
    /// The damaged checkpoints after it, the newest first.
    pub stepped_over: Vec<SteppedOver>,
}

/// A damaged checkpoint that a run has stepped over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SteppedOver {
    /// Its step, which can be saved again.
    pub step: u64,
    /// What is wrong with it, on one line.
    pub reason: String,
    /// Where its files are now: nothing takes them for a checkpoint, and nothing removes them by itself. `None` when
    /// somebody has removed them meanwhile, or they could not be moved: then a `tracing` warning says why, and the step
    /// can't be saved.
    pub set_aside: Option<PathBuf>,
}

impl Checkpoints {
    /// Restores the newest checkpoint that is not damaged, whatever number of ranks saved it. Damaged ones after it are
    /// stepped over and set aside, so that their steps can be saved again: the result names them, and a `tracing`
    /// warning each. `None` when there is no checkpoint: the pipeline is then as it was started. A pipeline without an
    /// optimizer reads no optimizer state.
    ///
    /// Memory: beside what the pipeline holds afterwards, as much as the largest parameter for each rank: each value
    /// replaces the old one as soon as it is read.
    ///
    /// # Errors
    ///
    /// When the newest checkpoint that is not damaged is of another model, optimizer, seed or version of the format, or
    /// its store fails or denies it; nothing of the pipeline has changed then, and no older step is taken.
    /// [`CheckpointsError::Mixed`] when values could not be read while others were replaced, and no
    /// older checkpoint could be restored instead: the pipeline can't be used any more.
    pub fn resume<M: Module + Sync + 'static, B: Batch>(
        &self,
        pipeline: &mut Pipeline<M, B>,
    ) -> Result<Option<Resumed>, CheckpointsError> {
        self.wait()?;
        let Some(latest) = self.run.latest()? else {
            return Ok(None);
        };
        let failed = match self.restore_latest(pipeline, latest) {
            Err(failed @ CheckpointsError::LoadRank { .. }) => failed,
            done => return done.map(Some),
        };
        let mixed = |source| CheckpointsError::Mixed {
            path: self.place.clone(),
            source: Box::new(source),
        };
        if LoadError::class_in(&failed) != Some(ErrorClass::Damaged) {
            return Err(mixed(failed));
        }
        tracing::warn!(error = %chain(&failed), "a checkpoint is damaged: looking for one that is not");
        // This reads all of each.
        match self.run.latest_verified() {
            Ok(Some(latest)) => self
                .restore_latest(pipeline, latest)
                .map(Some)
                .map_err(mixed),
            Ok(None) => Err(mixed(failed)),
            Err(error) => Err(mixed(error.into())),
        }
    }

    fn restore_latest<M: Module + Sync + 'static, B: Batch>(
        &self,
        pipeline: &mut Pipeline<M, B>,
        latest: Latest,
    ) -> Result<Resumed, CheckpointsError> {
        let mut resumed = restore(pipeline, latest.checkpoint)?;
        // Only now: until an older one is restored, they are all that there is.
        let skipped = latest.skipped.into_iter();
        resumed.stepped_over = skipped.map(|skipped| self.set_aside(&skipped)).collect();
        Ok(resumed)
    }

    fn set_aside(&self, skipped: &Skipped) -> SteppedOver {
        let Skipped { step, dir, reason } = skipped;
        let moved = self.run.set_aside(*step).unwrap_or_else(|error| {
            tracing::warn!(
                step, dir = %dir.display(), error = %chain(&error),
                "a damaged checkpoint could not be set aside: its step can't be saved again"
            );
            None
        });
        if let Some(to) = &moved {
            tracing::warn!(
                step, from = %dir.display(), to = %to.display(), reason = %reason.chain(),
                "set a damaged checkpoint aside"
            );
        }
        SteppedOver {
            step: *step,
            reason: reason.chain(),
            set_aside: moved,
        }
    }
}
