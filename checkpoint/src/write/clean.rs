//! Removal of abandoned attempts, of files that killed saves have left, and of steps. Damaged checkpoints are set aside, and
//! removed only on request.

use std::{collections::BTreeSet, io, path::PathBuf};

use crate::format::{MANIFEST_FILE, MARKER_FILE, MAX_MANIFEST_BYTES, Marker, names};
use crate::store::{Files, FoundKind, Lock, StoreExt, existing, join};
use crate::{AttemptId, LoadError, SaveError};

/// An upper bound on the size of a marker in bytes.
const MAX_MARKER_BYTES: u64 = 4096;

/// Directories in a run that are not checkpoints: the result of [`Run::clean`](crate::Run::clean) or
/// [`Run::leftovers`](crate::Run::leftovers).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cleaned {
    /// Directories that belong to this crate and to no live attempt, sorted by name.
    pub removed: Vec<PathBuf>,
    /// Bytes of the files in these directories.
    pub removed_bytes: u64,
    /// Directories that have the form of a directory of this crate and were kept, with the reason.
    pub kept: Vec<(PathBuf, &'static str)>,
}

/// The caller's knowledge about attempts whose state the store can't determine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unlocked {
    /// They may be alive.
    MayLive,
    /// No process is saving.
    Dead,
}

/// The action on a directory that can be removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// Report it.
    Report,
    /// Remove and report it.
    Remove,
}

/// A directory that can be removed.
enum Leftover {
    /// The directory of an attempt, with the lock of its marker if it has one.
    Attempt(AttemptId, u64, Option<Lock>),
    /// The checkpoint that the published attempt of this name has replaced, or the link to it.
    Replaced(u64),
    /// A directory whose removal was interrupted.
    Removed,
}

/// Finds directories of this crate that are not checkpoints.
pub(crate) fn clean(
    store: &Files,
    unlocked: Unlocked,
    action: Action,
) -> Result<Cleaned, SaveError> {
    let mut cleaned = Cleaned::default();
    let mut found = store.entries("")?;
    if found.iter().any(|entry| entry.name == MANIFEST_FILE) {
        let path = store.place("");
        let source = Box::new(LoadError::NotARun { path });
        return Err(SaveError::List { source });
    }
    let names = found.iter().map(|entry| &entry.name);
    let set_aside: BTreeSet<u64> = names.filter_map(|n| names::parse_damaged_dir(n)).collect();
    let of_step = |name: &str| {
        let id = names::parse_attempt_dir(name);
        id.is_some_and(|(step, _)| set_aside.contains(&step))
    };
    found.retain(|entry| names::is_of_attempt(&entry.name));
    found.sort_by(|a, b| a.name.cmp(&b.name));
    if action == Action::Remove && !found.is_empty() {
        // The replacement of a checkpoint may not be durable yet, so the replaced one could be the only
        // durable one.
        store.sync("")?;
    }
    for entry in found {
        let (name, place) = (&entry.name, store.place(&entry.name));
        let leftover = match entry.kind {
            FoundKind::Dir if !store.renames() && of_step(name) => {
                Err("it may hold files of a damaged checkpoint of its step that was set aside")
            }
            FoundKind::Dir => leftover(store, name, unlocked),
            // Attempts are not links: it is the step that the attempt has replaced, or it is not of this crate.
            FoundKind::Link => match names::parse_attempt_dir(name) {
                Some(id) if is_published(store, id) => Ok(Some(Leftover::Replaced(id.0))),
                _ => Err("it is a symbolic link"),
            },
            _ => Err("it is not a directory"),
        };
        match leftover {
            // The directory contains the files of a checkpoint.
            Ok(None) => {}
            Ok(Some(leftover)) => {
                if entry.kind == FoundKind::Dir {
                    // Another process may remove files at the same time.
                    cleaned.removed_bytes += store.bytes_in(name).unwrap_or(0);
                }
                if action == Action::Report {
                    cleaned.removed.push(place);
                    continue;
                }
                let removed = match leftover {
                    Leftover::Attempt(id, step, _lock) => remove_as(store, name, step, id),
                    Leftover::Replaced(step) => remove_replaced(store, name, step),
                    Leftover::Removed => remove_dir(store, name),
                };
                removed.map_err(store.failed("remove", name))?;
                tracing::info!(dir = %place.display(), "removed the files that a save has left");
                cleaned.removed.push(place);
            }
            Err(reason) => {
                tracing::warn!(dir = %place.display(), reason, "kept a directory");
                cleaned.kept.push((place, reason));
            }
        }
    }
    Ok(cleaned)
}

