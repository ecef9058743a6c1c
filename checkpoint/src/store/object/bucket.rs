//! Implementation of store operations as requests to a bucket.

use std::{io, path::PathBuf, pin::Pin, sync::Arc, time::SystemTime};

use object_store::{
    GetOptions, ObjectMeta, ObjectStore, ObjectStoreExt, PutMode, PutOptions, PutPayload, Result,
    path::Path,
};

use super::{
    BucketError,
    outcome::to_io,
    put::{PutError, put_if, version_of},
    read::BucketRead,
    tasks::Tasks,
    write::BucketWrite,
};
use crate::{
    format::{MANIFEST_FILE, MAX_MANIFEST_BYTES, attempt_dir_name, decode_manifest, step_dir_name},
    store::{Found, FoundKind, Lock, PublishError, ReadFile, Store, WriteFile, existing, join},
};

/// Default part size in bytes: as recommended by the services, and above S3's minimum of 5 MiB.
const PART_BYTES: usize = 8 << 20;

/// A bucket, or a prefix in it: S3, Google Cloud Storage, Azure, or in memory.
///
/// ```
/// use std::{collections::BTreeMap, sync::Arc, time::Duration};
/// use burn::tensor::TensorData;
/// use object_store::memory::InMemory;
/// use tinderbox_checkpoint::{CheckpointMeta, Role, Run, SaveTensor, store::BucketStore};
///
/// let bucket = BucketStore::new(Arc::new(InMemory::new()), "runs/7")?;
/// let run = Run::on(Arc::new(bucket));
/// let attempt = run.begin(CheckpointMeta::new(100, 1))?;
/// let data = TensorData::new(vec![1.0f32, 2.0], [2]);
/// let weight = SaveTensor::whole("weight", Role::Model, data);
/// attempt.handle().write_rank(0, &[weight], &BTreeMap::new())?;
/// attempt.publish(Duration::from_secs(60))?;
///
/// let checkpoint = run.latest()?.expect("one was published").checkpoint;
/// assert_eq!(checkpoint.dir().to_str(), Some("InMemory/runs/7/step-00000100"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Publication
///
/// A bucket has no renames. The files of an attempt stay where they were written,
/// `.attempt-100-ID/model-rank-00000.safetensors`, and the checkpoint appears atomically when
/// `step-00000100/manifest.json` is written, under the condition that it does not exist, or, to replace a
/// step, that it is still the version that was read. If two coordinators compete, one succeeds. The directory
/// of an attempt has a fresh id, and one call writes for a rank, which it first claims by a conditional
/// write. The directory contains the Hugging Face index and a copy of the manifest, so a downloaded copy is a
/// regular checkpoint directory. An uploaded checkpoint directory, with its files next to the manifest, can
/// be read as well.
///
/// If the response to that write is lost, the manifest is read back. If that also fails, or if the manifest
/// does not exist yet, the save fails with an error that reports the unknown outcome, and the files stay,
/// because the manifest may still appear.
///
/// # Differences from a directory
///
/// - There are no locks, so a dead attempt can't be distinguished from a live one.
///   [`Run::clean`](crate::Run::clean) keeps both, and the caller must assert that no process is saving:
///   [`Run::clean_when_idle`](crate::Run::clean_when_idle). Until then, [`Run::join`](crate::Run::join)
///   mistakes a dead attempt to save the same step for a live one.
/// - A load fails if its checkpoint is replaced or removed concurrently: there are no open files that stay
///   readable. If the service has entity tags, a file is read only in the version that was opened.
/// - Replacing a step whose files were uploaded next to its manifest removes only the manifest.
/// - The service must be consistent, as S3, Google Cloud Storage and Azure are: written objects are listed
///   and readable immediately. Saving requires conditional writes; without them every attempt fails at its
///   start, which tests one. Web servers do not have them, so checkpoints there are read-only.
///
/// # Cost
///
/// Memory of a file being written: 5 parts of 8 MiB, 4 of them in flight; each rank writes several files
/// concurrently. Services accept up to 10,000 parts per file, so a file or tensor of more than 78 GiB
/// requires larger parts: see [`part_bytes`](Self::part_bytes). Memory of a read: an additional copy of the
/// bytes that are read, in a load 8 MiB or a block per thread. A store and its clones have up to 4 threads,
/// which run the requests; the caller blocks, on any thread, including the threads of an asynchronous runtime. A
/// file of one part needs one write request. Opening a checkpoint needs three requests, whatever its
/// contents, if one listing has all its files. A coordinator that waits for ranks lists the attempt up to 20
/// times a second.
///
/// Uploads that were interrupted by a kill are not listed, and incur storage cost: configure the bucket to
/// remove incomplete uploads after a few days.
#[derive(Clone, derive_more::Debug)]
pub struct BucketStore {
    // The store of a service may include its credentials in its debug output.
    #[debug(skip)]
    pub(super) objects: Arc<dyn ObjectStore>,
    #[debug(skip)]
    tasks: Arc<Tasks>,
    #[debug(skip)]
    prefix: Path,
    /// The location of the root, for messages.
    place: String,
    pub(super) part_bytes: usize,
}

