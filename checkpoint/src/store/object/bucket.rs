//! A bucket, and requests to it.

use std::{io, sync::Arc};

use object_store::{GetOptions, ObjectMeta, ObjectStore, PutMode, PutPayload, Result, path::Path};

use super::{
    BucketError,
    outcome::to_io,
    put::{PutError, put_if},
    tasks::Tasks,
};
use crate::store::join;

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
    pub(super) place: String,
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
    pub(super) fn at(&self, path: &str) -> io::Result<Path> {
        let at = Path::parse(join(self.prefix.as_ref(), path));
        at.map_err(|source| to_io(source.into()))
    }

    pub(super) fn head(&self, at: &Path) -> io::Result<ObjectMeta> {
        let (objects, at) = (self.objects.clone(), at.clone());
        self.run(async move { head(&*objects, &at).await })
    }
}

/// Returns the metadata of an object.
pub(super) async fn head(objects: &dyn ObjectStore, at: &Path) -> Result<ObjectMeta> {
    let options = GetOptions::new().with_head(true);
    Ok(objects.get_opts(at, options).await?.meta)
}

/// Joins a path to a root, for messages.
pub(super) fn join_place(root: &str, path: &str) -> String {
    match path {
        "" => root.to_owned(),
        _ => join(root, path),
    }
}