/// Returns the reason why a directory can be removed, or as an error the reason why it is kept; `None` if it contains the files
/// of a checkpoint.
fn leftover(
    store: &Files,
    name: &str,
    unlocked: Unlocked,
) -> Result<Option<Leftover>, &'static str> {
    // A kill between two calls leaves an empty directory. Removing it loses no data, but another machine's
    // attempt may have just created it.
    let may_go = store.has_locks() || unlocked == Unlocked::Dead;
    let empty = may_go && store.list(name).is_ok_and(|listing| listing.is_empty());
    let marked_as = || marker_of(store, name).map(|marker| (marker.step, marker.attempt));
    if let Some(id) = names::parse_removed_dir(name) {
        return match empty || marked_as() == Some(id) || saved_as(store, name) == Some(id) {
            true => Ok(Some(Leftover::Removed)),
            false => Err("neither marker nor manifest identifies it as a directory of a save"),
        };
    }
    let id = names::parse_attempt_dir(name);
    let (step, attempt) = id.ok_or("it does not have the name of an attempt")?;
    let gone = |lock| Ok(Some(Leftover::Attempt(attempt, step, lock)));
    if empty {
        return gone(None);
    }
    let saved = saved_as(store, name);
    // The attempt of this name was exchanged with this directory and is now the step's checkpoint.
    if store.renames() && is_published(store, (step, attempt)) {
        return Ok(Some(Leftover::Replaced(step)));
    }
    let marker_path = join(name, MARKER_FILE);
    let marker = existing(store.look(&marker_path));
    if !store.renames() {
        // Checked last. An attempt is published at most once and loses its marker afterwards, so without a
        // marker it is the step's checkpoint now or never will be.
        if published(store, &names::step_dir(step))? == Some(attempt) {
            return Ok(None);
        }
        let unmarked = matches!(marker, Ok(None));
        // Without a marker, it contains files that a rank wrote after its coordinator aborted.
        if unmarked && (saved == id || unlocked == Unlocked::Dead) {
            return gone(None);
        }
    }
    if !matches!(marker, Ok(Some(marker)) if marker.kind == FoundKind::File) {
        return Err("it has no marker");
    }
    let lock = match store.try_lock(&marker_path) {
        Ok(lock) => Some(lock.ok_or("it is alive: its marker is locked")?),
        Err(error) if error.kind() == io::ErrorKind::Unsupported => match unlocked {
            Unlocked::Dead => None,
            Unlocked::MayLive => return Err("the store has no locks, so it may be alive"),
        },
        Err(_) => return Err("its marker can't be locked"),
    };
    match marked_as() {
        Some(marked) if marked == (step, attempt) => gone(lock),
        Some(_) => Err("its marker belongs to another directory"),
        // A kill while the marker was written: no rank has the handle yet, so there are no other files. An
        // attempt that is about to acquire the lock finds its marker removed and returns an error.
        None if store.list(name).is_ok_and(|listing| listing.len() == 1) => gone(lock),
        None => Err("its marker is incomplete"),
    }
}

/// Returns whether an attempt is known to be the checkpoint of its step.
fn is_published(store: &Files, (step, attempt): (u64, AttemptId)) -> bool {
    published(store, &names::step_dir(step)) == Ok(Some(attempt))
}

