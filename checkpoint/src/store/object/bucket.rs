//! The operations of a store, as requests to a bucket.

use std::{io, path::PathBuf, pin::Pin, sync::Arc};

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

/// Bytes of a part, unless chosen: what the services advise, and above the 5 MiB that S3 demands.
const PART_BYTES: usize = 8 << 20;

/// A bucket, or what is below a prefix in it: S3, Google Cloud Storage, Azure, or memory.
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
/// # How a checkpoint appears
///
/// A bucket has no renames. The files of an attempt stay where they were written,
/// `.attempt-100-ID/model-rank-00000.safetensors`, and the checkpoint appears in the instant in which
/// `step-00000100/manifest.json` is written, under the condition that there is none, or to replace a step, that
/// it is still the version that was read. Of two coordinators one wins. A directory of an attempt has a fresh
/// id, and one call writes for a rank, which it claims by a conditional write first. The directory holds the
/// Hugging Face index and a copy of the manifest: downloaded, it is a checkpoint directory like any other. One
/// that was uploaded, with its files beside the manifest, is read as well.
///
/// When the answer of that one write is lost, the manifest is read back. If that fails, too, or if it is not
/// there yet, the save fails with an error that says so, and the files stay, because the manifest may appear
/// yet.
///
/// # What differs from a directory
///
/// - There are no locks. Nothing tells an attempt that died from one that lives, so
///   [`Run::clean`](crate::Run::clean) keeps both, and the caller says when nobody is saving:
///   [`Run::clean_when_idle`](crate::Run::clean_when_idle). Until then, [`Run::join`](crate::Run::join)
///   takes a dead attempt to save the same step for a living one.
/// - A load from a checkpoint that is replaced or removed meanwhile fails: there are no open files that stay.
///   A file is read only as it was when it was opened, where the service has entity tags.
/// - A step whose files were uploaded beside its manifest loses only the manifest when it is replaced.
/// - The service must be consistent, as S3, Google Cloud Storage and Azure are: what was written is listed and
///   read at once. To save it must have conditional writes; without them every attempt fails at its
///   beginning, which tries one. Web servers have none, so there checkpoints are only read.
///
/// # Cost
///
/// Memory of a file that is written: 5 parts of 8 MiB, 4 of them on their way; each rank writes several files
/// at a time. Services take up to 10,000 parts of a file, so a rank's file, or tensor, of more than 78 GiB
/// needs larger ones: see [`part_bytes`](Self::part_bytes). Memory of a read: as much again as is read, in a load
/// 8 MiB or a block for each thread. A store and its clones have up to 4 threads of their own, which run the
/// requests; whoever calls waits, on any thread, also one of an asynchronous runtime. A file of one part is written by
/// one request, and a checkpoint is opened by three, whatever it holds, where one listing has all its files. A coordinator
/// that waits for ranks lists the attempt up to 20 times a second.
///
/// Uploads that a kill has interrupted are not listed, and cost money: let the bucket remove incomplete ones
/// after some days.
#[derive(Clone, derive_more::Debug)]
pub struct BucketStore {
    // The store of a service may print its credentials.
    #[debug(skip)]
    objects: Arc<dyn ObjectStore>,
    #[debug(skip)]
    tasks: Arc<Tasks>,
    #[debug(skip)]
    prefix: Path,
    /// Where the root is, for messages.
    place: String,
    part_bytes: usize,
}

impl BucketStore {
    /// What is below a prefix, `""` for all of it, in a bucket that was opened with its own options. Its
    /// timeout must suffice for a part: the crate's own is 30 seconds.
    ///
    /// # Errors
    ///
    /// [`BucketError::Threads`] when there are no threads for its requests.
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

    /// Writes large files in parts of so many bytes; 8 MiB unless chosen. S3 takes parts from 5 MiB to 5 GiB,
    /// and at most 10,000 of them.
    #[must_use]
    pub fn part_bytes(self, bytes: usize) -> Self {
        Self {
            part_bytes: bytes.max(1),
            ..self
        }
    }

    pub(super) fn bytes_of_part(&self) -> usize {
        self.part_bytes
    }

    pub(super) fn objects(&self) -> Arc<dyn ObjectStore> {
        self.objects.clone()
    }

