//! A file that is written to a bucket, in one request or in parts.

use std::{io, mem};

use object_store::{
    Error, MultipartUpload, ObjectStore, PutMode, PutMultipartOptions, PutPayload, Result,
    path::Path,
};
use tokio::task::JoinSet;

use super::{
    bucket::{BucketStore, head},
    outcome::STORE,
};
use crate::store::WriteFile;

/// Number of parts in flight, in addition to the one being filled.
const PARTS_IN_FLIGHT: usize = 4;

/// A new object. Contents that fit one part are written by one request when it is finished, under the
/// condition that the name is free. Larger contents use a multipart upload, which appears atomically when it
/// is finished, and has no condition: the name is checked when the upload starts. If it is dropped before it
/// is finished, it does not exist.
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
    #[debug(skip)]
    state: State,
}

enum State {
    /// All written bytes are in the current part.
    OnePart,
    /// Parts have been sent.
    Parts(Upload),
    /// It is finished or has failed.
    Ended,
}

impl BucketWrite {
    pub(super) fn new(bucket: BucketStore, at: Path) -> Self {
        Self {
            bucket,
            at,
            part: Vec::new(),
            bytes: 0,
            state: State::OnePart,
        }
    }

    /// Returns the upload and leaves `Ended`, the state after an error.
    fn end(&mut self) -> io::Result<Option<Upload>> {
        match mem::replace(&mut self.state, State::Ended) {
            State::OnePart => Ok(None),
            State::Parts(upload) => Ok(Some(upload)),
            State::Ended => Err(io::Error::from(io::ErrorKind::BrokenPipe)),
        }
    }

    /// Sends the current part, which is full.
    fn send_part(&mut self) -> io::Result<()> {
        let begun = self.end()?;
        let next = Vec::with_capacity(self.bucket.part_bytes);
        let part = PutPayload::from(mem::replace(&mut self.part, next));
        let (objects, at) = (self.bucket.objects.clone(), self.at.clone());
        let upload = self.bucket.run(async move {
            let mut upload = match begun {
                Some(upload) => upload,
                None => Upload::begin(&*objects, &at).await?,
            };
            match upload.send(part).await {
                Ok(()) => Ok(upload),
                Err(error) => {
                    upload.abort().await;
                    Err(error)
                }
            }
        })?;
        self.state = State::Parts(upload);
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
            let room = part_bytes - self.part.len();
            let (now, later) = bytes.split_at(room.min(bytes.len()));
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
        if let State::Parts(upload) = mem::replace(&mut self.state, State::Ended) {
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

/// A multipart upload.
struct Upload {
    upload: Box<dyn MultipartUpload>,
    sending: JoinSet<Result<()>>,
}

impl Upload {
    async fn begin(objects: &dyn ObjectStore, at: &Path) -> Result<Self> {
        match head(objects, at).await {
            Err(Error::NotFound { .. }) => {}
            Err(error) => return Err(error),
            Ok(_) => {
                return Err(Error::AlreadyExists {
                    path: at.to_string(),
                    source: "a multipart upload would replace it".into(),
                });
            }
        }
        let options = PutMultipartOptions::default();
        Ok(Self {
            upload: objects.put_multipart_opts(at, options).await?,
            sending: JoinSet::new(),
        })
    }

    /// Starts to send a part, after waiting for a free slot.
    async fn send(&mut self, part: PutPayload) -> Result<()> {
        while self.sending.len() >= PARTS_IN_FLIGHT {
            self.wait_for_part().await?;
        }
        let sent = self.upload.put_part(part);
        self.sending.spawn(sent);
        Ok(())
    }

    async fn wait_for_part(&mut self) -> Result<()> {
        match self.sending.join_next().await {
            None => Ok(()),
            Some(Ok(sent)) => sent,
            Some(Err(error)) => Err(Error::Generic {
                store: STORE,
                source: Box::new(error),
            }),
        }
    }

    /// Sends the last part and completes the object.
    async fn complete(
        mut self,
        last: PutPayload,
        objects: &dyn ObjectStore,
        at: &Path,
        bytes: u64,
    ) -> Result<()> {
        if let Err(error) = self.send_all(last).await {
            self.abort().await;
            return Err(error);
        }
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

    async fn send_all(&mut self, last: PutPayload) -> Result<()> {
        self.send(last).await?;
        while !self.sending.is_empty() {
            self.wait_for_part().await?;
        }
        Ok(())
    }

    /// Aborts the upload.
    async fn abort(mut self) {
        self.sending.shutdown().await;
        if let Err(error) = self.upload.abort().await {
            tracing::warn!(%error, "an upload was not removed: configure the bucket to remove incomplete uploads after a few days");
        }
    }
}
