//! Requests run to their end on threads of their own, for callers that are not asynchronous.

use std::{io, num::NonZeroUsize, sync::mpsc, thread};

use object_store::{Error, Result};
use tokio::runtime::{Builder, Runtime};

use super::outcome::STORE;

/// More threads than this do not make a network faster, though they encrypt and sign what goes over it.
const MAX_THREADS: usize = 4;

/// The threads.
#[derive(Debug)]
pub(super) struct Tasks {
    /// Taken out when it is dropped, not before.
    runtime: Option<Runtime>,
}

#[derive(Debug, thiserror::Error)]
#[error("a request panicked")]
struct Panicked;

impl Tasks {
    /// As many threads as cores, at most 4.
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
    /// It runs elsewhere, so a caller may be a thread of another runtime, which may not wait for futures
    /// itself; that thread does nothing else meanwhile.
    pub(super) fn run<T: Send + 'static>(
        &self,
        future: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<T> {
        let runtime = self
            .runtime
            .as_ref()
            .expect("the runtime is taken out by the drop only");
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
