//! A rank in a process of its own finds the attempt, and learns what became of it.

use std::{sync::Arc, time::Duration};

use super::{AttemptHandle, attempt::failed, clean::marker_of, wait::poll};
use crate::{
    SaveError,
    format::{
        MANIFEST_FILE, MARKER_FILE, MAX_MANIFEST_BYTES, Marker, decode_manifest,
        parse_attempt_dir_name, step_dir_name,
    },
    store::{Store, join, read_small},
};

impl AttemptHandle {
    /// The one living attempt to save a step.
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

    /// Waits until the coordinator has published the attempt.
    ///
    /// # Errors
    ///
    /// When it was given up, or the time is up.
    pub fn wait_published(&self, timeout: Duration) -> Result<(), SaveError> {
        let step_dir = step_dir_name(self.marker.step);
        let published = poll(timeout, || {
            // First the attempt, then the step: in between it can only have been published.
            let living = self.store.look(&join(&self.dir, MARKER_FILE)).is_ok();
            let path = join(&step_dir, MANIFEST_FILE);
            let manifest = read_small(&*self.store, &path, MAX_MANIFEST_BYTES);
            let manifest = manifest.ok().and_then(|bytes| decode_manifest(&bytes).ok());
            match manifest {
                Some(manifest) if manifest.attempt == self.marker.attempt => Ok(Some(())),
                _ if living => Ok(None),
                _ => Err(SaveError::GivenUp {
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

/// The markers of the attempts to save a step whose coordinators live.
fn living(store: &dyn Store, step: u64) -> Result<Vec<Marker>, SaveError> {
    let listing = match store.list("") {
        Ok(listing) => listing,
        // The coordinator makes the directory.
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(failed(store, "list", "")(error)),
    };
    let names = listing.into_iter().map(|found| found.name);
    let of_step = names.filter(|name| parse_attempt_dir_name(name).is_some_and(|n| n.0 == step));
    let living = of_step.filter(|dir| {
        // A lock that can be had belonged to the dead. Where there are no locks, all may live.
        !matches!(store.try_lock(&join(dir, MARKER_FILE), true), Ok(Some(_)))
    });
    // A marker that is not whole yet is looked at again.
    Ok(living.filter_map(|dir| marker_of(store, &dir)).collect())
}
