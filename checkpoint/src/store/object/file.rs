//! Files in a bucket: one that is read, and one that is written, in one request or in parts.

use std::{io, mem};

use object_store::path::Path;
use object_store::{
    Error, GetOptions, MultipartUpload, ObjectMeta, ObjectStore, PutMode, PutMultipartOptions,
    PutPayload, Result,
};
use tokio::task::JoinSet;

use super::bucket::{BucketStore, head};
use crate::store::{ReadFile, WriteFile};

/// An object in the version that was opened.
#[derive(derive_more::Debug)]
pub(super) struct BucketRead {
    #[debug(skip)]
    bucket: BucketStore,
    at: Path,
    bytes: u64,
    /// The entity tag, which a replacement would not have; `None` if the service has no tag that it accepts as a condition.
    #[debug(skip)]
    e_tag: Option<String>,
}

impl BucketRead {
    pub(super) fn new(bucket: BucketStore, at: Path, meta: ObjectMeta) -> Self {
        Self {
            bucket,
            at,
            bytes: meta.size,
            // A weak tag never matches.
            e_tag: meta.e_tag.filter(|tag| !tag.starts_with("W/")),
        }
    }
}

impl ReadFile for BucketRead {
    fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Sends one request. Memory: an additional copy of the bytes, until they are copied to the buffer.
    fn read_exact_at(&self, into: &mut [u8], start: u64) -> io::Result<()> {
        let ended = || io::Error::from(io::ErrorKind::UnexpectedEof);
        let end = start.checked_add(into.len() as u64);
        let end = end.filter(|end| *end <= self.bytes).ok_or_else(ended)?;
        if into.is_empty() {
            // The services reject an empty range.
            return Ok(());
        }
        let options = GetOptions::new().with_range(Some(start..end));
        let options = options.with_if_match(self.e_tag.clone());
        let (objects, at) = (self.bucket.objects.clone(), self.at.clone());
        let (bytes, size) = self.bucket.run(async move {
            let found = objects.get_opts(&at, options).await?;
            let size = found.meta.size;
            Ok((found.bytes().await?, size))
        })?;
        if size != self.bytes {
            // It was replaced, and the service ignored the condition.
            return Err(io::Error::from(io::ErrorKind::StaleNetworkFileHandle));
        }
        if bytes.len() != into.len() {
            return Err(ended());
        }
        into.copy_from_slice(&bytes);
        Ok(())
    }
}

/// Number of parts in flight, in addition to the one being filled.
const PARTS_IN_FLIGHT: usize = 4;

/// A new object. Contents that fit one part are written by one request at the end, under the condition that the name is free.
/// Larger contents use a multipart upload, which appears atomically at its end and has no condition: the name is checked when
/// the upload starts. An object that is dropped before it is finished does not exist.
///
/// Memory: up to 5 parts.
#[derive(derive_more::Debug)]
pub(super) struct BucketWrite {
    #[debug(skip)]
    bucket: BucketStore,
    at: Path,
    /// The part being filled.
    #[debug(skip)]
    part: Vec<u8>,
    /// Number of bytes written.
    bytes: u64,
    /// The upload, once a part was sent; `None` after the end or an error.
    #[debug(skip)]
    upload: Option<Option<Upload>>,
}

impl BucketWrite {
    pub(super) fn new(bucket: BucketStore, at: Path) -> Self {
        Self {
            bucket,
            at,
            part: Vec::new(),
            bytes: 0,
            upload: Some(None),
        }
    }

    /// Returns the upload, if a part was sent, and marks the file as ended.
    fn end(&mut self) -> io::Result<Option<Upload>> {
        let ended = io::Error::from(io::ErrorKind::BrokenPipe);
        self.upload.take().ok_or(ended)
    }

    /// Sends the current part, which is full.
    fn send_part(&mut self) -> io::Result<()> {
        let started = self.end()?;
        let next = Vec::with_capacity(self.bucket.part_bytes);
        let part = PutPayload::from(mem::replace(&mut self.part, next));
        let (objects, at) = (self.bucket.objects.clone(), self.at.clone());
        let upload = self.bucket.run(async move {
            let upload = match started {
                Some(upload) => upload,
                None => Upload::begin(&*objects, &at).await?,
            };
            upload.sent(part, PARTS_IN_FLIGHT).await
        })?;
        self.upload = Some(Some(upload));
        Ok(())
    }
}

