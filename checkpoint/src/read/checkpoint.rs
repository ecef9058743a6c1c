//! A published checkpoint.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::Arc,
    time::SystemTime,
};

use parking_lot::Mutex;

use super::{
    files::{Files, Kept},
    shard::{Held, ShardFile, check_digest, check_header},
};
use crate::{
    Chunk, DocumentEntry, FileEntry, LoadError, Manifest, Role, Scalar, TensorEntry,
    format::{INDEX_FILE, MANIFEST_FILE, PLAN_FILE, StoredPlan, attempt_dir_name},
    store::{Found, FoundKind, LocalStore, Retrying, Store, join, read_manifest},
};

/// A published checkpoint: a directory with a validated manifest. A source of a model's parameters
/// ([`tinderbox_deferred::Source`]) and of an optimizer's state.
///
/// Every byte is checked against its digest when it is read, not before; [`Self::verify`] reads all of them.
/// Up to 64 files remain open after a read, or a sixteenth of those that the process may have open if that is less, for all clones together, until the last clone is dropped.
#[derive(Clone, Debug)]
pub struct Checkpoint {
    store: Arc<dyn Store>,
    place: PathBuf,
    files_dir: String,
    manifest: Arc<Manifest>,
    /// Indices of tensors by role and tied name.
    tied: BTreeMap<(Role, String), usize>,
    /// For each file, the indices of its tensors and of their chunks, in file order.
    contents: Arc<Vec<Vec<(usize, usize)>>>,
    files: Arc<Files>,
    /// What is kept from one load to the next.
    pub(super) kept: Arc<Mutex<Kept>>,
}

impl Checkpoint {
    /// Opens the directory of one step: validates the manifest, and checks that every file exists with its
    /// size. Reads no tensor. The directory can be a symbolic link to one; the files in it can't.
    ///
    /// Memory: at most four times the manifest's size, which is at most 256 MiB, plus 8 MiB.
    ///
    /// # Errors
    ///
    /// Returns an error if the checkpoint was not published, the manifest is damaged, or a file is missing,
    /// truncated or a link.
    pub fn open(step_dir: impl Into<PathBuf>) -> Result<Self, LoadError> {
        let store = Retrying::new(Arc::new(LocalStore::new(step_dir)));
        Self::open_in(Arc::new(store), "")
    }

    /// Whether blocks of its files have digests.
    pub(super) fn has_digests(&self) -> bool {
        self.files.plain.is_none()
    }

    /// Opens a directory of a store.
    pub(crate) fn open_in(store: Arc<dyn Store>, step_dir: &str) -> Result<Self, LoadError> {
        let path = join(step_dir, MANIFEST_FILE);
        let manifest = read_manifest(&*store, step_dir).map_err(store.failed("open", &path))?;
        let manifest = manifest.ok_or_else(|| {
            let path = store.place(step_dir);
            match store.link_target(step_dir) {
                // Its disk may not be mounted, where the place to mount it is an empty directory.
                Ok(Some(target)) => LoadError::DanglingLink { path, target },
                _ => LoadError::NotPublished { path },
            }
        })?;
        let manifest = manifest.map_err(|source| LoadError::Manifest {
            path: store.place(&path),
            source,
        })?;
        let attempt = attempt_dir_name(manifest.step, manifest.attempt);
        let files_dir = store.files_of(step_dir, &attempt);
        check_files(&*store, &files_dir, &manifest)?;
        let place = store.place(step_dir);
        let files = Files::default();
        Ok(Self::of_manifest(manifest, store, files_dir, place, files))
    }

    /// Creates the checkpoint that a validated manifest describes.
    pub(super) fn of_manifest(
        manifest: Manifest,
        store: Arc<dyn Store>,
        files_dir: String,
        place: PathBuf,
        files: Files,
    ) -> Self {
        let tensors = manifest.tensors.iter().enumerate();
        let tied = tensors.flat_map(|(at, tensor)| {
            let names = tensor.tied.iter();
            names.map(move |name| ((tensor.role, name.clone()), at))
        });
        Self {
            contents: Arc::new(contents(&manifest)),
            files: Arc::new(files),
            kept: Arc::default(),
            place,
            files_dir,
            tied: tied.collect(),
            manifest: Arc::new(manifest),
            store,
        }
    }

    /// Returns the directory.
    pub fn dir(&self) -> &Path {
        &self.place
    }

    /// Returns the validated manifest: step, seed, data position, world size, metadata, files, tensors.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// Returns a description for messages.
    pub(super) fn describe(&self) -> String {
        let what = match self.has_digests() {
            true => "checkpoint",
            false => "pretrained weights",
        };
        format!("{what} {}", self.place.display())
    }

    /// Returns the chunks in a file, by its index in the manifest, in file order.
    pub(super) fn contents(&self, file: usize) -> impl Iterator<Item = (&TensorEntry, &Chunk)> {
        self.contents[file].iter().map(|(tensor, chunk)| {
            let tensor = &self.manifest.tensors[*tensor];
            (tensor, &tensor.chunks[*chunk])
        })
    }

    /// Opens a file by its index in the manifest and validates its header.
    pub(super) fn file(&self, position: usize) -> Result<Arc<ShardFile>, LoadError> {
        let entry = &self.manifest.files[position];
        self.files
            .get(entry, position, || self.open_file(entry, position))
    }