impl BucketStore {
    /// Creates a store at a prefix, `""` for the whole bucket, of a bucket that was opened with custom
    /// options. Its timeout must suffice for a part: the default of the `object_store` crate is 30 seconds.
    ///
    /// # Errors
    ///
    /// Returns [`BucketError::Threads`] if the threads for requests can't be started.
    pub fn new(
        objects: Arc<dyn ObjectStore>,
        prefix: impl Into<Path>,
    ) -> std::result::Result<Self, BucketError> {
        let prefix = prefix.into();
        let place = join_place(&objects.to_string(), prefix.as_ref());
        Self::at_place(objects, prefix, place)
    }

    pub(super) fn at_place(
        objects: Arc<dyn ObjectStore>,
        prefix: Path,
        place: String,
    ) -> std::result::Result<Self, BucketError> {
        let tasks = Tasks::new().map_err(|source| BucketError::Threads { source })?;
        Ok(Self {
            objects,
            tasks: Arc::new(tasks),
            prefix,
            place,
            part_bytes: PART_BYTES,
        })
    }

    /// Sets the size of the parts of large files; the default is 8 MiB. S3 accepts parts from 5 MiB to 5 GiB,
    /// and at most 10,000 per file.
    #[must_use]
    pub fn part_bytes(self, bytes: usize) -> Self {
        Self {
            part_bytes: bytes.max(1),
            ..self
        }
    }

    /// Runs a request and waits for it.
    pub(super) fn run<T: Send + 'static>(
        &self,
        requests: impl Future<Output = Result<T>> + Send + 'static,
    ) -> io::Result<T> {
        self.tasks.run(requests).map_err(to_io)
    }

    /// Writes an object if the condition holds.
    pub(super) fn put_if(
        &self,
        at: &Path,
        payload: PutPayload,
        mode: PutMode,
    ) -> std::result::Result<(), PutError> {
        let put = put_if(self.objects.clone(), at.clone(), payload, mode);
        let done = self.tasks.run(async move { Ok(put.await) });
        done.unwrap_or_else(|panicked| Err(PutError::Unknown(panicked)))
    }

    /// Returns the object of a path.
    fn at(&self, path: &str) -> io::Result<Path> {
        let at = Path::parse(join(self.prefix.as_ref(), path));
        at.map_err(|source| to_io(source.into()))
    }

    fn head(&self, at: &Path) -> io::Result<ObjectMeta> {
        let (objects, at) = (self.objects.clone(), at.clone());
        self.run(async move { head(&*objects, &at).await })
    }

    /// Returns the condition that the manifest of a step is unchanged, and the location of the files that it
    /// lists, unless they are next to it.
    fn now_at(&self, step: &str, at: &Path) -> io::Result<(PutMode, Option<String>)> {
        let (objects, at) = (self.objects.clone(), at.clone());
        let (version, bytes) = self.run(async move {
            let found = objects.get_opts(&at, GetOptions::default()).await?;
            let (version, size) = (version_of(&found.meta), found.meta.size);
            Ok(match size {
                0..=MAX_MANIFEST_BYTES => (version, Some(found.bytes().await?)),
                _ => (version, None),
            })
        })?;
        if version.e_tag.is_none() && version.version.is_none() {
            // The condition needs an existing manifest.
            return Err(io::Error::from(io::ErrorKind::Unsupported));
        }
        let manifest = bytes.and_then(|bytes| decode_manifest(&bytes).ok());
        // A copy of another step's manifest lists files that do not belong to this step.
        let manifest = manifest.filter(|manifest| step_dir_name(manifest.step) == step);
        let files = manifest.map(|manifest| {
            let attempt = attempt_dir_name(manifest.step, manifest.attempt);
            self.files_of(step, &attempt)
        });
        if files.as_deref() == Some(step) {
            tracing::warn!(
                step = %self.place(step).display(),
                "the files of the replaced checkpoint are next to its manifest and are not removed"
            );
        }
        Ok((
            PutMode::Update(version),
            files.filter(|files| files != step),
        ))
    }
}

