//! Damaged checkpoints are set aside, and removed only on request.

use std::{io, path::PathBuf};

use super::{
    clean::{remove_link, remove_marked},
    failed,
};
use crate::{
    SaveError,
    format::{
        MANIFEST_FILE, MAX_MANIFEST_BYTES, damaged_dir_name, parse_damaged_dir_name,
        parse_step_dir_name, step_dir_name,
    },
    store::{FoundKind, Store, existing, join, remove_tree},
};

/// Renames the directory of a step, or the link that it is, so that it is not used as a checkpoint; returns `None` if it does
/// not exist.
pub(crate) fn set_aside(store: &dyn Store, step: u64) -> Result<Option<PathBuf>, SaveError> {
    let from = step_dir_name(step);
    let to = free_name(store, step)?;
    let moved = match store.renames() {
        true => store.rename(&from, &to).and_then(|()| store.sync_dir("")),
        false => move_manifest(store, &from, &to),
    };
    let moved = existing(moved).map_err(failed(store, "set aside", &from))?;
    Ok(moved.map(|()| store.place(&to)))
}

/// Returns the first free name.
fn free_name(store: &dyn Store, step: u64) -> Result<String, SaveError> {
    for number in 1.. {
        let name = damaged_dir_name(step, number);
        let found = existing(store.look(&name)).map_err(failed(store, "look at", &name))?;
        if found.is_none() {
            return Ok(name);
        }
    }
    unreachable!("a store has fewer than `u32::MAX` directories")
}

/// Without renames: moves the manifest, so that the step has none.
fn move_manifest(store: &dyn Store, from: &str, to: &str) -> io::Result<()> {
    let manifest = store.read_small(&join(from, MANIFEST_FILE), MAX_MANIFEST_BYTES)?;
    let mut copy = store.create(&join(to, MANIFEST_FILE))?;
    copy.write_all(&manifest)?;
    copy.finish()?;
    store.retire(from, to)
}

/// Removes the directory of a step, or of a checkpoint that was set aside, whatever its contents; of a link, only the link.
pub(crate) fn discard(store: &dyn Store, name: &str) -> Result<(), SaveError> {
    let step = parse_step_dir_name(name).or_else(|| parse_damaged_dir_name(name));
    let step = step.ok_or_else(|| SaveError::NotAStep {
        name: name.to_owned(),
    })?;
    let found = store.look(name).map_err(failed(store, "look at", name))?;
    let removed = match found.kind {
        FoundKind::Link => remove_link(store, name),
        FoundKind::File | FoundKind::Other => store.remove_file(name),
        FoundKind::Dir if store.renames() => remove_marked(store, name, step),
        // Removes the manifest first, so that the checkpoint disappears atomically.
        FoundKind::Dir => existing(store.remove_file(&join(name, MANIFEST_FILE)))
            .and_then(|_| remove_tree(store, name, "")),
    };
    removed.map_err(failed(store, "remove", name))
}
