//! Runs requests to completion on dedicated threads, for synchronous callers.

use std::{io, num::NonZeroUsize, sync::mpsc, thread};

use object_store::{Error, Result};
use tokio::runtime::{Builder, Runtime};

use super::outcome::STORE;

/// More threads do not increase network throughput, although they encrypt and sign requests.
const MAX_THREADS: usize = 4;

/// The threads.
#[derive(Debug)]
pub(super) struct Tasks {
    /// Removed only on drop.
    runtime: Option<Runtime>,
}

#[derive(Debug, thiserror::Error)]
#[error("a request panicked")]
struct Panicked;

impl Tasks {
    /// Starts as many threads as cores, at most 4.
    pub(super) fn new() -> io::Result<Self> {
        let cores = thread::available_parallelism().map_or(1, NonZeroUsize::get);
        let runtime = Builder::new_multi_thread()
            .worker_threads(cores.min(MAX_THREADS))
            .thread_name("bucket")
            .enable_all()
            .build()?;
        Ok(Self {
            runtime: Some(runtime),
        })
    }

    /// Waits for a future.
    ///
    /// It runs on another thread, so the caller can be a thread of another runtime, which must not wait for
    /// futures itself; that thread blocks meanwhile.
    pub(super) fn run<T: Send + 'static>(
        &self,
        future: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<T> {
        let runtime = self
            .runtime
            .as_ref()
            .expect("only drop removes the runtime");
        let (sender, receiver) = mpsc::channel();
        runtime.spawn(async move {
            // The caller waits for it below.
            let _ = sender.send(future.await);
        });
        receiver.recv().unwrap_or_else(|_| {
            Err(Error::Generic {
                store: STORE,
                source: Box::new(Panicked),
            })
        })
    }
}

impl Drop for Tasks {
    fn drop(&mut self) {
        // The runtime's own drop waits for its threads, which panics on a thread of another runtime.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}
