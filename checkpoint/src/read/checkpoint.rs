//! A published checkpoint.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use super::files::OpenFiles;
use super::saved::{SavedTensors, TensorFiles};
use super::shard::{Held, ShardFile, check_digest, check_header};
use crate::format::{INDEX_FILE, MANIFEST_FILE, PLAN_FILE, StoredPlan, names};
use crate::store::{Files, Found, FoundKind, LocalStore, StoreExt, join};
use crate::{Chunk, DocumentEntry, LoadError, Manifest, Role, Scalar, TensorEntry};

/// A published checkpoint: a directory with a validated manifest. A source of a model's parameters
/// ([`tinderbox_deferred::Source`]) and of an optimizer's state.
///
/// Every byte is checked against its digest when it is read, not before; [`Self::verify`] reads all bytes. Files of other
/// programs, which have no digests, are [`Pretrained`](crate::Pretrained) weights.
///
/// All clones together keep up to 64 files open after a read, or a sixteenth of the files that the process may have open if
/// that is less, until the last clone is dropped.
#[derive(Clone, Debug, derive_more::AsRef)]
pub struct Checkpoint {
    #[as_ref]
    pub(crate) saved: SavedTensors,
    pub(super) published: Arc<Published>,
}

/// The files of a checkpoint, as its manifest lists them.
#[derive(Debug)]
pub(super) struct Published {
    store: Files,
    files_dir: String,
    manifest: Manifest,
    /// For each file, the indices of its tensors and of their chunks, in file order.
    contents: Vec<Vec<(usize, usize)>>,
}

impl Checkpoint {
    /// Opens the directory of one step: validates the manifest, and checks that every file exists with its size. Reads no
    /// tensor. The directory can be a symbolic link to a directory; the files in it can't be links.
    ///
    /// Memory: at most four times the manifest's size, which is at most 256 MiB, plus 8 MiB.
    ///
    /// # Errors
    ///
    /// Returns an error if the checkpoint was not published, the manifest is damaged, or a file is missing,
    /// truncated or a link.
    pub fn open(step_dir: impl Into<PathBuf>) -> Result<Self, LoadError> {
        Self::open_in(Files(Arc::new(LocalStore::new(step_dir))), "")
    }

    /// Opens a directory of a store.
    pub(crate) fn open_in(store: Files, step_dir: &str) -> Result<Self, LoadError> {
        let path = join(step_dir, MANIFEST_FILE);
        let manifest = store
            .read_manifest(step_dir)
            .map_err(store.failed("open", &path))?;
        let Some(manifest) = manifest else {
            let path = store.place(step_dir);
            // The disk of the target may not be mounted.
            if let Ok(Some(target)) = store.link_target(step_dir) {
                return Err(LoadError::DanglingLink { path, target });
            }
            let exists = store.find(step_dir)?.is_some();
            return Err(LoadError::NotPublished { path, exists });
        };
        let path = store.place(&path);
        let manifest = manifest.map_err(|source| LoadError::Manifest { path, source })?;
        let attempt = names::attempt_dir(manifest.step, manifest.attempt);
        let files_dir = store.files_of(step_dir, &attempt);
        // One listing. Where that is not supported or not permitted, as on a web server, each file is looked up.
        let mut listed = store.entries_by_name(&files_dir).ok();
        for file in &manifest.files {
            let path = join(&files_dir, &file.name);
            let found = match &mut listed {
                None => store.find(&path)?,
                Some(listed) => listed.remove(&file.name),
            };
            check_found(&store, &path, found, file.size_bytes)?;
        }
        let (place, digests) = (store.place(step_dir), Some(manifest.block_bytes));
        let published = Arc::new(Published {
            contents: contents(&manifest),
            files_dir,
            manifest,
            store,
        });
        let saved = SavedTensors::of(published.clone(), digests, OpenFiles::default(), place);
        Ok(Self { saved, published })
    }