    /// Waits for requests.
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
        let put = put_if(self.objects(), at.clone(), payload, mode);
        let done = self.tasks.run(async move { Ok(put.await) });
        done.unwrap_or_else(|panicked| Err(PutError::Unknown(panicked)))
    }

    /// The object of a path.
    fn at(&self, path: &str) -> io::Result<Path> {
        let at = Path::parse(join(self.prefix.as_ref(), path));
        at.map_err(|source| to_io(source.into()))
    }

    fn head(&self, at: &Path) -> io::Result<ObjectMeta> {
        let (objects, at) = (self.objects(), at.clone());
        self.run(async move { head(&*objects, &at).await })
    }

    /// The condition that the manifest of a step is as it is now, and where the files are that it names,
    /// unless they lie beside it.
    fn now_at(&self, step: &str, at: &Path) -> io::Result<(PutMode, Option<String>)> {
        let (objects, at) = (self.objects(), at.clone());
        let (version, bytes) = self.run(async move {
            let found = objects.get_opts(&at, GetOptions::default()).await?;
            let (version, size) = (version_of(&found.meta), found.meta.size);
            Ok(match size {
                0..=MAX_MANIFEST_BYTES => (version, Some(found.bytes().await?)),
                _ => (version, None),
            })
        })?;
        if version.e_tag.is_none() && version.version.is_none() {
            // Nothing to make a condition of.
            return Err(io::Error::from(io::ErrorKind::Unsupported));
        }
        let manifest = bytes.and_then(|bytes| decode_manifest(&bytes).ok());
        // One that was copied from another step names files that are not this step's.
        let manifest = manifest.filter(|manifest| step_dir_name(manifest.step) == step);
        let files = manifest.map(|manifest| {
            let attempt = attempt_dir_name(manifest.step, manifest.attempt);
            self.files_of(step, &attempt)
        });
        if files.as_deref() == Some(step) {
            tracing::warn!(
                step = %self.place(step).display(),
                "the files of the replaced checkpoint lie beside its manifest, and are left there"
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
        let (objects, at) = (self.objects(), self.at(dir)?);
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
        // A directory is what something is in.
        self.list(path).map(|_| found(&at, FoundKind::Dir, 0))
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
        let (objects, at) = (self.objects(), self.at(path)?);
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
        let (objects, at) = (self.objects(), self.at(path)?);
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
        // A service that knows no conditions may take the same write once more.
        let other = PutPayload::from_static(b"no condition holds for this");
        match self.put_if(&at, other, PutMode::Create) {
            Err(PutError::Taken(_)) => Ok(Lock::of(())),
            Err(error) => Err(error.into()),
            Ok(()) => {
                self.remove_file(path)?;
                Err(io::Error::new(
                    io::ErrorKind::Unsupported,
                    "the service does not look at the condition of a write (If-None-Match)",
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
        let (objects, at) = (self.objects(), self.at(path)?);
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
            // An attempt is published once, and never removed for its own sake.
            Ok(()) => Ok(replaced.filter(|files| files != attempt)),
            Err(PutError::Unknown(source)) => Err(PublishError::Unknown {
                source: to_io(source),
            }),
            Err(error) => Err(at(step)(io::Error::from(error))),
        }
    }

    fn retire(&self, step: &str, _trash: &str) -> io::Result<()> {
        // It was there before: where it is missing, a repeated request has met the work of the first.
        existing(self.remove_file(&join(step, MANIFEST_FILE))).map(drop)
    }

    /// The attempt's directory, where the copy of the manifest is; the step's for a directory that was
    /// uploaded. One request.
    fn files_of(&self, step: &str, attempt: &str) -> String {
        let copy = self.at(&join(attempt, MANIFEST_FILE));
        match existing(copy.and_then(|copy| self.head(&copy))) {
            Ok(None) => step.to_owned(),
            _ => attempt.to_owned(),
        }
    }
}

/// What is known of an object without its contents.
pub(super) async fn head(objects: &dyn ObjectStore, at: &Path) -> Result<ObjectMeta> {
    let options = GetOptions::new().with_head(true);
    Ok(objects.get_opts(at, options).await?.meta)
}

/// Removes an object. In a box, so that the compiler need not look into it to see that it may run on any
/// thread.
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

/// A path below a root, for messages.
fn join_place(root: &str, path: &str) -> String {
    match path {
        "" => root.to_owned(),
        _ => join(root, path),
    }
}
