//! Requests that run to completion on dedicated threads, for synchronous callers; conditional writes, and their outcome after a
//! lost response.

use std::io;
use std::sync::{Arc, mpsc};

use object_store::path::Path;
use object_store::{Error, GetOptions, ObjectStore, PutMode, PutPayload, Result, UpdateVersion};
use tokio::runtime::{Builder, Runtime};

use super::error::{STORE, is_refusal, to_io};
use crate::parallel::cores;

/// More threads do not increase network throughput, although they encrypt and sign requests.
const MAX_THREADS: usize = 4;

/// The threads, which are removed only on drop.
#[derive(Debug)]
pub(super) struct Tasks(Option<Runtime>);

impl Tasks {
    /// Starts as many threads as cores, at most 4.
    pub(super) fn new() -> io::Result<Self> {
        let runtime = Builder::new_multi_thread()
            .worker_threads(cores(MAX_THREADS))
            .thread_name("bucket")
            .enable_all()
            .build()?;
        Ok(Self(Some(runtime)))
    }

    /// Waits for a future.
    ///
    /// The future runs on another thread. The caller can therefore be a thread of another runtime, which must not wait for
    /// futures itself; the caller blocks until the future is complete.
    pub(super) fn run<T: Send + 'static>(
        &self,
        future: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<T> {
        let runtime = self.0.as_ref().expect("only drop removes the runtime");
        let (sender, receiver) = mpsc::channel();
        runtime.spawn(async move {
            // The caller waits for it below.
            let _ = sender.send(future.await);
        });
        receiver.recv().unwrap_or_else(|_| {
            Err(Error::Generic {
                store: STORE,
                source: "a request panicked".into(),
            })
        })
    }
}

impl Drop for Tasks {
    fn drop(&mut self) {
        // The runtime's own drop waits for its threads, which panics on a thread of another runtime.
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

/// The reason why a conditional write is not known to be complete.
#[derive(Debug)]
pub(super) enum PutError {
    /// The condition does not hold, and nothing was written: the object exists, or is not the version to replace.
    NotWritten(Error),
    /// The store does not support the write, and nothing was written.
    Refused(Error),
    /// The object may have been written, or may still be written.
    Unknown(Error),
}

impl From<PutError> for io::Error {
    fn from(error: PutError) -> Self {
        match error {
            PutError::NotWritten(source) => Self::new(io::ErrorKind::AlreadyExists, source),
            PutError::Refused(source) | PutError::Unknown(source) => to_io(source),
        }
    }
}

/// Writes an object if the condition holds.
///
/// The response to a write can be lost, and a repeated request then finds that the condition no longer holds. After an error
/// the object is therefore read back: its bytes must be unique to this writer.
pub(super) async fn put_if(
    store: Arc<dyn ObjectStore>,
    at: Path,
    payload: PutPayload,
    mode: PutMode,
) -> std::result::Result<(), PutError> {
    let put = store.put_opts(&at, payload.clone(), mode.clone().into());
    let error = match put.await {
        Ok(_) => return Ok(()),
        Err(error) if is_refusal(&error) => return Err(PutError::Refused(error)),
        Err(error) => error,
    };
    match get(&*store, &at, payload.content_length() as u64).await {
        Ok((_, Some(bytes))) if payload.iter().flatten().eq(&bytes) => Ok(()),
        Ok((now, _)) if never_again(&mode, &now) => Err(PutError::NotWritten(error)),
        // The version to replace is gone, and another object would have another version.
        Err(Error::NotFound { .. }) if matches!(mode, PutMode::Update(_)) => {
            Err(PutError::NotWritten(error))
        }
        // A response that the condition does not hold is not conclusive either: it may belong to a repeated
        // request after a first one that succeeded.
        _ => Err(PutError::Unknown(error)),
    }
}

/// Reads an object; returns its version, and its bytes unless they exceed a limit.
pub(super) async fn get(
    store: &dyn ObjectStore,
    at: &Path,
    limit_bytes: u64,
) -> Result<(UpdateVersion, Option<Vec<u8>>)> {
    let found = store.get_opts(at, GetOptions::default()).await?;
    let version = UpdateVersion {
        e_tag: found.meta.e_tag.clone(),
        version: found.meta.version.clone(),
    };
    Ok(match found.meta.size > limit_bytes {
        true => (version, None),
        false => (version, Some(found.bytes().await?.into())),
    })
}

/// Returns whether the condition can never hold again, also for a write that is still in flight.
fn never_again(mode: &PutMode, now: &UpdateVersion) -> bool {
    match mode {
        PutMode::Create => true,
        PutMode::Update(expected) => expected != now,
        PutMode::Overwrite => false,
    }
}
