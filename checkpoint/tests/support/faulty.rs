//! An in-memory bucket that fails on demand, before or after a request.

use std::{
    fmt,
    sync::{Arc, Mutex},
};

use async_trait::async_trait;
use futures_util::stream::{BoxStream, StreamExt};
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta,
    ObjectStore, ObjectStoreExt, PutMode, PutMultipartOptions, PutOptions, PutPayload, PutResult,
    Result, UploadPart, memory::InMemory, path::Path,
};

/// A fault at one of the requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The request is not executed, later ones are.
    Once(u64),
    /// The request is not executed, and none after it.
    From(u64),
    /// The request is executed, and its response is lost.
    Unanswered(u64),
    /// The request is executed, and its response is lost; no later one is executed.
    Cut(u64),
    /// Conditional replacements fail.
    NoUpdates,
    /// Conditions are ignored.
    NoConditions,
    /// The manifest of a step is reported to exist, and is written later, by [`Faulty::land`].
    Late,
}

/// The bucket. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Faulty {
    objects: InMemory,
    state: Arc<Mutex<(u64, Option<Fault>)>>,
    late: Arc<Mutex<Option<(Path, PutPayload)>>>,
}

enum Turn {
    Done,
    NotDone(Error),
    Unanswered(Error),
}

impl Faulty {
    /// Returns the number of requests since the fault was set.
    pub fn requests(&self) -> u64 {
        self.state.lock().unwrap().0
    }

    /// Sets the fault, counted from the next request.
    pub fn set_fault(&self, fault: Option<Fault>) {
        *self.state.lock().unwrap() = (0, fault);
    }

    /// Executes the delayed write.
    pub fn land(&self) {
        let (location, payload) = self.late.lock().unwrap().take().expect("one is late");
        let put = self
            .objects
            .put_opts(&location, payload, PutOptions::default());
        futures_util::FutureExt::now_or_never(put).unwrap().unwrap();
    }

    /// Returns another bucket with the same objects.
    pub fn fork(&self) -> Self {
        Self {
            objects: self.objects.fork(),
            ..Self::default()
        }
    }

    fn turn(&self) -> Turn {
        let mut state = self.state.lock().unwrap();
        state.0 += 1;
        let now = state.0;
        match state.1 {
            Some(Fault::Once(at)) if now == at => Turn::NotDone(broken(now)),
            Some(Fault::From(at)) if now >= at => Turn::NotDone(broken(now)),
            Some(Fault::Cut(at)) if now > at => Turn::NotDone(broken(now)),
            Some(Fault::Unanswered(at) | Fault::Cut(at)) if now == at => {
                Turn::Unanswered(broken(now))
            }
            _ => Turn::Done,
        }
    }

    async fn request<T>(&self, request: impl Future<Output = Result<T>> + Send) -> Result<T> {
        match self.turn() {
            Turn::Done => request.await,
            Turn::NotDone(error) => Err(error),
            Turn::Unanswered(error) => {
                request.await?;
                Err(error)
            }
        }
    }
}

fn broken(request: u64) -> Error {
    Error::Generic {
        store: "Faulty",
        source: format!("the connection broke at request {request}").into(),
    }
}

impl fmt::Display for Faulty {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Faulty")
    }
}

#[async_trait]
impl ObjectStore for Faulty {
    async fn put_opts(
        &self,
        location: &Path,
        payload: PutPayload,
        mut opts: PutOptions,
    ) -> Result<PutResult> {
        let fault = self.state.lock().unwrap().1;
        let no_updates = fault == Some(Fault::NoUpdates);
        if fault == Some(Fault::NoConditions) {
            opts.mode = PutMode::Overwrite;
        }
        if fault == Some(Fault::Late) && location.as_ref().contains("/step-") {
            *self.late.lock().unwrap() = Some((location.clone(), payload));
            return Err(Error::AlreadyExists {
                path: location.to_string(),
                source: "409: another request is in flight".into(),
            });
        }
        if no_updates && matches!(opts.mode, PutMode::Update(_)) {
            return Err(Error::NotImplemented {
                operation: "an update".to_owned(),
                implementer: self.to_string(),
            });
        }
        self.request(self.objects.put_opts(location, payload, opts))
            .await
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        opts: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        let upload = self
            .request(self.objects.put_multipart_opts(location, opts))
            .await?;
        Ok(Box::new(FaultyUpload {
            upload,
            bucket: self.clone(),
        }))
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        self.request(self.objects.get_opts(location, options)).await
    }

    fn delete_stream(
        &self,
        locations: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        let bucket = self.clone();
        locations
            .then(move |location| {
                let bucket = bucket.clone();
                async move {
                    let location = location?;
                    bucket.request(bucket.objects.delete(&location)).await?;
                    Ok::<Path, Error>(location)
                }
            })
            .boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.objects.list(prefix)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.request(self.objects.list_with_delimiter(prefix)).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.request(self.objects.copy_opts(from, to, options))
            .await
    }
}

#[derive(Debug)]
struct FaultyUpload {
    upload: Box<dyn MultipartUpload>,
    bucket: Faulty,
}

#[async_trait]
impl MultipartUpload for FaultyUpload {
    fn put_part(&mut self, data: PutPayload) -> UploadPart {
        let (part, bucket) = (self.upload.put_part(data), self.bucket.clone());
        Box::pin(async move { bucket.request(part).await })
    }

    async fn complete(&mut self) -> Result<PutResult> {
        let bucket = self.bucket.clone();
        bucket.request(self.upload.complete()).await
    }

    async fn abort(&mut self) -> Result<()> {
        let bucket = self.bucket.clone();
        bucket.request(self.upload.abort()).await
    }
}
