//! The checkpoints of a run.

mod latest;
mod retention;

use std::{
    collections::BTreeSet,
    path::PathBuf,
    sync::{Arc, Mutex},
    time::Duration,
};

use crate::{
    Attempt, AttemptHandle, Checkpoint, CheckpointMeta, Cleaned, LoadError, SaveError,
    format::{parse_damaged_dir_name, parse_step_dir_name, step_dir_name},
    read::failed,
    store::{Found, FoundKind, LocalStore, Retrying, Store, existing},
    write::{self, Action, Unlocked},
};

pub use latest::{Latest, Skipped};
pub use retention::Retention;

/// How often a step is opened again that may have been replaced meanwhile.
const REOPENED: usize = 2;

/// The checkpoints of a run: one directory per step, in one store.
#[derive(Clone, Debug)]
pub struct Run {
    store: Arc<dyn Store>,
    /// Steps that were opened, or saved: retention does not open them at each save.
    opened: Arc<Mutex<BTreeSet<u64>>>,
}

impl Run {
    /// The run of this directory, which is made when something is saved.
    pub fn local(dir: impl Into<PathBuf>) -> Self {
        Self::on(Arc::new(LocalStore::new(dir)))
    }

    /// The run of this store.
    ///
    /// A read that fails for a reason that may pass is tried again, up to three times within some seconds. The client of
    /// a bucket does so by itself.
    pub fn on(store: Arc<dyn Store>) -> Self {
        Self {
            store: Arc::new(Retrying::new(store)),
            opened: Arc::default(),
        }
    }

    /// Where it is.
    pub fn place(&self) -> PathBuf {
        self.store.place("")
    }

    /// Where the checkpoint of a step is, or will be.
    pub fn step_place(&self, step: u64) -> PathBuf {
        self.store.place(&step_dir_name(step))
    }

    /// Opens an attempt to save a step: called by the coordinator.
    ///
    /// # Errors
    ///
    /// When the step has been published already and is not to be replaced, or the store fails.
    pub fn begin(&self, meta: CheckpointMeta) -> Result<Attempt, SaveError> {
        Attempt::begin(self.store.clone(), meta)
    }

    /// Waits for the attempt to save a step that a coordinator in another process has opened: called by
    /// a rank.
    ///
    /// Without locks, a dead attempt to save the same step is taken for a living one until
    /// [`clean_when_idle`](Self::clean_when_idle) has removed it.
    ///
    /// # Errors
    ///
    /// When there is none in time, or there are several.
    pub fn join(&self, step: u64, timeout: Duration) -> Result<AttemptHandle, SaveError> {
        AttemptHandle::find(&self.store, step, timeout)
    }

    /// The steps that have a directory, in order. They are published; whether they are whole is not
    /// looked at.
    ///
    /// # Errors
    ///
    /// When the store can't be listed.
    pub fn steps(&self) -> Result<Vec<u64>, LoadError> {
        let listing = self.list()?;
        let dirs = listing.iter().filter(|found| found.kind == FoundKind::Dir);
        let mut steps: Vec<u64> = dirs.filter_map(|f| parse_step_dir_name(&f.name)).collect();
        steps.sort_unstable();
        Ok(steps)
    }

    /// The directories of damaged checkpoints that were [set aside](Self::set_aside), by name.
    ///
    /// # Errors
    ///
    /// When the store can't be listed.
    pub fn set_aside_dirs(&self) -> Result<Vec<String>, LoadError> {
        let names = self.list()?.into_iter().map(|found| found.name);
        let mut names: Vec<String> = names
            .filter(|name| parse_damaged_dir_name(name).is_some())
            .collect();
        names.sort_unstable();
        Ok(names)
    }

    /// What is in the root; nothing where there is none.
    fn list(&self) -> Result<Vec<Found>, LoadError> {
        let listing = existing(self.store.list("")).map_err(failed(&*self.store, "list", ""))?;
        Ok(listing.unwrap_or_default())
    }

    /// Opens the checkpoint of a step: proves the manifest, and that every file is there with its size.
    /// Reads no tensor.
    ///
    /// # Errors
    ///
    /// When it was not published, or what was proven fails.
    pub fn open(&self, step: u64) -> Result<Checkpoint, LoadError> {
        let name = step_dir_name(step);
        // A bucket has no links.
        let is_link = || {
            let found = self.store.look(&name);
            found.is_ok_and(|found| found.kind == FoundKind::Other)
        };
        if self.store.renames() && is_link() {
            return Err(LoadError::NotAFile {
                path: self.store.place(&name),
            });
        }
        let mut opened = Checkpoint::open_in(self.store.clone(), &name);
        for _ in 0..REOPENED {
            match &opened {
                Err(error) if may_be_replaced(error) => {
                    opened = Checkpoint::open_in(self.store.clone(), &name);
                }
                _ => break,
            }
        }
        let checkpoint = opened?;
        match checkpoint.step() {
            found if found == step => {
                self.opened().insert(step);
                Ok(checkpoint)
            }
            found => Err(LoadError::WrongStep {
                path: checkpoint.dir().to_owned(),
                expected: step,
                found,
            }),
        }
    }