    /// Returns the directory.
    pub fn dir(&self) -> &Path {
        self.saved.place()
    }

    /// Returns the validated manifest: step, seed, data position, world size, metadata, files, tensors.
    pub fn manifest(&self) -> &Manifest {
        &self.published.manifest
    }

    /// Returns the plan that was saved with the checkpoint, in the planner's format; `None` without one.
    ///
    /// # Errors
    ///
    /// Returns an error if its file is damaged or can't be read.
    pub fn plan(&self) -> Result<Option<serde_json::Value>, LoadError> {
        let entry = match &self.manifest().plan {
            None => return Ok(None),
            Some(StoredPlan::Inline(plan)) => return Ok(Some(plan.value())),
            Some(StoredPlan::File(entry)) => entry,
        };
        let bytes = self.published.document(PLAN_FILE, entry)?;
        let plan = serde_json::from_slice(&bytes).map_err(|source| LoadError::Manifest {
            path: self.dir().join(PLAN_FILE),
            source: source.into(),
        })?;
        Ok(Some(plan))
    }

    /// Returns the files without tensors, checked: the Hugging Face index and the plan.
    pub(crate) fn documents(&self) -> Result<Vec<(&'static str, Vec<u8>)>, LoadError> {
        let index = self.manifest().index.iter();
        let index = index.map(|entry| (INDEX_FILE, entry));
        let plan = self.manifest().plan_file();
        let listed = index.chain(plan.map(|entry| (PLAN_FILE, entry)));
        let read = listed.map(|(name, entry)| Ok((name, self.published.document(name, entry)?)));
        read.collect()
    }

    /// Passes all bytes of a file, in order and checked, to a function.
    pub(crate) fn for_each_piece<E: From<LoadError>>(
        &self,
        position: usize,
        mut each: impl FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let entry = &self.manifest().files[position];
        let shard = self.saved.file(&entry.name)?;
        each(&shard.header(entry)?)?;
        let mut held = Held::default();
        for (tensor, chunk) in self.published.contents(position) {
            let chunk = shard.chunk(tensor, chunk);
            for span in chunk.blocks() {
                chunk.hold(span, &mut held)?;
                each(held.block())?;
            }
        }
        Ok(())
    }

    /// Returns when the manifest was written; `None` if the store does not know or can't be read.
    pub fn saved_at(&self) -> Option<SystemTime> {
        let published = &self.published;
        let manifest = join(&published.files_dir, MANIFEST_FILE);
        published.store.look(&manifest).ok()?.modified
    }

    /// Returns the number of completed optimizer steps.
    pub fn step(&self) -> u64 {
        self.manifest().step
    }

    /// Returns the tensors of a role, sorted by name.
    pub fn tensors(&self, role: Role) -> impl Iterator<Item = &TensorEntry> {
        self.saved.tensors(role)
    }

    /// Returns a tensor by role and name, its own or a tied one. Cost: a binary search.
    pub fn tensor(&self, role: Role, name: &str) -> Option<&TensorEntry> {
        self.saved.tensor(role, name)
    }

    /// Returns the scalars of the optimizer's state, by name.
    pub fn scalars(&self) -> &BTreeMap<String, Scalar> {
        &self.manifest().scalars
    }

    /// Returns the saved state tensors whose names start with a prefix, sorted by name. Reads nothing. Cost:
    /// a binary search.
    pub fn state_under(&self, prefix: &str) -> impl Iterator<Item = &TensorEntry> {
        // Validation of the manifest ensures this order.
        let tensors = &self.manifest().tensors;
        let first = tensors.partition_point(|tensor| tensor.key() < (Role::State, prefix));
        let from_first = tensors[first..].iter();
        from_first.take_while(move |t| t.role == Role::State && t.name.starts_with(prefix))
    }
}

