//! Saves of all ranks from one process, in the foreground or in the background.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use tinderbox_deferred::{Observer, with_causes};
use tinderbox_fake::panic_message;

use super::{Attempt, RankSave};
use crate::SaveError;
use crate::parallel::{cores, parallel};

/// The timeout of the publication. It never expires, because all parts exist before the wait starts.
const PARTS_TIMEOUT: Duration = Duration::from_secs(60);
/// The default time without a write after which a wait for a save fails.
const STALL_TIMEOUT: Duration = Duration::from_secs(600);
/// Maximum number of ranks that are written at the same time: more do not increase disk throughput.
const MAX_RANKS_AT_ONCE: usize = 4;

impl Attempt {
    /// Writes all ranks from this process, several at a time, and publishes; returns the directory. Calls
    /// `of_rank` when a rank starts to write.
    ///
    /// # Errors
    ///
    /// Returns the first error of a rank; nothing is published then. Otherwise see
    /// [`publish`](Self::publish).
    pub fn save_all(
        self,
        of_rank: impl Fn(u32) -> Result<RankSave, SaveError> + Sync,
        progress: &dyn Observer,
    ) -> Result<PathBuf, SaveError> {
        let mut handle = self.handle();
        let at_once = cores(MAX_RANKS_AT_ONCE);
        if handle.world_size() > 1 {
            // The ranks share the cores.
            handle = handle.threads(1);
        }
        parallel(at_once, 0..handle.world_size(), |rank| {
            let RankSave { tensors, scalars } = of_rank(rank)?;
            handle.write_rank(rank, &tensors, &scalars, progress)
        })?;
        self.publish(PARTS_TIMEOUT)
    }

    /// Saves like [`save_all`](Self::save_all), on a background thread. Saves the current values: later changes to the tensors
    /// use other memory, so until the save has ended the saved memory may be duplicated.
    ///
    /// On Linux, the threads of the save have nice value 14, including threads that `of_rank`, `progress` or a store start:
    /// other work on the same cores has priority.
    ///
    /// # Errors
    ///
    /// Returns an error if the thread can't be started.
    pub fn save_in_background(
        self,
        of_rank: impl Fn(u32) -> Result<RankSave, SaveError> + Send + Sync + 'static,
        progress: Arc<dyn Observer>,
    ) -> Result<Saving, SaveError> {
        self.save_on_thread(of_rank, progress, lower_priority)
    }

    /// Saves like [`save_all`](Self::save_all), with a timeout.
    ///
    /// # Errors
    ///
    /// See [`save_all`](Self::save_all). Returns [`SaveError::Stalled`] if nothing was written for the length of the timeout;
    /// the thread of the save then continues to run.
    pub fn save_watched(
        self,
        of_rank: impl Fn(u32) -> Result<RankSave, SaveError> + Send + Sync + 'static,
        progress: Arc<dyn Observer>,
        timeout: Duration,
    ) -> Result<PathBuf, SaveError> {
        let saving = self.save_on_thread(of_rank, progress, || {})?;
        saving.timeout(timeout).wait()
    }

    fn save_on_thread(
        self,
        of_rank: impl Fn(u32) -> Result<RankSave, SaveError> + Send + Sync + 'static,
        progress: Arc<dyn Observer>,
        first: fn(),
    ) -> Result<Saving, SaveError> {
        let step = self.handle().step();
        let written = Arc::new(Written {
            progress,
            begun: AtomicU64::new(0),
            done: AtomicU64::new(0),
        });
        let reported = written.clone();
        let (running, ended) = channel();
        let thread = thread::Builder::new().name(format!("save step {step}"));
        let thread = thread.spawn(move || {
            // Disconnects when the thread ends, also by a panic.
            let _running = running;
            first();
            self.save_all(of_rank, &*reported)
        });
        Ok(Saving {
            step,
            timeout: STALL_TIMEOUT,
            written,
            thread: Some(thread.map_err(|source| SaveError::Thread { source })?),
            ended,
        })
    }
}

/// Lowers the priority of this thread and of threads that it starts: they use idle cores, and at most a twentieth of a busy
/// core. On systems other than Linux a priority applies to the whole process, and is not changed.
fn lower_priority() {
    #[cfg(target_os = "linux")]
    {
        /// A weight of 45, compared with 1,024 for other threads.
        const NICE: i32 = 14;
        // Threads of lower priority keep it. An error affects only speed.
        if rustix::process::getpriority_process(None).is_ok_and(|now| now < NICE) {
            let _ = rustix::process::setpriority_process(None, NICE);
        }
    }
}

/// Counts written bytes, for the waiting thread.
struct Written {
    progress: Arc<dyn Observer>,
    begun: AtomicU64,
    done: AtomicU64,
}

impl Observer for Written {
    fn begin(&self, tensors: usize, bytes: u64) {
        self.begun.fetch_add(bytes, Relaxed);
        self.progress.begin(tensors, bytes);
    }

    fn advanced(&self, bytes: u64) {
        self.done.fetch_add(bytes, Relaxed);
        self.progress.advanced(bytes);
    }

    fn end(&self) {
        self.progress.end();
    }
}

/// A save in the background.
///
/// A drop waits like [`wait`](Self::wait), and reports a failure in a `tracing` error.
#[derive(derive_more::Debug)]
#[debug("Saving {{ step: {step}, done: {} }}", self.is_done())]
pub struct Saving {
    step: u64,
    timeout: Duration,
    written: Arc<Written>,
    /// `None` after a wait.
    thread: Option<JoinHandle<Result<PathBuf, SaveError>>>,
    /// Disconnected when the thread ends.
    ended: Receiver<()>,
}

impl Saving {
    /// Returns the step that is saved.
    pub fn step(&self) -> u64 {
        self.step
    }

    /// Sets the time without a write after which a wait fails; the default is ten minutes.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Returns whether it has ended, with or without success.
    pub fn is_done(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Waits until it has ended; returns the directory. Waits as long as it makes progress.
    ///
    /// # Errors
    ///
    /// See [`Attempt::save_all`]. Returns [`SaveError::Stalled`] if it has written nothing between two
    /// checks, one [timeout](Self::timeout) apart; its thread then continues detached.
    pub fn wait(mut self) -> Result<PathBuf, SaveError> {
        self.join().expect("only drop joins earlier")
    }

    fn join(&mut self) -> Option<Result<PathBuf, SaveError>> {
        let thread = self.thread.take()?;
        let written = &self.written;
        let bytes = || (written.begun.load(Relaxed), written.done.load(Relaxed));
        let mut seen = bytes();
        while self.ended.recv_timeout(self.timeout) == Err(RecvTimeoutError::Timeout) {
            let now = bytes();
            if std::mem::replace(&mut seen, now) == now {
                let (begun, written) = now;
                return Some(Err(SaveError::Stalled {
                    step: self.step,
                    waited_ms: self.timeout.as_millis(),
                    written,
                    begun,
                }));
            }
        }
        Some(thread.join().unwrap_or_else(|panic| {
            Err(SaveError::Panicked {
                step: self.step,
                message: panic_message(&*panic),
            })
        }))
    }
}

impl Drop for Saving {
    fn drop(&mut self) {
        if let Some(Err(error)) = self.join() {
            let error = with_causes(&error);
            tracing::error!(step = self.step, error, "a background save failed");
        }
    }
}