    /// Removes what is no checkpoint: directories of attempts that died before they were published, of
    /// checkpoints that were replaced or taken away.
    ///
    /// A directory of an attempt goes only when its name is an attempt's, the marker in it has the same
    /// step and id, and nobody holds the marker's lock, which the operating system takes back from a
    /// killed process; or when it holds nothing, or nothing but an unlocked marker that was cut short; or
    /// when it holds the checkpoint that the attempt of this name has replaced. A directory that was
    /// being removed goes when marker or manifest in it have the step and id of its name. Nothing else
    /// is touched, and links are not followed.
    ///
    /// In a store without renames and locks, a bucket, the directory of an attempt holds the files of its
    /// checkpoint, and stays as long as the step's manifest has its id. It goes when the manifest in
    /// it has the step and id of its name, it has no marker, and the step's manifest is gone or of another
    /// attempt: then it was published, since the marker goes after that, and was replaced or taken away. With
    /// a marker it may be alive and is kept, whatever else was published since; see
    /// [`clean_when_idle`](Self::clean_when_idle). Cost there: some requests and two manifests for each
    /// checkpoint.
    ///
    /// # Errors
    ///
    /// When the store can't be listed, or a directory can't be removed.
    pub fn clean(&self) -> Result<Cleaned, SaveError> {
        write::clean(&*self.store, Unlocked::MayLive, Action::Remove)
    }

    /// What [`clean`](Self::clean) would remove and keep.
    ///
    /// # Errors
    ///
    /// When the store can't be listed.
    pub fn leftovers(&self) -> Result<Cleaned, SaveError> {
        write::clean(&*self.store, Unlocked::MayLive, Action::Report)
    }

    /// As [`clean`](Self::clean), and removes the attempts of which the store can't tell whether they live,
    /// because it has no locks: in a bucket all that were not published.
    ///
    /// The caller knows that nobody is saving into this run: say, the one coordinator of a run that starts
    /// again, before its first save and before any rank [joins](Self::join). An attempt that lives all the
    /// same fails, or in the worst case publishes a checkpoint whose files are gone. An attempt whose marker
    /// is locked stays.
    ///
    /// # Errors
    ///
    /// As there.
    pub fn clean_when_idle(&self) -> Result<Cleaned, SaveError> {
        write::clean(&*self.store, Unlocked::Dead, Action::Remove)
    }

    /// What [`clean_when_idle`](Self::clean_when_idle) would remove and keep.
    ///
    /// # Errors
    ///
    /// When the store can't be listed.
    pub fn leftovers_when_idle(&self) -> Result<Cleaned, SaveError> {
        write::clean(&*self.store, Unlocked::Dead, Action::Report)
    }

    /// Gives the directory of a step that can't be used the name `damaged-00000100`, under which nothing takes it for
    /// a checkpoint and nothing removes it by itself; the step may be saved again then. Gives the new place; `None` when
    /// there is nothing of the step.
    ///
    /// In a bucket the step's manifest moves, and the files stay where they are.
    ///
    /// # Errors
    ///
    /// When the store fails.
    pub fn set_aside(&self, step: u64) -> Result<Option<PathBuf>, SaveError> {
        write::set_aside(&*self.store, step)
    }

    /// Removes the checkpoint of a step. In one instant it is no checkpoint any more; then its files go.
    /// A load from it that is under way fails.
    ///
    /// # Errors
    ///
    /// When it has no sound manifest, which would prove that it is ours, or the store fails.
    pub fn remove(&self, step: u64) -> Result<(), SaveError> {
        write::remove_step(&*self.store, step)
    }

    /// Removes the directory of a step, or of a damaged one that was [set aside](Self::set_aside), by its name in the
    /// run, whatever is in it: also where no sound manifest proves that it is ours.
    ///
    /// In a bucket, [`clean`](Self::clean) then removes the files that its attempt has written.
    ///
    /// # Errors
    ///
    /// When the name is neither, there is no such directory, or the store fails.
    pub fn discard(&self, name: &str) -> Result<(), SaveError> {
        write::discard(&*self.store, name)
    }
}

/// Whether a step looks like this to somebody who reads its manifest, and then finds other files because
/// it was replaced in between.
fn may_be_replaced(error: &LoadError) -> bool {
    use std::io::ErrorKind::StaleNetworkFileHandle;
    match error {
        LoadError::Io { source, .. } => source.kind() == StaleNetworkFileHandle,
        LoadError::FileMissing { .. } | LoadError::FileSize { .. } => true,
        _ => false,
    }
}
