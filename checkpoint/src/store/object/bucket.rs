//! A bucket, its address, and requests to it.

use std::{env, io, sync::Arc};

use object_store::path::Path;
use object_store::{
    Error, GetOptions, ObjectMeta, ObjectStore, ObjectStoreScheme, PutMode, PutPayload,
    parse_url_opts,
};
use url::{Position, Url};

use super::BucketError;
use super::error::to_io;
use super::requests::{PutError, Tasks, put_if};
use crate::store::join;

/// Default part size in bytes: as recommended by the services, and above S3's minimum of 5 MiB.
const PART_BYTES: usize = 8 << 20;

/// The default timeout of a request: sufficient for a part of 8 MiB on a slow connection.
const TIMEOUT: &str = "10 minutes";
/// Prefixes of environment variables that are options of a service.
const SERVICES: [&str; 3] = ["AWS_", "AZURE_", "GOOGLE_"];
/// Options with other names.
const OTHERS: [&str; 3] = ["IDENTITY_ENDPOINT", "MSI_ENDPOINT", "SERVICE_ACCOUNT"];

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
/// attempt.handle().write_rank(0, &[weight], &BTreeMap::new(), &())?;
/// attempt.publish(Duration::from_secs(60))?;
///
/// let checkpoint = run.latest()?.expect("one was published").checkpoint;
/// assert_eq!(checkpoint.dir().to_str(), Some("InMemory/runs/7/step-00000100"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Publication
///
/// A bucket has no renames. The files of an attempt stay where they were written, such as
/// `.attempt-100-ID/model-rank-00000.safetensors`. The checkpoint appears atomically when `step-00000100/manifest.json` is
/// written, under the condition that it does not exist, or, to replace a step, that it is still the version that was read. If
/// two coordinators compete, one succeeds. The directory of an attempt has a fresh id. One call writes for a rank: it first
/// claims the rank by a conditional write. The directory contains the Hugging Face index and a copy of the manifest, so a
/// downloaded copy is a regular checkpoint directory. An uploaded checkpoint directory, with its files next to the manifest,
/// can be read as well.
///
/// If the response to the write of the manifest is lost, the manifest is read back. If that also fails, or if the manifest does
/// not exist yet, the save fails with an error that reports the unknown outcome. The files stay, because the manifest may still
/// appear.
///
/// # Differences from a directory
///
/// - There are no locks, so a dead attempt can't be distinguished from a live one.
///   [`Run::clean`](crate::Run::clean) keeps both, and the caller must assert that no process is saving:
///   [`Run::clean_when_idle`](crate::Run::clean_when_idle).
/// - A load fails if its checkpoint is replaced or removed concurrently: an object that was removed can't be read. If the
///   service has entity tags, a file is read only in the version that was opened.
/// - Replacing a step whose files were uploaded next to its manifest removes only the manifest.
/// - The service must be consistent, as S3, Google Cloud Storage and Azure are: written objects are listed
///   and readable immediately. Saving requires conditional writes; without them every attempt fails at its
///   start, which tests one. Web servers do not have them, so checkpoints there are read-only.
///
/// # Cost
///
/// - Memory of a file that is written: 5 parts of 8 MiB, 4 of them in flight. Each rank writes several files concurrently.
/// - Memory of a read: an additional copy of the bytes that are read; in a load 8 MiB or a block per thread.
/// - Threads: a store and its clones have up to 4 threads, which run the requests. The caller blocks, on any thread, including
///   the threads of an asynchronous runtime.
/// - Requests: a file of one part needs one write request. Opening a checkpoint needs three requests, whatever its contents, if
///   one listing has all its files. A coordinator that waits for ranks lists the attempt up to 20 times a second.
///
/// Services accept up to 10,000 parts per file, so a file or tensor of more than 78 GiB requires larger parts: see
/// [`part_bytes`](Self::part_bytes).
///
/// Uploads that a kill has interrupted are not listed, and incur storage cost: configure the bucket to remove incomplete
/// uploads after a few days.
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
    pub fn new(bucket: Arc<dyn ObjectStore>, prefix: impl Into<Path>) -> Result<Self, BucketError> {
        let prefix = prefix.into();
        let place = join(&bucket.to_string(), prefix.as_ref());
        Self::of(bucket, prefix, place)
    }

    /// Opens the location of a URL: `s3://bucket/run`, `gs://bucket/run`, `az://container/run`,
    /// `https://host/run`, with the feature `aws`, `gcp`, `azure` or `http` respectively, or `memory:///run`,
    /// which is new and empty. Sends no request.
    ///
    /// Credentials and other options are read from the environment variables that the tools of the service
    /// use: `AWS_ACCESS_KEY_ID`, `AWS_REGION`, `AWS_ENDPOINT`, `GOOGLE_SERVICE_ACCOUNT`,
    /// `AZURE_STORAGE_ACCOUNT_NAME` and so on. The timeout of a request is 10 minutes, unless `AWS_TIMEOUT`,
    /// `GOOGLE_TIMEOUT` or `AZURE_TIMEOUT` is set. An endpoint without TLS requires `AWS_ALLOW_HTTP=true`.
    ///
    /// # Errors
    ///
    /// Returns an error if the URL has another form, a password or a query, its feature is not enabled, or an
    /// option is missing or invalid.
    pub fn from_url(url: &str) -> Result<Self, BucketError> {
        let parsed = Url::parse(url).map_err(|source| BucketError::Url { source })?;
        // Azure's own schemes have the container in the user component.
        let is_web = matches!(parsed.scheme(), "http" | "https");
        let has_user = !parsed.username().is_empty() && is_web;
        if has_user || parsed.password().is_some() || parsed.query().is_some() {
            return Err(BucketError::Secret);
        }
        let place = &parsed[..Position::AfterPath];
        let place = place.trim_end_matches('/').to_owned();
        let scheme = ObjectStoreScheme::parse(&parsed).ok();
        let scheme = scheme.map(|(scheme, _)| scheme);
        if scheme == Some(ObjectStoreScheme::Local) {
            return Err(BucketError::Directory { place });
        }
        // The scheme itself permits unencrypted HTTP.
        let option = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        let plain = (parsed.scheme() == "http").then(|| option("allow_http", "true"));
        // The last value of a name is used.
        let timeout = option("timeout", TIMEOUT);
        let options = std::iter::once(timeout).chain(environment()).chain(plain);
        let opened = parse_url_opts(&parsed, options);
        let (objects, prefix) = opened.map_err(|source| {
            let place = place.clone();
            match (scheme.and_then(feature_of), &source) {
                // The name for errors of the parse function itself, which can only fail for this reason.
                (Some(feature), Error::Generic { store, .. }) if *store == "parse_url" => {
                    BucketError::Feature { place, feature }
                }
                _ => BucketError::Open { place, source },
            }
        })?;
        Self::of(Arc::from(objects), prefix, place)
    }

    fn of(objects: Arc<dyn ObjectStore>, prefix: Path, place: String) -> Result<Self, BucketError> {
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
    pub fn part_bytes(mut self, bytes: usize) -> Self {
        self.part_bytes = bytes.max(1);
        self
    }

    /// Runs a request and waits for it.
    pub(super) fn run<T: Send + 'static>(
        &self,
        requests: impl Future<Output = object_store::Result<T>> + Send + 'static,
    ) -> io::Result<T> {
        self.tasks.run(requests).map_err(to_io)
    }

    /// Writes an object if the condition holds.
    pub(super) fn put_if(
        &self,
        at: &Path,
        payload: PutPayload,
        mode: PutMode,
    ) -> Result<(), PutError> {
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
pub(super) async fn head(objects: &dyn ObjectStore, at: &Path) -> object_store::Result<ObjectMeta> {
    let options = GetOptions::new().with_head(true);
    Ok(objects.get_opts(at, options).await?.meta)
}

/// Returns the feature of this crate that a service requires.
fn feature_of(scheme: ObjectStoreScheme) -> Option<&'static str> {
    match scheme {
        ObjectStoreScheme::AmazonS3 => Some("aws"),
        ObjectStoreScheme::GoogleCloudStorage => Some("gcp"),
        ObjectStoreScheme::MicrosoftAzure => Some("azure"),
        ObjectStoreScheme::Http => Some("http"),
        _ => None,
    }
}

/// Returns the options of services in the environment. Filtered by prefix, because `TOKEN` or `REGION` would
/// be options too.
fn environment() -> impl Iterator<Item = (String, String)> {
    env::vars_os().filter_map(|(name, value)| {
        let (name, value) = (name.into_string().ok()?, value.into_string().ok()?);
        let known = SERVICES.iter().any(|service| name.starts_with(service))
            || OTHERS.iter().any(|other| name == *other);
        known.then_some((name, value))
    })
}
