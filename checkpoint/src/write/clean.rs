//! Removes what killed saves left behind.

use std::{
    fs::{self, File},
    io::Read,
    path::{Path, PathBuf},
};

use super::durable::failed;
use crate::{
    SaveError,
    format::{MARKER_FILE, MARKER_FORMAT, Marker, parse_attempt_dir_name},
};

/// More than any marker takes, in bytes.
const MAX_MARKER_BYTES: u64 = 4096;

/// What [`clean`] did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cleaned {
    /// Directories that were removed, in the order of their names.
    pub removed: Vec<PathBuf>,
    /// Directories that look like an attempt's and were left, with the reason.
    pub kept: Vec<(PathBuf, &'static str)>,
}

/// Removes the directories of attempts that died before they were published.
///
/// A directory goes only when its name is an attempt's, the marker in it has the same step and id, and
/// nobody holds the marker's lock, which the operating system takes back from a killed process; or
/// when it holds nothing, or nothing but an unlocked marker that was cut short.
/// Nothing else in the run's directory is touched, and links are not followed.
///
/// # Errors
///
/// When the run's directory can't be listed, or a dead attempt can't be removed.
pub fn clean(run_dir: impl AsRef<Path>) -> Result<Cleaned, SaveError> {
    let run_dir = run_dir.as_ref();
    let mut cleaned = Cleaned::default();
    let listing = match fs::read_dir(run_dir) {
        Ok(listing) => listing,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(cleaned),
        Err(error) => return Err(failed("list", run_dir)(error)),
    };
    let mut names = Vec::new();
    for entry in listing {
        let entry = entry.map_err(failed("list", run_dir))?;
        if let Ok(name) = entry.file_name().into_string()
            && parse_attempt_dir_name(&name).is_some()
        {
            names.push(name);
        }
    }
    names.sort();
    for name in names {
        let dir = run_dir.join(&name);
        match dead_attempt(&dir, &name) {
            Ok(_lock) => {
                remove_attempt(&dir).map_err(failed("remove", &dir))?;
                cleaned.removed.push(dir);
            }
            // A kill between the two calls that make a directory and its marker leaves an empty
            // one; removing it destroys nothing, and fails when it is not empty.
            Err(_) if fs::remove_dir(&dir).is_ok() => cleaned.removed.push(dir),
            Err(reason) => {
                tracing::warn!(dir = %dir.display(), reason, "left an attempt's directory");
                cleaned.kept.push((dir, reason));
            }
        }
    }
    Ok(cleaned)
}

/// Removes an attempt's directory, its marker last: after a kill in between, what is left is still
/// provably ours, or empty.
pub(super) fn remove_attempt(dir: &Path) -> std::io::Result<()> {
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            fs::remove_dir_all(entry.path())?;
        } else if entry.file_name() != MARKER_FILE {
            fs::remove_file(entry.path())?;
        }
    }
    match fs::remove_file(dir.join(MARKER_FILE)) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error),
        _ => fs::remove_dir(dir),
    }
}

/// The lock of a directory that is provably a dead attempt of ours, or why it is not.
fn dead_attempt(dir: &Path, name: &str) -> Result<File, &'static str> {
    let plain = |path: &Path, is: fn(&fs::Metadata) -> bool| {
        fs::symlink_metadata(path).is_ok_and(|found| is(&found))
    };
    let marker_path = dir.join(MARKER_FILE);
    if !plain(dir, fs::Metadata::is_dir) || !plain(&marker_path, fs::Metadata::is_file) {
        return Err("it has no marker");
    }
    let mut file = File::open(&marker_path).map_err(|_| "its marker can't be opened")?;
    file.try_lock().map_err(|error| match error {
        fs::TryLockError::WouldBlock => "it is alive: its marker is locked",
        fs::TryLockError::Error(_) => "its marker can't be locked",
    })?;
    let mut bytes = Vec::new();
    (&mut file)
        .take(MAX_MARKER_BYTES)
        .read_to_end(&mut bytes)
        .map_err(|_| "its marker can't be read")?;
    let Ok(marker) = serde_json::from_slice::<Marker>(&bytes) else {
        // A kill while the marker was written: no rank has had the handle yet, so nothing else is
        // there. An attempt that is only about to take the lock finds its marker gone, and says so.
        let alone = fs::read_dir(dir).is_ok_and(|listing| listing.count() == 1);
        return if alone {
            Ok(file)
        } else {
            Err("its marker is not whole")
        };
    };
    let ours = marker.format == MARKER_FORMAT
        && parse_attempt_dir_name(name) == Some((marker.step, marker.attempt));
    if ours {
        Ok(file)
    } else {
        Err("its marker is not of this directory")
    }
}