impl Published {
    /// Returns the chunks in a file, by its index in the manifest, in file order.
    pub(super) fn contents(&self, file: usize) -> impl Iterator<Item = (&TensorEntry, &Chunk)> {
        self.contents[file].iter().map(|(tensor, chunk)| {
            let tensor = &self.manifest.tensors[*tensor];
            (tensor, &tensor.chunks[*chunk])
        })
    }

    /// Reads a small file and checks its size and digest.
    pub(super) fn document(&self, name: &str, entry: &DocumentEntry) -> Result<Vec<u8>, LoadError> {
        let (store, path) = (&self.store, join(&self.files_dir, name));
        check_found(store, &path, store.find(&path)?, entry.size_bytes)?;
        let bytes = store.read_small(&path, entry.size_bytes);
        let bytes = bytes.map_err(store.failed("read", &path))?;
        check_digest(&bytes, entry.digest, "bytes", &store.place(&path))?;
        Ok(bytes)
    }
}

impl TensorFiles for Published {
    fn tensors(&self) -> &[TensorEntry] {
        // Validation of the manifest ensures the order.
        &self.manifest.tensors
    }

    fn scalars(&self) -> Option<&BTreeMap<String, Scalar>> {
        Some(&self.manifest.scalars)
    }

    /// Opens a file, and checks its size and its header.
    ///
    /// Memory: the header, whose size is bounded by the size of the file.
    fn open(&self, name: &str) -> Result<ShardFile, LoadError> {
        let (store, position) = (&self.store, position_of(&self.manifest, name));
        let name = join(&self.files_dir, name);
        let position = position.ok_or_else(|| LoadError::NotAFile {
            path: store.place(&name),
        })?;
        let entry = &self.manifest.files[position];
        let file = store.open(&name).map_err(store.failed("open", &name))?;
        let path = store.place(&name);
        if file.bytes() != entry.size_bytes {
            return Err(LoadError::FileSize {
                path,
                expected_bytes: entry.size_bytes,
                found_bytes: file.bytes(),
            });
        }
        let shard = ShardFile::new(path, file, Some(self.manifest.block_bytes));
        let checked = check_header(&shard.header(entry)?, self.contents(position), entry);
        checked.map_err(|source| LoadError::Header {
            path: shard.path.clone(),
            source,
        })?;
        Ok(shard)
    }
}

/// Returns the index of the file of this name.
fn position_of(manifest: &Manifest, name: &str) -> Option<usize> {
    // Validation of the manifest ensures this order, and that the file of every chunk is listed.
    let files = &manifest.files;
    files.binary_search_by(|file| (*file.name).cmp(name)).ok()
}

/// Returns the chunks of every file, in file order.
fn contents(manifest: &Manifest) -> Vec<Vec<(usize, usize)>> {
    let mut contents = vec![Vec::new(); manifest.files.len()];
    for (tensor, entry) in manifest.tensors.iter().enumerate() {
        for (chunk, found) in entry.chunks.iter().enumerate() {
            let file = position_of(manifest, &found.file);
            contents[file.expect("the file of every chunk is listed")].push((tensor, chunk));
        }
    }
    for chunks in &mut contents {
        chunks.sort_by_key(|(t, c)| manifest.tensors[*t].chunks[*c].start_bytes);
    }
    contents
}

/// Rejects a file that is missing, or whose size differs from the manifest.
fn check_found(
    store: &Files,
    path: &str,
    found: Option<Found>,
    expected_bytes: u64,
) -> Result<(), LoadError> {
    let path = || store.place(path);
    match found.map(|found| (found.kind, found.bytes)) {
        None => Err(LoadError::FileMissing { path: path() }),
        Some((FoundKind::File, found_bytes)) if found_bytes == expected_bytes => Ok(()),
        Some((FoundKind::File, found_bytes)) => Err(LoadError::FileSize {
            path: path(),
            expected_bytes,
            found_bytes,
        }),
        Some(_) => Err(LoadError::NotAFile { path: path() }),
    }
}
