//! The checkpoints of a run.

mod listing;
mod retention;

use std::collections::{BTreeMap, BTreeSet};
use std::{path::PathBuf, sync::Arc, time::Duration};

use parking_lot::Mutex;

use crate::format::names;
use crate::store::{Files, LocalStore, Store};
use crate::write::{self, Action, Unlocked};
use crate::{
    Attempt, AttemptHandle, AttemptId, Checkpoint, CheckpointMeta, Cleaned, LoadError, SaveError,
};

pub use listing::{Latest, Skipped};
pub use retention::Retention;

/// Number of attempts to reopen a step that may have been replaced concurrently.
const REOPENED: usize = 2;

/// The checkpoints of a run: one directory per step, in one store.
///
/// A step can be a symbolic link to a directory on another disk, with the name of the step and a relative or absolute target.
/// The step is read like any other step; the files in it can't be links. A removal or replacement of the step removes the link
/// and does not change its target.
#[derive(Clone, Debug)]
pub struct Run {
    store: Files,
    /// Steps that were opened or saved, so that retention does not open them at each save.
    opened: Arc<Mutex<BTreeSet<u64>>>,
    /// The names for which a warning was emitted.
    warned: Arc<Mutex<BTreeSet<String>>>,
}

impl Run {
    /// Creates the run of a directory, which is created by the first save.
    pub fn local(dir: impl Into<PathBuf>) -> Self {
        Self::on(Arc::new(LocalStore::new(dir)))
    }

    /// Creates the run of a store.
    ///
    /// A read that fails temporarily is retried up to three times within a few seconds. The client of a
    /// bucket retries by itself.
    pub fn on(store: Arc<dyn Store>) -> Self {
        Self {
            store: Files(store),
            opened: Arc::default(),
            warned: Arc::default(),
        }
    }

    /// Returns the location of the run.
    pub fn place(&self) -> PathBuf {
        self.store.place("")
    }

    /// Returns the location of a step's checkpoint, whether or not it exists.
    pub fn step_place(&self, step: u64) -> PathBuf {
        self.store.place(&names::step_dir(step))
    }

    /// Starts an attempt to save a step; called by the coordinator.
    ///
    /// # Errors
    ///
    /// Returns an error if the step has already been published and is not to be replaced, or if the store
    /// fails.
    pub fn begin(&self, meta: CheckpointMeta) -> Result<Attempt, SaveError> {
        Attempt::begin(self.store.clone(), meta)
    }

    /// Waits until this process sees an attempt that a coordinator in another process has started; called by a rank, with the
    /// [id](AttemptHandle::attempt) that the coordinator has sent. Directories of other attempts are ignored. The wait ends
    /// early if `waits` returns false: it is called about 20 times a second, for example to check that the coordinator is alive.
    ///
    /// The attempt is a checkpoint when [`Attempt::publish`] has returned. The coordinator sends this to the ranks that need it.
    ///
    /// # Errors
    ///
    /// Returns an error if the attempt does not appear in time.
    pub fn join(
        &self,
        step: u64,
        attempt: AttemptId,
        timeout: Duration,
        waits: impl FnMut() -> bool,
    ) -> Result<AttemptHandle, SaveError> {
        AttemptHandle::join(&self.store, step, attempt, timeout, waits)
    }

    /// Returns the target of a step whose directory is a symbolic link, as the link contains it; `None` for another step, and
    /// if the link can't be read.
    pub fn link_target(&self, step: u64) -> Option<PathBuf> {
        let target = self.store.link_target(&names::step_dir(step));
        target.ok().flatten()
    }

    /// Returns the entries of the directory of a step, or of a checkpoint that was [set aside](Self::set_aside), by its name in
    /// the run, each with the bytes of its files at any depth. Returns no entries for a link, and for a directory that does not
    /// exist.
    ///
    /// # Errors
    ///
    /// Returns an error if the directory can't be listed.
    pub fn sizes_in(&self, name: &str) -> Result<BTreeMap<String, u64>, LoadError> {
        Ok(self.store.sizes_in(name)?)
    }

    /// Returns the bytes of all files that a [removal](Self::remove) of a step removes, given the attempt that has published
    /// it.
    ///
    /// # Errors
    ///
    /// See [`sizes_in`](Self::sizes_in).
    pub fn bytes_of(&self, step: u64, attempt: AttemptId) -> Result<u64, LoadError> {
        let (store, step_dir) = (&self.store, names::step_dir(step));
        // In a bucket, the files are not next to the manifest.
        let files_dir = store.files_of(&step_dir, &names::attempt_dir(step, attempt));
        let dirs = BTreeSet::from([step_dir, files_dir]);
        dirs.iter().map(|dir| Ok(store.bytes_in(dir)?)).sum()
    }

    /// Opens the checkpoint of a step: validates the manifest, and checks that every file exists with its
    /// size. Reads no tensor.
    ///
    /// # Errors
    ///
    /// Returns an error if the step was not published, or if a check fails.
    pub fn open(&self, step: u64) -> Result<Checkpoint, LoadError> {
        let name = names::step_dir(step);
        let open = || Checkpoint::open_in(self.store.clone(), &name);
        let mut opened = open();
        for _ in 0..REOPENED {
            if opened.as_ref().is_err_and(may_be_replaced) {
                opened = open();
            }
        }
        let checkpoint = opened?;
        match checkpoint.step() {
            found if found == step => {
                self.opened.lock().insert(step);
                Ok(checkpoint)
            }
            found => Err(LoadError::WrongStep {
                path: checkpoint.dir().to_owned(),
                expected: step,
                found,
            }),
        }
    }