impl WriteFile for BucketWrite {
    fn write_all(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        let part_bytes = self.bucket.part_bytes;
        while !bytes.is_empty() {
            if self.part.len() >= part_bytes {
                // Only when more bytes follow, so that the last part is never empty.
                self.send_part()?;
            }
            let free = part_bytes - self.part.len();
            let (now, later) = bytes.split_at(free.min(bytes.len()));
            self.part.extend_from_slice(now);
            self.bytes += now.len() as u64;
            bytes = later;
        }
        Ok(())
    }

    fn finish(mut self: Box<Self>) -> io::Result<()> {
        let upload = self.end()?;
        let part = PutPayload::from(mem::take(&mut self.part));
        let Some(upload) = upload else {
            let put = self.bucket.put_if(&self.at, part, PutMode::Create);
            return put.map_err(io::Error::from);
        };
        let (objects, at, bytes) = (self.bucket.objects.clone(), self.at.clone(), self.bytes);
        self.bucket
            .run(async move { upload.complete(part, &*objects, &at, bytes).await })
    }
}

impl Drop for BucketWrite {
    fn drop(&mut self) {
        if let Some(Some(upload)) = self.upload.take() {
            let aborted = self.bucket.run(async move {
                upload.abort().await;
                Ok(())
            });
            if let Err(error) = aborted {
                tracing::warn!(object = %self.at, %error, "an upload may not have been removed");
            }
        }
    }
}

/// A multipart upload. `WriteMultipart` of `object_store` would return the error of the abort instead of the error of the
/// upload, and would abort before the object is looked up.
struct Upload {
    upload: Box<dyn MultipartUpload>,
    sending: JoinSet<Result<()>>,
}

impl Upload {
    async fn begin(objects: &dyn ObjectStore, at: &Path) -> Result<Self> {
        let options = PutMultipartOptions::default();
        match head(objects, at).await {
            Err(Error::NotFound { .. }) => Ok(Self {
                upload: objects.put_multipart_opts(at, options).await?,
                sending: JoinSet::new(),
            }),
            Err(error) => Err(error),
            Ok(_) => Err(Error::AlreadyExists {
                path: at.to_string(),
                source: "a multipart upload would replace it".into(),
            }),
        }
    }

    /// Waits for a free slot and starts to send a part; then waits until at most `most` parts are in flight. Aborts after an
    /// error.
    async fn sent(mut self, part: PutPayload, most: usize) -> Result<Self> {
        let mut sent = self.wait(PARTS_IN_FLIGHT - 1).await;
        if sent.is_ok() {
            self.sending.spawn(self.upload.put_part(part));
            sent = self.wait(most).await;
        }
        match sent {
            Ok(()) => Ok(self),
            Err(error) => {
                self.abort().await;
                Err(error)
            }
        }
    }

    /// Waits until at most `most` parts are in flight.
    async fn wait(&mut self, most: usize) -> Result<()> {
        while self.sending.len() > most
            && let Some(sent) = self.sending.join_next().await
        {
            sent??;
        }
        Ok(())
    }

    /// Sends the last part and completes the object.
    async fn complete(
        mut self,
        last: PutPayload,
        objects: &dyn ObjectStore,
        at: &Path,
        bytes: u64,
    ) -> Result<()> {
        self = self.sent(last, 0).await?;
        let Err(error) = self.upload.complete().await else {
            return Ok(());
        };
        // The response was lost, or a repeated request did not find the upload because the first completed
        // it. No other writer uses the directory of the attempt.
        if head(objects, at).await.is_ok_and(|meta| meta.size == bytes) {
            return Ok(());
        }
        self.abort().await;
        Err(error)
    }

    /// Aborts the upload.
    async fn abort(mut self) {
        self.sending.shutdown().await;
        if let Err(error) = self.upload.abort().await {
            tracing::warn!(
                %error,
                "an upload was not removed: configure the bucket to remove incomplete uploads after a few days"
            );
        }
    }
}
