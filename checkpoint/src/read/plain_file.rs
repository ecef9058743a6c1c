//! Opens files of a directory that is not trusted.

use std::{
    fs::{self, File, Metadata},
    io::Read,
    path::Path,
};

use crate::LoadError;

/// Turns an I/O error into ours.
pub(super) fn failed<'a>(
    action: &'static str,
    path: &'a Path,
) -> impl FnOnce(std::io::Error) -> LoadError + 'a {
    move |source| LoadError::Io {
        action,
        path: path.to_owned(),
        source,
    }
}

/// The metadata of a plain file: links, pipes and devices are refused, which could lead out of the
/// directory or block.
pub(super) fn look_at(path: &Path) -> Result<Metadata, LoadError> {
    let found = fs::symlink_metadata(path).map_err(failed("look at", path))?;
    if found.is_file() {
        Ok(found)
    } else {
        Err(LoadError::NotAFile {
            path: path.to_owned(),
        })
    }
}

/// Refuses a file that has not the size which the manifest gives.
pub(super) fn check_size(path: &Path, expected_bytes: u64) -> Result<(), LoadError> {
    let found_bytes = look_at(path)?.len();
    if found_bytes == expected_bytes {
        Ok(())
    } else {
        Err(LoadError::FileSize {
            path: path.to_owned(),
            expected_bytes,
            found_bytes,
        })
    }
}

/// Opens a plain file, and proves that it is the one that was looked at.
pub(super) fn open(path: &Path) -> Result<File, LoadError> {
    let before = look_at(path)?;
    let file = File::open(path).map_err(failed("open", path))?;
    let after = file.metadata().map_err(failed("look at", path))?;
    if same_file(&before, &after) {
        Ok(file)
    } else {
        Err(LoadError::NotAFile {
            path: path.to_owned(),
        })
    }
}

/// Everything in a small file. Memory: its size, at most `limit_bytes` and one byte.
pub(super) fn read_small(path: &Path, limit_bytes: u64) -> Result<Vec<u8>, LoadError> {
    let mut bytes = Vec::new();
    open(path)?
        .take(limit_bytes.saturating_add(1))
        .read_to_end(&mut bytes)
        .map_err(failed("read", path))?;
    Ok(bytes)
}

#[cfg(unix)]
fn same_file(before: &Metadata, after: &Metadata) -> bool {
    use std::os::unix::fs::MetadataExt;
    (before.dev(), before.ino()) == (after.dev(), after.ino())
}

#[cfg(not(unix))]
fn same_file(before: &Metadata, after: &Metadata) -> bool {
    before.file_type() == after.file_type() && before.len() == after.len()
}