    /// Removes directories that are not checkpoints: directories of attempts that died before publication, and of checkpoints
    /// that were replaced or removed.
    ///
    /// A directory with the name of an attempt is removed in these cases only:
    ///
    /// - The marker in it has the same step and id, and is not locked. The operating system releases the lock of a killed
    ///   process.
    /// - It is empty, or contains only an unlocked, incomplete marker.
    /// - It contains the checkpoint that the attempt of this name has replaced, or is the link to this checkpoint.
    ///
    /// A directory whose removal was interrupted is removed if the marker or manifest in it has the step and id of its name.
    /// Nothing else is modified, and links are not followed.
    ///
    /// In a store without renames and locks, such as a bucket, the directory of an attempt contains the files of its
    /// checkpoint, and stays as long as the step's manifest has its id. It is removed if the manifest in it has the step and id
    /// of its name, it has no marker, and the step's manifest is missing or belongs to another attempt: the marker is removed
    /// after publication, so the attempt was published and then replaced or removed. With a marker the attempt may be alive,
    /// and the directory is kept, whatever was published since; see [`clean_when_idle`](Self::clean_when_idle). Cost in such a
    /// store: a few requests and two manifests for each checkpoint.
    ///
    /// # Errors
    ///
    /// Returns an error if the store can't be listed, or a directory can't be removed.
    pub fn clean(&self) -> Result<Cleaned, SaveError> {
        write::clean(&self.store, Unlocked::MayLive, Action::Remove)
    }

    /// Returns the directories that [`clean`](Self::clean) would remove and keep.
    ///
    /// # Errors
    ///
    /// Returns an error if the store can't be listed.
    pub fn leftovers(&self) -> Result<Cleaned, SaveError> {
        write::clean(&self.store, Unlocked::MayLive, Action::Report)
    }

    /// Removes like [`clean`](Self::clean), and also removes attempts that may be alive because the store has no locks: in a
    /// bucket, all attempts that were not published.
    ///
    /// The caller must ensure that no process is saving to this run, for example as the only coordinator of a restarted run,
    /// before its first save. An attempt that is alive nevertheless fails, or in the worst case publishes a checkpoint whose
    /// files are missing. An attempt whose marker is locked stays.
    ///
    /// # Errors
    ///
    /// See [`clean`](Self::clean).
    pub fn clean_when_idle(&self) -> Result<Cleaned, SaveError> {
        write::clean(&self.store, Unlocked::Dead, Action::Remove)
    }

    /// Returns the directories that [`clean_when_idle`](Self::clean_when_idle) would remove and keep.
    ///
    /// # Errors
    ///
    /// Returns an error if the store can't be listed.
    pub fn leftovers_when_idle(&self) -> Result<Cleaned, SaveError> {
        write::clean(&self.store, Unlocked::Dead, Action::Report)
    }

    /// Renames the directory of an unusable step to `damaged-00000100`, where it is neither used as a checkpoint nor removed
    /// automatically; the step can then be saved again. Returns the new location, or `None` if the step does not exist. If the
    /// step is a link, the link is renamed.
    ///
    /// In a bucket, only the step's manifest moves; the files stay in their location.
    ///
    /// # Errors
    ///
    /// Returns an error if the store fails.
    pub fn set_aside(&self, step: u64) -> Result<Option<PathBuf>, SaveError> {
        write::set_aside(&self.store, step)
    }

    /// Removes the checkpoint of a step. The checkpoint disappears atomically; then its files are removed. A concurrent load
    /// from it fails. If the step is a link, the link is removed, and its target is unchanged.
    ///
    /// # Errors
    ///
    /// Returns an error if the step has no valid manifest, which identifies it as a checkpoint of this crate,
    /// or if the store fails.
    pub fn remove(&self, step: u64) -> Result<(), SaveError> {
        write::remove_step(&self.store, step)?;
        tracing::info!(step, "removed a checkpoint");
        Ok(())
    }

    /// Removes the directory of a step, or of a checkpoint that was [set aside](Self::set_aside), by its name in the run, with
    /// any contents: also without a valid manifest. If it is a link, the link is removed, and its target is unchanged.
    ///
    /// In a bucket, a subsequent [`clean`](Self::clean) removes the files of its attempt.
    ///
    /// # Errors
    ///
    /// Returns an error if the name has another form, the directory does not exist, or the store fails.
    pub fn discard(&self, name: &str) -> Result<(), SaveError> {
        write::discard(&self.store, name)?;
        tracing::info!(name, "removed a directory");
        Ok(())
    }
}

/// Returns whether an error can result from a concurrent replacement of the step, after its manifest was
/// read.
fn may_be_replaced(error: &LoadError) -> bool {
    use std::io::ErrorKind::StaleNetworkFileHandle;
    match error {
        LoadError::Io(error) => error.source.kind() == StaleNetworkFileHandle,
        LoadError::FileMissing { .. } | LoadError::FileSize { .. } => true,
        _ => false,
    }
}
