//! Discovery of an attempt by a rank in another process, and waiting for its outcome.

use std::{sync::Arc, time::Duration};

use super::{
    AttemptHandle,
    clean::{is_missing, marker_of, published},
    failed,
    wait::poll,
};
use crate::{
    AttemptId, SaveError,
    format::{MARKER_FILE, Marker, attempt_dir_name, parse_attempt_dir_name, step_dir_name},
    store::{Store, existing, join, read_manifest},
};

impl AttemptHandle {
    /// Waits for the only live attempt to save a step.
    pub(crate) fn find(
        store: &Arc<dyn Store>,
        step: u64,
        timeout: Duration,
    ) -> Result<Self, SaveError> {
        let found = poll(timeout, || match &living(&**store, step)?[..] {
            [] => Ok(None),
            [marker] => Ok(Some(Self::new(store.clone(), marker.clone()))),
            several => Err(SaveError::SeveralAttempts {
                step,
                attempts: several.iter().map(|marker| marker.attempt).collect(),
            }),
        })?;
        found.map_err(|waited| SaveError::NoAttempt {
            step,
            path: store.place(""),
            waited_ms: waited.as_millis(),
        })
    }

    /// Waits until the attempt with an id, which the coordinator has sent, is visible in the store.
    pub(crate) fn of(
        store: &Arc<dyn Store>,
        step: u64,
        attempt: AttemptId,
        timeout: Duration,
    ) -> Result<Self, SaveError> {
        let dir = attempt_dir_name(step, attempt);
        let found = poll(timeout, || {
            let marker = marker_of(&**store, &dir);
            Ok(marker.map(|marker| Self::new(store.clone(), marker)))
        })?;
        found.map_err(|waited| SaveError::NoAttempt {
            step,
            path: store.place(""),
            waited_ms: waited.as_millis(),
        })
    }

    /// Waits until the coordinator has published the attempt, as long as ranks write to it within each
    /// `timeout`.
    ///
    /// # Errors
    ///
    /// Returns an error if it was aborted, or if no rank has written to it between two checks, one `timeout`
    /// apart.
    pub fn wait_published(&self, timeout: Duration) -> Result<(), SaveError> {
        let step_dir = step_dir_name(self.marker.step);
        let published = self.poll_while_written(timeout, || {
            // Checks the attempt before the step: in between it can only have been published.
            let marker = self.store.look(&join(&self.dir, MARKER_FILE));
            let living = !marker.is_err_and(|error| is_missing(&error));
            // Reads again if a request failed or the manifest was replaced concurrently.
            let Ok(manifest) = read_manifest(&*self.store, &step_dir) else {
                return Ok(None);
            };
            match manifest.and_then(Result::ok) {
                Some(manifest) if manifest.attempt == self.marker.attempt => Ok(Some(())),
                _ if living => Ok(None),
                _ => Err(SaveError::Aborted {
                    step: self.marker.step,
                    attempt: self.marker.attempt,
                }),
            }
        })?;
        published.map_err(|waited| SaveError::NotPublished {
            step: self.marker.step,
            attempt: self.marker.attempt,
            waited_ms: waited.as_millis(),
        })
    }
}

/// Returns the markers of the attempts to save a step whose coordinators are alive.
fn living(store: &dyn Store, step: u64) -> Result<Vec<Marker>, SaveError> {
    // The coordinator creates the directory.
    let listing = existing(store.list("")).map_err(failed(store, "list", ""))?;
    let names = listing
        .unwrap_or_default()
        .into_iter()
        .map(|found| found.name);
    let of_step = names.filter(|name| parse_attempt_dir_name(name).is_some_and(|n| n.0 == step));
    let living = of_step.filter_map(|dir| {
        let lock = store.try_lock(&join(&dir, MARKER_FILE), true);
        if let Ok(Some(_)) = lock {
            // A lock that can be acquired belonged to a dead coordinator.
            return None;
        }
        // An incomplete marker is read again later. A marker of another name belongs to a checkpoint that
        // this attempt has replaced.
        let marker = marker_of(store, &dir)?;
        if parse_attempt_dir_name(&dir) != Some((marker.step, marker.attempt)) {
            return None;
        }
        // Without locks, every attempt that was not published may be alive.
        let is_published =
            lock.is_err() && published(store, &step_dir_name(step)) == Ok(Some(marker.attempt));
        (!is_published).then_some(marker)
    });
    Ok(living.collect())
}
