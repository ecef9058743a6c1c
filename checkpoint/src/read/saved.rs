//! Tensors in files: the common part of a checkpoint and of the files of other programs.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;

use super::files::OpenFiles;
use super::plan::WantedKey;
use super::shard::{Held, ShardFile};
use crate::{BlockSize, LoadError, Role, Scalar, TensorEntry};

/// Files that have tensors.
pub(super) trait TensorFiles: fmt::Debug + Send + Sync {
    /// Returns the tensors, sorted by role and name.
    fn tensors(&self) -> &[TensorEntry];

    /// Returns the scalars of the optimizer's state; `None` for the files of other programs.
    fn scalars(&self) -> Option<&BTreeMap<String, Scalar>>;

    /// Opens a file whose header is valid.
    fn open(&self, name: &str) -> Result<ShardFile, LoadError>;
}

/// The tensors of a [`Checkpoint`](crate::Checkpoint) or of [`Pretrained`](crate::Pretrained) weights, with the files that
/// contain their values. [Tools](crate::tools) that need only tensors accept both.
///
/// The values of a checkpoint are checked when they are read, and the values of pretrained weights are not. Clones share open
/// files.
#[derive(Clone, Debug)]
pub struct SavedTensors {
    pub(super) shared: Arc<Shared>,
}

/// The data that clones share.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) files: Arc<dyn TensorFiles>,
    /// The number of bytes that one digest covers; `None` if the contents of the files have no digests.
    digests: Option<BlockSize>,
    open: OpenFiles,
    place: PathBuf,
    /// Indices of tensors by role and tied name.
    tied: BTreeMap<(Role, String), usize>,
    /// The memory of each thread of a load. It is kept for the next load: if each load allocated it between values, the memory
    /// of the process would grow.
    pub(super) scratch: Mutex<Vec<Held>>,
    /// The parts of tensors that were compared and are equal, for a model that is loaded repeatedly.
    pub(super) compared: Mutex<Vec<[WantedKey; 2]>>,
}

impl SavedTensors {
    /// Creates the tensors of some files. Some of the files may be open; errors contain the place.
    pub(super) fn of(
        files: Arc<dyn TensorFiles>,
        digests: Option<BlockSize>,
        open: OpenFiles,
        place: PathBuf,
    ) -> Self {
        let tensors = files.tensors().iter().enumerate();
        let tied = tensors.flat_map(|(at, tensor)| {
            let names = tensor.tied.iter();
            names.map(move |name| ((tensor.role, name.clone()), at))
        });
        let shared = Arc::new(Shared {
            tied: tied.collect(),
            files,
            digests,
            open,
            place,
            scratch: Mutex::default(),
            compared: Mutex::default(),
        });
        Self { shared }
    }

    /// Returns the directory or the file.
    pub fn place(&self) -> &Path {
        &self.shared.place
    }

    /// Returns the tensors of a role, sorted by name. Pretrained weights are of the role [`Role::Model`].
    pub fn tensors(&self, role: Role) -> impl Iterator<Item = &TensorEntry> {
        let tensors = self.shared.files.tensors().iter();
        tensors.filter(move |tensor| tensor.role == role)
    }

    /// Returns a tensor by role and name, its own or a tied one. Cost: a binary search.
    pub fn tensor(&self, role: Role, name: &str) -> Option<&TensorEntry> {
        let tensors = self.shared.files.tensors();
        let own = tensors.binary_search_by_key(&(role, name), TensorEntry::key);
        let tied = || self.shared.tied.get(&(role, name.to_owned())).copied();
        own.ok().or_else(tied).map(|at| &tensors[at])
    }

    /// Returns a file, which is opened if it is not open.
    pub(super) fn file(&self, name: &str) -> Result<Arc<ShardFile>, LoadError> {
        let Shared { files, open, .. } = &*self.shared;
        open.get(name, || files.open(name))
    }

    /// Returns the scalars of the optimizer's state; `None` for the files of other programs.
    pub(crate) fn scalars(&self) -> Option<&BTreeMap<String, Scalar>> {
        self.shared.files.scalars()
    }

    /// Returns whether the contents of the files have digests.
    pub(super) fn has_digests(&self) -> bool {
        self.shared.digests.is_some()
    }

    /// Returns the number of bytes that are read at a time: the bytes that one digest covers, if there are digests.
    pub(crate) fn block_bytes(&self) -> u64 {
        self.shared.digests.unwrap_or_default().bytes()
    }

    /// Returns a description for messages.
    pub(super) fn describe(&self) -> String {
        let kind = match self.has_digests() {
            true => "checkpoint",
            false => "pretrained weights",
        };
        format!("{kind} {}", self.place().display())
    }
}