impl Store for BucketStore {
    fn place(&self, path: &str) -> PathBuf {
        PathBuf::from(join_place(&self.place, path))
    }

    fn list(&self, dir: &str) -> io::Result<Vec<Found>> {
        let (objects, at) = (self.objects.clone(), self.at(dir)?);
        let listing = self.run(async move { objects.list_with_delimiter(Some(&at)).await })?;
        let dirs = listing.common_prefixes.iter();
        let dirs = dirs.map(|dir| found(dir, FoundKind::Dir, 0));
        let files = listing.objects.iter();
        let files = files.map(|meta| found(&meta.location, FoundKind::File, meta.size));
        let all: Vec<Found> = dirs.chain(files).collect();
        match all.is_empty() && !dir.is_empty() {
            true => Err(io::Error::from(io::ErrorKind::NotFound)),
            false => Ok(all),
        }
    }

    fn look(&self, path: &str) -> io::Result<Found> {
        let at = self.at(path)?;
        if !path.is_empty()
            && let Some(meta) = existing(self.head(&at))?
        {
            return Ok(found(&at, FoundKind::File, meta.size));
        }
        // A directory exists if it has objects.
        self.list(path).map(|_| found(&at, FoundKind::Dir, 0))
    }

    fn modified(&self, path: &str) -> io::Result<Option<SystemTime>> {
        let meta = self.head(&self.at(path)?)?;
        Ok(Some(meta.last_modified.into()))
    }

    fn open(&self, path: &str) -> io::Result<Box<dyn ReadFile>> {
        let at = self.at(path)?;
        let meta = self.head(&at)?;
        Ok(Box::new(BucketRead::new(self.clone(), at, meta)))
    }

    fn create(&self, path: &str) -> io::Result<Box<dyn WriteFile>> {
        Ok(Box::new(BucketWrite::new(self.clone(), self.at(path)?)))
    }

    /// One request.
    fn read_small(&self, path: &str, limit_bytes: u64) -> io::Result<Vec<u8>> {
        let (objects, at) = (self.objects.clone(), self.at(path)?);
        let bytes = self.run(async move {
            let found = objects.get_opts(&at, GetOptions::default()).await?;
            match found.meta.size {
                size if size <= limit_bytes => found.bytes().await.map(Some),
                _ => Ok(None),
            }
        })?;
        match bytes {
            Some(bytes) => Ok(bytes.into()),
            None => Err(io::Error::from(io::ErrorKind::FileTooLarge)),
        }
    }

    fn create_root(&self) -> io::Result<()> {
        Ok(())
    }

    fn create_dir(&self, _path: &str) -> io::Result<()> {
        Ok(())
    }

    fn rename(&self, _from: &str, _to: &str) -> io::Result<()> {
        Err(io::Error::from(io::ErrorKind::Unsupported))
    }

    fn exchange(&self, _one: &str, _other: &str) -> io::Result<()> {
        Err(io::Error::from(io::ErrorKind::Unsupported))
    }

    fn remove_file(&self, path: &str) -> io::Result<()> {
        let (objects, at) = (self.objects.clone(), self.at(path)?);
        self.run(async move { delete(&objects, &at).await })
    }

    fn remove_dir(&self, _path: &str) -> io::Result<()> {
        Ok(())
    }

    fn sync_dir(&self, _path: &str) -> io::Result<()> {
        Ok(())
    }

