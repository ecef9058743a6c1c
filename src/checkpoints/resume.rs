//! Resumes a run from its newest undamaged checkpoint.

use burn::module::Module;
use tinderbox_checkpoint::{ErrorClass, Latest, LoadError, Skipped};
use tinderbox_pipeline::{Batch, Pipeline};

use super::Checkpoints;
use super::restored::{Resumed, SkippedCheckpoint, restore};
use crate::CheckpointsError;

impl Checkpoints {
    /// Restores the newest undamaged checkpoint, saved by any number of ranks. Newer damaged ones are skipped
    /// and set aside, so that their steps can be saved again; the result lists them, and each causes a
    /// `tracing` warning. Returns `None` if there is no checkpoint: the pipeline is then unchanged. A
    /// pipeline without an optimizer does not read optimizer state.
    ///
    /// Memory: in addition to the pipeline's, as much as the largest parameter for each rank, because each
    /// value replaces the old one as soon as it is read.
    ///
    /// In a [world](Self::in_world) of processes, the first chooses the checkpoint, and no process changes anything before
    /// all have found that it fits. If data turns out to be damaged then, no older checkpoint is tried: start again.
    ///
    /// # Errors
    ///
    /// Returns an error if the newest undamaged checkpoint is of another model, seed or version of
    /// the format, or was saved with other [settings](Pipeline::run_settings) than the pipeline's that may not
    /// [change](Self::allow_changes), or its store fails or denies access; the pipeline is then unchanged, and no older step is
    /// used. Returns [`CheckpointsError::Mixed`] if values could not be read after others were replaced, and
    /// no older checkpoint could be restored instead: the pipeline is then unusable.
    pub fn resume<M: Module + Sync + 'static, B: Batch>(
        &self,
        pipeline: &mut Pipeline<M, B>,
    ) -> Result<Option<Resumed>, CheckpointsError> {
        self.wait()?;
        if let Some(world) = &self.world {
            return self.resume_in_world(world, pipeline);
        }
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
        tracing::warn!(error = %chain(&failed), "a checkpoint is damaged: searching for an undamaged one");
        // Reads all data of each.
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
        let mut resumed = restore(pipeline, latest.checkpoint, &self.settings)?;
        // Only now, because until an older checkpoint is restored there is no other.
        let skipped = latest.skipped.into_iter();
        resumed.skipped = skipped.map(|skipped| self.set_aside(&skipped)).collect();
        Ok(resumed)
    }

    pub(super) fn set_aside(&self, skipped: &Skipped) -> SkippedCheckpoint {
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
        SkippedCheckpoint {
            step: *step,
            reason: reason.chain(),
            set_aside: moved,
        }
    }
}

/// Formats an error with all of its sources on one line.
fn chain(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(error.source(), |error| error.source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}
