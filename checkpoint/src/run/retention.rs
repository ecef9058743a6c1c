//! Retention of checkpoints.
//!
//! Invariant: if a checkpoint could be loaded before, one can be loaded afterwards, also after a kill or a
//! power failure in between.

use serde::{Deserialize, Serialize};

use super::Run;
use crate::SaveError;

/// The checkpoints to keep.
///
/// ```
/// use tinderbox_checkpoint::Retention;
///
/// let retention = Retention::newest(2).and_every(100);
/// assert_eq!(retention.expired(&[50, 100, 150, 200, 250]), [50, 150]);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Retention {
    /// The number of newest checkpoints to keep, at least 1.
    pub last: usize,
    /// Additionally keeps checkpoints whose step is a multiple of this number.
    pub every: Option<u64>,
}

impl Retention {
    /// Keeps the `count` newest checkpoints, at least one.
    pub const fn newest(count: usize) -> Self {
        Self {
            last: count,
            every: None,
        }
    }

    /// Also keeps each checkpoint whose step is a multiple of `steps`.
    #[must_use]
    pub const fn and_every(self, steps: u64) -> Self {
        Self {
            every: Some(steps),
            ..self
        }
    }

    /// Returns the steps to remove, sorted.
    pub fn expired(&self, steps: &[u64]) -> Vec<u64> {
        let mut steps = steps.to_vec();
        steps.sort_unstable();
        let old = steps.len().saturating_sub(self.last.max(1));
        steps.truncate(old);
        steps.retain(|step| self.every.is_none_or(|every| !step.is_multiple_of(every)));
        steps
    }
}

impl Run {
    /// Returns the steps that [`prune`](Self::prune) would remove, sorted. `usable` are the steps that can be opened, sorted.
    pub fn expired(&self, usable: &[u64], retention: Retention) -> Vec<u64> {
        let mut expired = retention.expired(usable);
        if expired.is_empty() {
            return expired;
        }
        let kept = usable.iter().rev().filter(|step| !expired.contains(step));
        if !kept.copied().any(|step| self.is_whole(step)) {
            // If no kept checkpoint is intact, the newest intact one is kept as well; if none is intact,
            // nothing is removed.
            let whole = expired.iter().rposition(|step| self.is_whole(*step));
            match whole {
                Some(whole) => drop(expired.remove(whole)),
                None => expired.clear(),
            }
        }
        expired
    }

    /// Removes the checkpoints that are not to be kept; returns their steps, sorted. Checkpoints that can't be opened are
    /// neither counted nor removed. If no kept checkpoint is intact, the newest intact checkpoint is kept as well.
    ///
    /// Time: if something is removed, a pass over the files of the newest kept checkpoint, and over the files of other
    /// checkpoints only while damage is found.
    ///
    /// # Errors
    ///
    /// Returns an error if a checkpoint can't be removed.
    pub fn prune(&self, retention: Retention) -> Result<Vec<u64>, SaveError> {
        let usable = self.usable(|step| self.open(step).is_ok())?;
        self.remove_all(self.expired(&usable, retention))
    }

    /// Removes checkpoints like [`prune`](Self::prune), immediately after a step was saved: keeps this step, and reads only the
    /// manifests of checkpoints that this `Run` has neither saved nor opened before.
    ///
    /// # Errors
    ///
    /// See [`prune`](Self::prune).
    pub fn prune_after_save(&self, step: u64, retention: Retention) -> Result<Vec<u64>, SaveError> {
        self.opened.lock().insert(step);
        let known = self.opened.lock().clone();
        // The disk of a link's target may not be mounted.
        let is_known = |step: u64| known.contains(&step) && self.link_target(step).is_none();
        let usable = self.usable(|step| is_known(step) || self.open(step).is_ok())?;
        let mut expired = retention.expired(&usable);
        expired.retain(|other| *other != step);
        self.remove_all(expired)
    }

    fn remove_all(&self, steps: Vec<u64>) -> Result<Vec<u64>, SaveError> {
        for step in &steps {
            self.remove(*step)?;
            self.opened.lock().remove(step);
        }
        Ok(steps)
    }

    fn usable(&self, is_usable: impl Fn(u64) -> bool) -> Result<Vec<u64>, SaveError> {
        let steps = self.steps().map_err(Box::new);
        let steps = steps.map_err(|source| SaveError::List { source })?;
        Ok(steps.into_iter().filter(|step| is_usable(*step)).collect())
    }

    /// Reads and checks every byte of a checkpoint and returns whether it is intact.
    fn is_whole(&self, step: u64) -> bool {
        let verified = self.open(step).and_then(|checkpoint| checkpoint.verify());
        if let Err(error) = &verified {
            let reason = error.chain();
            tracing::warn!(
                step,
                reason,
                "a checkpoint to keep is damaged or can't be read"
            );
        }
        verified.is_ok()
    }
}
