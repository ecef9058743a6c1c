//! The checkpoints of a run.

use std::{io, path::PathBuf, sync::Arc, time::Duration};

use serde::{Deserialize, Serialize};

use crate::{
    Attempt, AttemptHandle, Checkpoint, CheckpointMeta, Cleaned, LoadError, SaveError,
    error::chain,
    format::{parse_step_dir_name, step_dir_name},
    read::failed,
    store::{FoundKind, LocalStore, Store},
    write,
};

/// How often a step is opened again that may have been replaced meanwhile.
const REOPENED: usize = 2;

/// The checkpoints of a run: one directory per step, in one store.
#[derive(Clone, Debug)]
pub struct Run {
    store: Arc<dyn Store>,
}

/// The newest checkpoint that can be used, and those after it that can't.
#[derive(Debug)]
pub struct Latest {
    /// The checkpoint.
    pub checkpoint: Checkpoint,
    /// Why each newer one can't be used, the newest first; each error names its directory or file.
    pub skipped: Vec<LoadError>,
}

/// Which checkpoints to keep.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Retention {
    /// So many of the newest, at least 1.
    pub last: usize,
    /// Beside them, those whose step is a multiple of this.
    pub every: Option<u64>,
}

impl Retention {
    /// Which of the steps go, in order.
    pub fn expired(&self, steps: &[u64]) -> Vec<u64> {
        let mut steps = steps.to_vec();
        steps.sort_unstable();
        let old = steps.len().saturating_sub(self.last.max(1));
        steps.truncate(old);
        steps.retain(|step| self.every.is_none_or(|every| !step.is_multiple_of(every)));
        steps
    }
}

impl Run {
    /// The run of this directory, which is made when something is saved.
    pub fn local(dir: impl Into<PathBuf>) -> Self {
        Self::on(Arc::new(LocalStore::new(dir)))
    }

    /// The run of this store.
    pub fn on(store: Arc<dyn Store>) -> Self {
        Self { store }
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
        let listing = match self.store.list("") {
            Ok(listing) => listing,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(failed(&*self.store, "list", "")(error)),
        };
        let dirs = listing.iter().filter(|found| found.kind == FoundKind::Dir);
        let mut steps: Vec<u64> = dirs.filter_map(|f| parse_step_dir_name(&f.name)).collect();
        steps.sort_unstable();
        Ok(steps)
    }

    /// Opens the checkpoint of a step: proves the manifest, and that every file is there with its size.
    /// Reads no tensor.
    ///
    /// # Errors
    ///
    /// When it was not published, or what was proven fails.
    pub fn open(&self, step: u64) -> Result<Checkpoint, LoadError> {
        let name = step_dir_name(step);
        // A store without directories finds nothing of this name.
        let is_link = self
            .store
            .look(&name)
            .is_ok_and(|f| f.kind == FoundKind::Other);
        if is_link {
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
            found if found == step => Ok(checkpoint),
            found => Err(LoadError::WrongStep {
                path: checkpoint.dir().to_owned(),
                expected: step,
                found,
            }),
        }
    }

    /// The usable checkpoint with the highest step; `None` when there is none at all.
    ///
    /// One that can't be opened is skipped, with its reason in the result and in a `tracing` warning.
    /// Tensor data is not read: damage in it is found when it is loaded, or by
    /// [`latest_verified`](Self::latest_verified).
    ///
    /// # Errors
    ///
    /// [`LoadError::NoneUsable`] with all reasons when there are checkpoints and none can be used.
    pub fn latest(&self) -> Result<Option<Latest>, LoadError> {
        self.latest_that(|_| Ok(()))
    }

    /// As [`latest`](Self::latest), and every byte of it was read and is right. Time: a pass over the
    /// files of each checkpoint that is looked at.
    ///
    /// # Errors
    ///
    /// As there.
    pub fn latest_verified(&self) -> Result<Option<Latest>, LoadError> {
        self.latest_that(Checkpoint::verify)
    }

    /// The usable checkpoint with the highest step that also passes a test.
    ///
    /// # Errors
    ///
    /// As [`latest`](Self::latest); the reasons are the test's too.
    pub fn latest_that(
        &self,
        test: impl Fn(&Checkpoint) -> Result<(), LoadError>,
    ) -> Result<Option<Latest>, LoadError> {
        let mut skipped = Vec::new();
        for step in self.steps()?.into_iter().rev() {
            let opened = self.open(step).and_then(|checkpoint| {
                test(&checkpoint)?;
                Ok(checkpoint)
            });
            match opened {
                Ok(checkpoint) => {
                    return Ok(Some(Latest {
                        checkpoint,
                        skipped,
                    }));
                }
                Err(error) => {
                    tracing::warn!(
                        dir = %self.store.place(&step_dir_name(step)).display(), reason = %chain(&error),
                        "skipped a checkpoint that can't be used"
                    );
                    skipped.push(error);
                }
            }
        }
        match skipped.is_empty() {
            true => Ok(None),
            false => Err(LoadError::NoneUsable {
                path: self.place(),
                reasons: skipped,
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
    /// checkpoint, and is none of this as long as the step's manifest has its id. It goes when the manifest in
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
        write::clean(&*self.store).remove()
    }

    /// What [`clean`](Self::clean) would remove and keep.
    ///
    /// # Errors
    ///
    /// When the store can't be listed.
    pub fn leftovers(&self) -> Result<Cleaned, SaveError> {
        write::clean(&*self.store).tell()
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
        write::clean(&*self.store).when_idle().remove()
    }

    /// What [`clean_when_idle`](Self::clean_when_idle) would remove and keep.
    ///
    /// # Errors
    ///
    /// When the store can't be listed.
    pub fn leftovers_when_idle(&self) -> Result<Cleaned, SaveError> {
        write::clean(&*self.store).when_idle().tell()
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

    /// Removes the checkpoints that are not to be kept; gives their steps, in order. Those that can't be
    /// opened are neither counted nor removed.
    ///
    /// # Errors
    ///
    /// When one can't be removed.
    pub fn prune(&self, retention: Retention) -> Result<Vec<u64>, SaveError> {
        let steps = self.steps().map_err(|source| SaveError::List {
            source: Box::new(source),
        })?;
        let usable: Vec<u64> = steps
            .into_iter()
            .filter(|step| self.open(*step).is_ok())
            .collect();
        let expired = retention.expired(&usable);
        for step in &expired {
            self.remove(*step)?;
        }
        Ok(expired)
    }
}

/// Whether a step looks like this to somebody who reads its manifest, and then finds other files because
/// it was replaced in between.
fn may_be_replaced(error: &LoadError) -> bool {
    use io::ErrorKind::{NotFound, StaleNetworkFileHandle};
    match error {
        LoadError::Io { source, .. } => matches!(source.kind(), NotFound | StaleNetworkFileHandle),
        LoadError::FileSize { .. } => true,
        _ => false,
    }
}