    /// Opens a file whose blocks have digests; checks its size and its header.
    ///
    /// Memory: the header, whose size is bounded by the size of the file.
    fn open_file(&self, entry: &FileEntry, position: usize) -> Result<ShardFile, LoadError> {
        let (store, name) = (&*self.store, join(&self.files_dir, &entry.name));
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
        let header = shard.header(entry)?;
        if !self.kept.lock().proven.contains(&position) {
            let checked = check_header(&header, self.contents(position), entry);
            checked.map_err(|source| LoadError::Header {
                path: shard.path.clone(),
                source,
            })?;
            self.kept.lock().proven.insert(position);
        }
        Ok(shard)
    }

    /// Opens the file of this name.
    pub(super) fn file_named(&self, name: &str) -> Result<Arc<ShardFile>, LoadError> {
        let position = position_of(&self.manifest, name);
        self.file(position.ok_or_else(|| LoadError::NotAFile {
            path: self.place.join(name),
        })?)
    }

    /// Returns the plan that was saved with the checkpoint, in the planner's format; `None` without one.
    ///
    /// # Errors
    ///
    /// Returns an error if its file is damaged or can't be read.
    pub fn plan(&self) -> Result<Option<serde_json::Value>, LoadError> {
        let entry = match &self.manifest.plan {
            None => return Ok(None),
            Some(StoredPlan::Inline(plan)) => return Ok(Some(plan.value())),
            Some(StoredPlan::File(entry)) => entry,
        };
        let bytes = self.document(PLAN_FILE, entry)?;
        let plan = serde_json::from_slice(&bytes).map_err(|source| LoadError::Manifest {
            path: self.place.join(PLAN_FILE),
            source: source.into(),
        })?;
        Ok(Some(plan))
    }

    /// Reads a small file and checks its size and digest.
    pub(super) fn document(&self, name: &str, entry: &DocumentEntry) -> Result<Vec<u8>, LoadError> {
        let (store, path) = (&*self.store, join(&self.files_dir, name));
        check_found(store, &path, store.find(&path)?, entry.size_bytes)?;
        let bytes = store.read_small(&path, entry.size_bytes);
        let bytes = bytes.map_err(store.failed("read", &path))?;
        check_digest(&bytes, entry.digest, "bytes", &store.place(&path))?;
        Ok(bytes)
    }

    /// Returns the files other than those with tensors, checked: the Hugging Face index and the plan.
    pub(crate) fn documents(&self) -> Result<Vec<(&'static str, Vec<u8>)>, LoadError> {
        let index = self.manifest.index.iter().map(|entry| (INDEX_FILE, entry));
        let plan = self.manifest.plan_file().map(|entry| (PLAN_FILE, entry));
        let listed = index.chain(plan);
        listed
            .map(|(name, entry)| Ok((name, self.document(name, entry)?)))
            .collect()
    }

    /// Passes all bytes of a file, in order and checked, to a function.
    pub(crate) fn for_each_piece<E: From<LoadError>>(
        &self,
        position: usize,
        mut each: impl FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let shard = self.file(position)?;
        each(&shard.header(&self.manifest.files[position])?)?;
        let mut held = Held::default();
        for (tensor, chunk) in self.contents(position) {
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
        let manifest = join(&self.files_dir, MANIFEST_FILE);
        self.store.modified(&manifest).ok().flatten()
    }

    /// Returns the number of completed optimizer steps.
    pub fn step(&self) -> u64 {
        self.manifest.step
    }

    /// Returns the tensors of a role, sorted by name.
    pub fn tensors(&self, role: Role) -> impl Iterator<Item = &TensorEntry> {
        self.manifest.tensors.iter().filter(move |t| t.role == role)
    }

    /// Returns a tensor by role and name, its own or a tied one. Cost: a binary search.
    pub fn tensor(&self, role: Role, name: &str) -> Option<&TensorEntry> {
        // Validation of the manifest ensures this order.
        let tensors = &self.manifest.tensors;
        let own = tensors.binary_search_by(|t| (t.role, &*t.name).cmp(&(role, name)));
        let tied = || self.tied.get(&(role, name.to_owned())).copied();
        own.ok().or_else(tied).map(|at| &tensors[at])
    }

    /// Returns the scalars of the optimizer's state, by name.
    pub fn scalars(&self) -> &BTreeMap<String, Scalar> {
        &self.manifest.scalars
    }

    /// Returns the saved state tensors whose names start with a prefix, sorted by name. Reads nothing. Cost:
    /// a binary search.
    pub fn state_under(&self, prefix: &str) -> impl Iterator<Item = &TensorEntry> {
        // Validation of the manifest ensures this order.
        let tensors = &self.manifest.tensors;
        let first = tensors.partition_point(|t| (t.role, &*t.name) < (Role::State, prefix));
        tensors[first..]
            .iter()
            .take_while(move |t| t.role == Role::State && t.name.starts_with(prefix))
    }
}

/// Returns the index of the file of this name.
fn position_of(manifest: &Manifest, name: &str) -> Option<usize> {
    // Validation of the manifest ensures this order, and that the file of every chunk is listed.
    let found = manifest
        .files
        .binary_search_by(|file| (*file.name).cmp(name));
    found.ok()
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

/// Rejects files that are missing or whose size differs from the manifest. Uses one listing; where listing is
/// not supported or not permitted, as on a web server, looks up each file.
fn check_files(store: &dyn Store, dir: &str, manifest: &Manifest) -> Result<(), LoadError> {
    let mut listed = store.entries_by_name(dir).ok();
    for file in &manifest.files {
        let path = join(dir, &file.name);
        let found = match &mut listed {
            None => store.find(&path)?,
            Some(listed) => listed.remove(&file.name),
        };
        check_found(store, &path, found, file.size_bytes)?;
    }
    Ok(())
}

/// Rejects a file that is missing, or whose size differs from the manifest.
fn check_found(
    store: &dyn Store,
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