/// Removes the checkpoint that an attempt has replaced, from its current directory, under its own id. A damaged checkpoint gets
/// a marker, so that its files can be identified after a kill. If it is a link, only the link is removed.
pub(super) fn remove_replaced(store: &Files, dir: &str, step: u64) -> io::Result<()> {
    if store.link_target(dir)?.is_some() {
        return remove_link(store, dir);
    }
    match store.read_manifest(dir)?.and_then(Result::ok) {
        Some(manifest) => {
            remove_marker(store, dir)?;
            remove_as(store, dir, step, manifest.attempt)
        }
        None if store.renames() => remove_marked(store, dir, step),
        None => remove_dir(store, dir),
    }
}

/// Adds a marker to a directory, so that its files can be removed after a kill, and removes the directory.
fn remove_marked(store: &Files, dir: &str, step: u64) -> io::Result<()> {
    let marker = Marker::new(AttemptId::fresh(), step);
    let bytes = marker.encode().map_err(io::Error::other)?;
    let path = join(dir, MARKER_FILE);
    // A kill may have left an incomplete marker.
    let _ = store.remove_file(&names::temporary(&path));
    store.put(&path, &bytes)?;
    store.sync_dir(dir)?;
    // Includes other saves, which may not be durable yet.
    store.sync_dir("")?;
    remove_as(store, dir, step, marker.attempt)
}

/// Retires a published step: the checkpoint disappears atomically, then its files are removed. If the step is a link, only the
/// link is removed.
pub(crate) fn remove_step(store: &Files, step: u64) -> Result<(), SaveError> {
    let name = names::step_dir(step);
    let (_, attempt) = saved_as(store, &name).ok_or_else(|| SaveError::NoStep {
        path: store.place(&name),
    })?;
    let target = store.link_target(&name);
    if target.map_err(store.failed("look at", &name))?.is_some() {
        return Ok(remove_link(store, &name).map_err(store.failed("remove", &name))?);
    }
    let files = store.files_of(&name, &names::attempt_dir(step, attempt));
    let trash = names::removed_dir(step, attempt);
    if store.renames() {
        // An earlier removal of the same id may have been interrupted.
        remove_dir(store, &trash).map_err(store.failed("remove", &trash))?;
    }
    // Makes a newer checkpoint durable first.
    store.sync("")?;
    let retired = store.retire(&name, &trash);
    retired.map_err(store.failed("retire", &name))?;
    let left = if store.renames() { trash } else { files };
    let removed = remove_marker(store, &left).and_then(|()| remove_dir(store, &left));
    Ok(removed.map_err(store.failed("remove", &left))?)
}

/// Removes a link durably, after a newer checkpoint is durable. Its target is unchanged.
fn remove_link(store: &Files, name: &str) -> io::Result<()> {
    store.sync_dir("")?;
    let target = store.link_target(name)?.unwrap_or_default();
    store.remove_file(name)?;
    tracing::info!(
        link = %store.place(name).display(), target = %target.display(),
        "removed a symbolic link; its target is unchanged"
    );
    store.sync_dir("")
}

/// Removes the marker that a kill has left with the files of a checkpoint, so that only the manifest identifies the files after
/// another kill.
fn remove_marker(store: &Files, dir: &str) -> io::Result<()> {
    existing(store.remove_file(&join(dir, MARKER_FILE))).map(drop)
}

/// Renames a directory to the name of a removal, so that a delayed writer can't find it, and removes the directory.
pub(super) fn remove_as(store: &Files, name: &str, step: u64, id: AttemptId) -> io::Result<()> {
    if !store.renames() {
        return remove_dir(store, name);
    }
    let trash = names::removed_dir(step, id);
    // An earlier removal of the same id may have been interrupted.
    remove_dir(store, &trash)?;
    match store.rename(name, &trash) {
        Ok(()) => remove_dir(store, &trash),
        // Some file systems can't rename directories.
        Err(error) if error.kind() == io::ErrorKind::Unsupported => remove_dir(store, name),
        // Another process may have removed it.
        error => existing(error).map(drop),
    }
}