    fn create_locked(&self, path: &str, bytes: &[u8]) -> io::Result<Lock> {
        let at = self.at(path)?;
        let payload = PutPayload::from(bytes.to_vec());
        self.put_if(&at, payload, PutMode::Create)?;
        // A service that ignores conditions accepts the same write again.
        let other = PutPayload::from_static(b"this write must fail");
        match self.put_if(&at, other, PutMode::Create) {
            Err(PutError::Taken(_)) => Ok(Lock::of(())),
            Err(error) => Err(error.into()),
            Ok(()) => {
                self.remove_file(path)?;
                Err(io::Error::new(
                    io::ErrorKind::Unsupported,
                    "the service ignores the condition of a write (If-None-Match)",
                ))
            }
        }
    }

    fn has_locks(&self) -> bool {
        false
    }

    fn try_lock(&self, _path: &str, _shared: bool) -> io::Result<Option<Lock>> {
        Err(io::Error::from(io::ErrorKind::Unsupported))
    }

    fn renames(&self) -> bool {
        false
    }

    fn put(&self, path: &str, bytes: &[u8]) -> io::Result<()> {
        let (objects, at) = (self.objects.clone(), self.at(path)?);
        let payload = PutPayload::from(bytes.to_vec());
        self.run(async move {
            let put = objects.put_opts(&at, payload, PutOptions::default());
            put.await.map(drop)
        })
    }

    fn publish(
        &self,
        attempt: &str,
        step: &str,
        manifest: &[u8],
        replace: bool,
    ) -> std::result::Result<Option<String>, PublishError> {
        let at = |path: &str| {
            let path = path.to_owned();
            move |source| PublishError::Unpublished { path, source }
        };
        let copy = join(attempt, MANIFEST_FILE);
        self.put(&copy, manifest).map_err(at(&copy))?;
        let target = self.at(&join(step, MANIFEST_FILE)).map_err(at(step))?;
        let (mode, replaced) = match replace {
            true => self.now_at(step, &target).map_err(at(step))?,
            false => (PutMode::Create, None),
        };
        let payload = PutPayload::from(manifest.to_vec());
        match self.put_if(&target, payload, mode) {
            // An attempt is published at most once, and not removed while it is being published.
            Ok(()) => Ok(replaced.filter(|files| files != attempt)),
            Err(PutError::Unknown(source)) => Err(PublishError::Unknown {
                source: to_io(source),
            }),
            Err(error) => Err(at(step)(io::Error::from(error))),
        }
    }

    fn retire(&self, step: &str, _trash: &str) -> io::Result<()> {
        // It existed before: if it is missing now, a repeated request found it already removed by the first.
        existing(self.remove_file(&join(step, MANIFEST_FILE))).map(drop)
    }

    /// Returns the attempt's directory, which contains the copy of the manifest, or the step's for an
    /// uploaded directory. One request.
    fn files_of(&self, step: &str, attempt: &str) -> String {
        let copy = self.at(&join(attempt, MANIFEST_FILE));
        match existing(copy.and_then(|copy| self.head(&copy))) {
            Ok(None) => step.to_owned(),
            _ => attempt.to_owned(),
        }
    }
}

/// Returns the metadata of an object.
pub(super) async fn head(objects: &dyn ObjectStore, at: &Path) -> Result<ObjectMeta> {
    let options = GetOptions::new().with_head(true);
    Ok(objects.get_opts(at, options).await?.meta)
}

/// Removes an object. Boxed, so that the compiler does not have to prove that the future is `Send` from its
/// contents.
fn delete<'a>(
    objects: &'a Arc<dyn ObjectStore>,
    at: &'a Path,
) -> Pin<Box<dyn Future<Output = Result<()>> + Send + 'a>> {
    Box::pin(objects.delete(at))
}

fn found(at: &Path, kind: FoundKind, bytes: u64) -> Found {
    Found {
        name: at.filename().unwrap_or_default().to_owned(),
        kind,
        bytes,
    }
}

/// Joins a path to a root, for messages.
fn join_place(root: &str, path: &str) -> String {
    match path {
        "" => root.to_owned(),
        _ => join(root, path),
    }
}
