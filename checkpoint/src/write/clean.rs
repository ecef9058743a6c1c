//! Removes what is no checkpoint: abandoned attempts, and what killed saves left behind.

use std::{collections::BTreeSet, io, path::PathBuf};

use super::attempt::{CheckpointMeta, failed};
use crate::{
    AttemptId, BlockSize, SaveError,
    format::{
        MANIFEST_FILE, MARKER_FILE, Manifest, Marker, attempt_dir_name, parse_attempt_dir_name,
        parse_damaged_dir_name, parse_removed_dir_name, removed_dir_name, step_dir_name,
        temporary_name,
    },
    store::{FoundKind, Lock, Store, existing, join, read_manifest, remove_tree},
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

/// What the caller knows of the attempts of which the store can't tell whether they live.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unlocked {
    /// Nothing.
    MayLive,
    /// Nobody is saving.
    Dead,
}

/// What is done with what was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// It is reported.
    Report,
    /// It is removed, and reported.
    Remove,
}

/// A directory that may go.
enum Leftover {
    /// The directory of an attempt, with the lock of its marker where it has one.
    Attempt(AttemptId, u64, Option<Lock>),
    /// What the published attempt of this name has replaced.
    Replaced(u64),
    /// Something that was going away already.
    Removed,
}

/// Looks for directories of ours that are no checkpoints.
pub(crate) fn clean(
    store: &dyn Store,
    unlocked: Unlocked,
    action: Action,
) -> Result<Cleaned, SaveError> {
    let mut cleaned = Cleaned::default();
    let listing = existing(store.list("")).map_err(failed(store, "list", ""))?;
    let listing = listing.unwrap_or_default();
    let set_aside: BTreeSet<u64> = {
        let names = listing.iter().map(|found| &found.name);
        names
            .filter_map(|name| parse_damaged_dir_name(name))
            .collect()
    };
    let ours = |name: &str| {
        parse_attempt_dir_name(name).is_some() || parse_removed_dir_name(name).is_some()
    };
    let mut found: Vec<_> = listing.into_iter().filter(|f| ours(&f.name)).collect();
    found.sort_by(|a, b| a.name.cmp(&b.name));
    if action == Action::Remove && !found.is_empty() {
        // What replaced a checkpoint may not be durable yet, and the replaced one be all that is.
        store.sync_dir("").map_err(failed(store, "sync", ""))?;
    }
    for entry in found {
        let (name, place) = (&entry.name, store.place(&entry.name));
        let leftover = match entry.kind {
            FoundKind::Dir if !store.renames() && is_of(name, &set_aside) => {
                Err("a damaged checkpoint of its step was set aside, whose files it may hold")
            }
            FoundKind::Dir => leftover(store, name, unlocked),
            _ => Err("it is no directory"),
        };
        match leftover {
            // The files of a checkpoint.
            Ok(None) => {}
            Ok(Some(_)) if action == Action::Report => cleaned.removed.push(place),
            Ok(Some(leftover)) => {
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

/// Whether a directory is that of an attempt to save one of these steps.
fn is_of(name: &str, steps: &BTreeSet<u64>) -> bool {
    parse_attempt_dir_name(name).is_some_and(|(step, _)| steps.contains(&step))
}

/// Why a directory may go, or why it stays; `None` for one that holds the files of a checkpoint.
fn leftover(
    store: &dyn Store,
    name: &str,
    unlocked: Unlocked,
) -> Result<Option<Leftover>, &'static str> {
    // A kill between two calls leaves an empty directory; removing it destroys nothing, but the attempt of another machine
    // may have just made it.
    let may_go = store.has_locks() || unlocked == Unlocked::Dead;
    let empty = may_go && store.list(name).is_ok_and(|listing| listing.is_empty());
    if let Some((step, attempt)) = parse_removed_dir_name(name) {
        let marked = marker_of(store, name).is_some_and(|m| (m.step, m.attempt) == (step, attempt));
        let saved = manifest_of(store, name)
            .is_some_and(|found| (found.step, found.attempt) == (step, attempt));
        return match empty || marked || saved {
            true => Ok(Some(Leftover::Removed)),
            false => Err("neither marker nor manifest says that it was ours"),
        };
    }
    let (step, attempt) = parse_attempt_dir_name(name).ok_or("its name is not ours")?;
    let gone = |lock| Ok(Some(Leftover::Attempt(attempt, step, lock)));
    if empty {
        return gone(None);
    }
    let (step_dir, saved) = (step_dir_name(step), manifest_of(store, name));
    // The attempt of this name is the step's checkpoint now, in exchange for what is here.
    if store.renames() && manifest_of(store, &step_dir).is_some_and(|now| now.attempt == attempt) {
        return Ok(Some(Leftover::Replaced(step)));
    }
    let marker_path = join(name, MARKER_FILE);
    let marker = store.look(&marker_path);
    if !store.renames() {
        // Asked last of all. An attempt is published once and loses its marker after that, so without one
        // it is the step's checkpoint now or never again.
        if published(store, &step_dir)? == Some(attempt) {
            return Ok(None);
        }
        let unmarked = marker.as_ref().is_err_and(is_missing);
        let was_published =
            saved.is_some_and(|found| (found.step, found.attempt) == (step, attempt));
        // Without a marker, it is what a rank has written after its coordinator had given up.
        if unmarked && (was_published || unlocked == Unlocked::Dead) {
            return gone(None);
        }
    }
    if !marker.is_ok_and(|marker| marker.kind == FoundKind::File) {
        return Err("it has no marker");
    }
    let lock = match store.try_lock(&marker_path, false) {
        Ok(lock) => Some(lock.ok_or("it is alive: its marker is locked")?),
        Err(error) if error.kind() == io::ErrorKind::Unsupported => match unlocked {
            Unlocked::Dead => None,
            Unlocked::MayLive => return Err("the store has no locks, so it may be alive"),
        },
        Err(_) => return Err("its marker can't be locked"),
    };
    match marker_of(store, name) {
        Some(marker) if (marker.step, marker.attempt) == (step, attempt) => gone(lock),
        Some(_) => Err("its marker is not of this directory"),
        // A kill while the marker was written: no rank has had the handle yet, so nothing else is there.
        // An attempt that is only about to take the lock finds its marker gone, and says so.
        None if store.list(name).is_ok_and(|listing| listing.len() == 1) => gone(lock),
        None => Err("its marker is not whole"),
    }
}

fn remove(store: &dyn Store, name: &str, leftover: Leftover) -> io::Result<()> {
    match leftover {
        Leftover::Attempt(attempt, step, _lock) => remove_as(store, name, step, attempt),
        Leftover::Replaced(step) => remove_replaced(store, name, step),
        Leftover::Removed => remove_dir(store, name),
    }
}

/// Removes the directory of an attempt.
pub(super) fn remove_attempt(store: &dyn Store, marker: &Marker) -> io::Result<()> {
    let dir = attempt_dir_name(marker.step, marker.attempt);
    remove_as(store, &dir, marker.step, marker.attempt)
}

/// Removes the checkpoint that an attempt has replaced, from the directory where it is now, under its own id. A damaged
/// one gets a marker: what a kill leaves of it can be told to be ours.
pub(super) fn remove_replaced(store: &dyn Store, dir: &str, step: u64) -> io::Result<()> {
    match read_manifest(store, dir)?.and_then(Result::ok) {
        Some(manifest) => {
            remove_marker(store, dir)?;
            remove_as(store, dir, step, manifest.attempt)
        }
        None if store.renames() => remove_marked(store, dir, step),
        None => remove_dir(store, dir),
    }
}

/// Puts a marker into a directory, which proves that what a kill leaves of it may go, and removes it.
pub(super) fn remove_marked(store: &dyn Store, dir: &str, step: u64) -> io::Result<()> {
    let marker = Marker::new(
        AttemptId::fresh(),
        &CheckpointMeta::new(step, 1),
        BlockSize::default(),
    );
    let bytes = marker.encode().map_err(io::Error::other)?;
    let path = join(dir, MARKER_FILE);
    // A kill may have left one that was begun.
    let _ = store.remove_file(&temporary_name(&path));
    store.put(&path, &bytes)?;
    store.sync_dir(dir)?;
    // Also what else is saved: it may not be durable yet.
    store.sync_dir("")?;
    remove_as(store, dir, step, marker.attempt)
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
    remove_trash(store, &trash).map_err(failed(store, "remove", &trash))?;
    // A newer checkpoint may not be durable yet.
    store.sync_dir("").map_err(failed(store, "sync", ""))?;
    store
        .retire(&name, &trash)
        .map_err(failed(store, "take away", &name))?;
    let left = if store.renames() { trash } else { files };
    remove_marker(store, &left)
        .and_then(|()| remove_dir(store, &left))
        .map_err(failed(store, "remove", &left))
}

/// Removes the marker that a kill has left with the files of a checkpoint: the manifest alone says then what they are,
/// when another kill leaves some of them.
fn remove_marker(store: &dyn Store, dir: &str) -> io::Result<()> {
    existing(store.remove_file(&join(dir, MARKER_FILE))).map(drop)
}

/// Gives a directory the name of what goes away, so that a straggler finds it gone, and removes it.
fn remove_as(store: &dyn Store, name: &str, step: u64, attempt: AttemptId) -> io::Result<()> {
    let trash = removed_dir_name(step, attempt);
    remove_trash(store, &trash)?;
    match store.rename(name, &trash) {
        Ok(()) => remove_dir(store, &trash),
        Err(error) if error.kind() == io::ErrorKind::Unsupported => remove_dir(store, name),
        // Somebody else may have been faster.
        error => existing(error).map(drop),
    }
}

/// What an earlier removal of the same id has left, where there are renames.
fn remove_trash(store: &dyn Store, trash: &str) -> io::Result<()> {
    match store.renames() {
        true => remove_dir(store, trash),
        false => Ok(()),
    }
}

/// What proves that a directory is ours goes last: after a kill in between, what is left can be removed.
pub(super) fn remove_dir(store: &dyn Store, name: &str) -> io::Result<()> {
    let marker = store.look(&join(name, MARKER_FILE));
    let unmarked = marker.is_err_and(|error| is_missing(&error));
    remove_tree(
        store,
        name,
        if unmarked { MANIFEST_FILE } else { MARKER_FILE },
    )
}

/// The marker of an attempt's directory.
pub(crate) fn marker_of(store: &dyn Store, dir: &str) -> Option<Marker> {
    let bytes = store.read_small(&join(dir, MARKER_FILE), MAX_MARKER_BYTES);
    Marker::decode(&bytes.ok()?)
}

fn manifest_of(store: &dyn Store, dir: &str) -> Option<Manifest> {
    read_manifest(store, dir).ok()??.ok()
}

/// The attempt that is the checkpoint of a step, where a manifest that can't be read is no answer.
pub(super) fn published(
    store: &dyn Store,
    step_dir: &str,
) -> Result<Option<AttemptId>, &'static str> {
    match read_manifest(store, step_dir) {
        Ok(Some(Ok(manifest))) => Ok(Some(manifest.attempt)),
        Ok(Some(Err(_))) => Err("the manifest of its step is damaged"),
        Ok(None) => Ok(None),
        Err(_) => Err("the manifest of its step can't be read"),
    }
}

pub(super) fn is_missing(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound
}