/// Removes a directory, the identifying file last, so that the other files can be removed after a kill.
fn remove_dir(store: &Files, name: &str) -> io::Result<()> {
    let last = match is_marked(store, name) {
        true => MARKER_FILE,
        false => MANIFEST_FILE,
    };
    store.remove_tree(name, last)
}

/// Returns whether the directory of an attempt has a marker, or may have one.
pub(super) fn is_marked(store: &Files, dir: &str) -> bool {
    !matches!(existing(store.look(&join(dir, MARKER_FILE))), Ok(None))
}

/// Returns the marker of an attempt's directory.
pub(crate) fn marker_of(store: &Files, dir: &str) -> Option<Marker> {
    let bytes = store.read_small(&join(dir, MARKER_FILE), MAX_MARKER_BYTES);
    Marker::decode(&bytes.ok()?)
}

/// Returns the step and the attempt of the valid manifest in a directory.
fn saved_as(store: &Files, dir: &str) -> Option<(u64, AttemptId)> {
    let manifest = store.read_manifest(dir).ok()??.ok()?;
    Some((manifest.step, manifest.attempt))
}

/// Returns the attempt that is the checkpoint of a step; an unreadable manifest is an error.
pub(super) fn published(store: &Files, step: &str) -> Result<Option<AttemptId>, &'static str> {
    match store.read_manifest(step) {
        Ok(Some(Ok(manifest))) => Ok(Some(manifest.attempt)),
        Ok(Some(Err(_))) => Err("the manifest of its step is damaged"),
        Ok(None) => Ok(None),
        Err(_) => Err("the manifest of its step can't be read"),
    }
}

/// Renames the directory of a step, or the link to it, so that it is not used as a checkpoint; returns `None` if the step does
/// not exist.
pub(crate) fn set_aside(store: &Files, step: u64) -> Result<Option<PathBuf>, SaveError> {
    let from = names::step_dir(step);
    let to = free_name(store, step)?;
    let moved = match store.renames() {
        true => store.rename(&from, &to).and_then(|()| store.sync_dir("")),
        false => move_manifest(store, &from, &to),
    };
    let moved = existing(moved).map_err(store.failed("set aside", &from))?;
    Ok(moved.map(|()| store.place(&to)))
}

/// Returns the first free name.
fn free_name(store: &Files, step: u64) -> Result<String, SaveError> {
    for number in 1.. {
        let name = names::damaged_dir(step, number);
        if store.find(&name)?.is_none() {
            return Ok(name);
        }
    }
    unreachable!("a store has fewer than `u32::MAX` directories")
}

/// Moves the manifest of a step in a store without renames, so that the step has no manifest.
fn move_manifest(store: &Files, from: &str, to: &str) -> io::Result<()> {
    let manifest = store.read_small(&join(from, MANIFEST_FILE), MAX_MANIFEST_BYTES)?;
    let mut copy = store.create(&join(to, MANIFEST_FILE))?;
    copy.write_all(&manifest)?;
    copy.finish()?;
    store.retire(from, to)
}

/// Removes the directory of a step, or of a checkpoint that was set aside, with any contents. If it is a link, removes only the
/// link.
pub(crate) fn discard(store: &Files, name: &str) -> Result<(), SaveError> {
    let step = names::parse_step_dir(name).or_else(|| names::parse_damaged_dir(name));
    let step = step.ok_or_else(|| SaveError::NotAStep {
        name: name.to_owned(),
    })?;
    let found = store.look(name).map_err(store.failed("look at", name))?;
    let removed = match found.kind {
        FoundKind::Link => remove_link(store, name),
        FoundKind::File | FoundKind::Other => store.remove_file(name),
        FoundKind::Dir if store.renames() => remove_marked(store, name, step),
        // Removes the manifest first, so that the checkpoint disappears atomically.
        FoundKind::Dir => existing(store.remove_file(&join(name, MANIFEST_FILE)))
            .and_then(|_| store.remove_tree(name, "")),
    };
    Ok(removed.map_err(store.failed("remove", name))?)
}
