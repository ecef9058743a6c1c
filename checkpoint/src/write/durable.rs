//! Writes that survive a crash: bytes first, then the name, then the directory.

use std::{
    fs::{self, File},
    io::Write,
    path::Path,
};

use crate::{SaveError, format::temporary_name};

/// Turns an I/O error into ours.
pub(super) fn failed<'a>(
    action: &'static str,
    path: &'a Path,
) -> impl FnOnce(std::io::Error) -> SaveError + 'a {
    move |source| SaveError::Io {
        action,
        path: path.to_owned(),
        source,
    }
}

/// Makes a file appear whole under its name, or not at all: temporary name, fsync, rename. The
/// temporary file is removed when a step fails.
pub(super) fn write_durable(dir: &Path, name: &str, bytes: &[u8]) -> Result<(), SaveError> {
    let temporary = dir.join(temporary_name(name));
    let target = dir.join(name);
    let written = (|| {
        let mut file = File::create(&temporary).map_err(failed("create", &temporary))?;
        file.write_all(bytes).map_err(failed("write", &temporary))?;
        file.sync_all().map_err(failed("sync", &temporary))?;
        fs::rename(&temporary, &target).map_err(failed("rename a temporary file to", &target))
    })();
    if written.is_err() {
        // The first error is the one to report; a file that was never made can't be removed.
        let _ = fs::remove_file(&temporary);
    }
    written
}

/// Makes the names in a directory durable.
pub(super) fn sync_dir(dir: &Path) -> Result<(), SaveError> {
    // Other systems than Unix can't open a directory, and make renames durable by themselves.
    if cfg!(unix) {
        File::open(dir)
            .and_then(|d| d.sync_all())
            .map_err(failed("sync directory", dir))?;
    }
    Ok(())
}

/// Makes the directory of a run, with those above it, and makes their names durable: what is synced
/// inside a directory is lost with the directory's own name.
pub(super) fn create_run_dir(run_dir: &Path) -> Result<(), SaveError> {
    let missing = run_dir.ancestors().take_while(|dir| !dir.exists()).count();
    fs::create_dir_all(run_dir).map_err(failed("create", run_dir))?;
    // The run's own name always: somebody else may have just made it.
    for dir in run_dir.ancestors().take(missing.max(1)) {
        match dir.parent() {
            Some(parent) if parent.as_os_str().is_empty() => sync_dir(Path::new("."))?,
            Some(parent) => sync_dir(parent)?,
            None => {}
        }
    }
    Ok(())
}
