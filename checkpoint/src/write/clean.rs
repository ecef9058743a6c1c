//! Removes what is no checkpoint: abandoned attempts, and what killed saves left behind.

use std::{io, path::PathBuf};

use super::attempt::failed;
use crate::{
    AttemptId, SaveError,
    format::{
        MANIFEST_FILE, MARKER_FILE, MAX_MANIFEST_BYTES, Manifest, Marker, attempt_dir_name,
        decode_manifest, parse_attempt_dir_name, parse_removed_dir_name, removed_dir_name,
        step_dir_name,
    },
    store::{FoundKind, Lock, Store, join, read_small, remove_tree},
};

/// More than any marker takes, in bytes.
const MAX_MARKER_BYTES: u64 = 4096;

/// What is no checkpoint in the store of a run: what [`Run::clean`](crate::Run::clean) did, or what
/// [`Run::leftovers`](crate::Run::leftovers) found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cleaned {
    /// Directories that are provably ours and dead, in the order of their names.
    pub removed: Vec<PathBuf>,
    /// Directories that look like ours and were left, with the reason.
    pub kept: Vec<(PathBuf, &'static str)>,
}

/// A directory that may go.
enum Leftover {
    /// The directory of an attempt, with the lock of its marker where it has one.
    Attempt(AttemptId, u64, Option<Lock>),
    /// Something that was going away already.
    Removed,
}

/// Finds directories of ours that are no checkpoints, and removes them unless it is a trial.
pub(crate) fn clean(store: &dyn Store, trial: bool) -> Result<Cleaned, SaveError> {
    let mut cleaned = Cleaned::default();
    let listing = match store.list("") {
        Ok(listing) => listing,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(cleaned),
        Err(error) => return Err(failed(store, "list", "")(error)),
    };
    let ours = |name: &str| {
        parse_attempt_dir_name(name).is_some() || parse_removed_dir_name(name).is_some()
    };
    let mut found: Vec<_> = listing.into_iter().filter(|f| ours(&f.name)).collect();
    found.sort_by(|a, b| a.name.cmp(&b.name));
    for entry in found {
        let (name, place) = (&entry.name, store.place(&entry.name));
        let leftover = match entry.kind {
            FoundKind::Dir => leftover(store, name),
            _ => Err("it is no directory"),
        };
        match leftover {
            Ok(_) if trial => cleaned.removed.push(place),
            Ok(leftover) => {
                remove(store, name, leftover).map_err(failed(store, "remove", name))?;
                cleaned.removed.push(place);
            }
            Err(reason) => {
                tracing::warn!(dir = %place.display(), reason, "left a directory");
                cleaned.kept.push((place, reason));
            }
        }
    }
    Ok(cleaned)
}

/// Why a directory may go, or why it stays.
fn leftover(store: &dyn Store, name: &str) -> Result<Leftover, &'static str> {
    // A kill between two calls leaves an empty directory; removing it destroys nothing.
    let empty = store.list(name).is_ok_and(|listing| listing.is_empty());
    if let Some((step, attempt)) = parse_removed_dir_name(name) {
        let marked = marker_of(store, name).is_some_and(|m| (m.step, m.attempt) == (step, attempt));
        let saved = manifest_of(store, name)
            .is_some_and(|found| (found.step, found.attempt) == (step, attempt));
        return match empty || marked || saved {
            true => Ok(Leftover::Removed),
            false => Err("neither marker nor manifest says that it was ours"),
        };
    }
    let (step, attempt) = parse_attempt_dir_name(name).ok_or("its name is not ours")?;
    if empty {
        return Ok(Leftover::Attempt(attempt, step, None));
    }
    // A step was replaced: the attempt that gave its name is the step's checkpoint now.
    if let Some(earlier) = manifest_of(store, name)
        && earlier.step == step
        && earlier.attempt != attempt
        && manifest_of(store, &step_dir_name(step)).is_some_and(|now| now.attempt == attempt)
    {
        return Ok(Leftover::Attempt(earlier.attempt, step, None));
    }
    let marker_path = join(name, MARKER_FILE);
    if store
        .look(&marker_path)
        .is_ok_and(|m| m.kind == FoundKind::File)
    {
        let lock = store.try_lock(&marker_path, false);
        let lock = lock.map_err(|_| "its marker can't be locked")?;
        let lock = lock.ok_or("it is alive: its marker is locked")?;
        return match marker_of(store, name) {
            Some(marker) if (marker.step, marker.attempt) == (step, attempt) => {
                Ok(Leftover::Attempt(attempt, step, Some(lock)))
            }
            Some(_) => Err("its marker is not of this directory"),
            // A kill while the marker was written: no rank has had the handle yet, so nothing else is
            // there. An attempt that is only about to take the lock finds its marker gone, and says so.
            None if store.list(name).is_ok_and(|listing| listing.len() == 1) => {
                Ok(Leftover::Attempt(attempt, step, Some(lock)))
            }
            None => Err("its marker is not whole"),
        };
    }
    Err("it has no marker")
}

fn remove(store: &dyn Store, name: &str, leftover: Leftover) -> io::Result<()> {
    match leftover {
        Leftover::Attempt(attempt, step, _lock) => remove_as(store, name, step, attempt),
        Leftover::Removed => remove_dir(store, name),
    }
}

/// Removes an attempt's directory, whatever it holds by now.
pub(super) fn remove_attempt(store: &dyn Store, marker: &Marker) -> io::Result<()> {
    let dir = attempt_dir_name(marker.step, marker.attempt);
    // After a replacement it holds the earlier checkpoint of the step, which has an id of its own.
    let attempt = manifest_of(store, &dir).map_or(marker.attempt, |manifest| manifest.attempt);
    remove_as(store, &dir, marker.step, attempt)
}

/// Takes a published step away: in one instant it is no checkpoint any more, then its files go.
pub(crate) fn remove_step(store: &dyn Store, step: u64) -> Result<(), SaveError> {
    let name = step_dir_name(step);
    let is_link = store
        .look(&name)
        .is_ok_and(|found| found.kind != FoundKind::Dir);
    let manifest = manifest_of(store, &name).filter(|_| !is_link);
    let manifest = manifest.ok_or_else(|| SaveError::NoStep {
        path: store.place(&name),
    })?;
    let attempt = manifest.attempt;
    let files = store.files_of(&name, &attempt_dir_name(step, attempt));
    let trash = removed_dir_name(step, attempt);
    store
        .retire(&name, &trash)
        .map_err(failed(store, "take away", &name))?;
    let left = if files == name { trash } else { files };
    remove_dir(store, &left).map_err(failed(store, "remove", &left))
}

/// Gives a directory the name of what goes away, so that a straggler finds it gone, and removes it.
fn remove_as(store: &dyn Store, name: &str, step: u64, attempt: AttemptId) -> io::Result<()> {
    let trash = removed_dir_name(step, attempt);
    match store.rename(name, &trash) {
        Ok(()) => remove_dir(store, &trash),
        Err(error) if error.kind() == io::ErrorKind::Unsupported => remove_dir(store, name),
        // Somebody else was faster.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}

/// What proves that a directory is ours goes last: after a kill in between, what is left can be removed.
fn remove_dir(store: &dyn Store, name: &str) -> io::Result<()> {
    let marked = store.look(&join(name, MARKER_FILE)).is_ok();
    remove_tree(
        store,
        name,
        if marked { MARKER_FILE } else { MANIFEST_FILE },
    )
}

/// The marker of an attempt's directory.
pub(crate) fn marker_of(store: &dyn Store, dir: &str) -> Option<Marker> {
    let bytes = read_small(store, &join(dir, MARKER_FILE), MAX_MARKER_BYTES);
    Marker::decode(&bytes.ok()?)
}

fn manifest_of(store: &dyn Store, dir: &str) -> Option<Manifest> {
    let bytes = read_small(store, &join(dir, MANIFEST_FILE), MAX_MANIFEST_BYTES);
    decode_manifest(&bytes.ok()?).ok()
}
