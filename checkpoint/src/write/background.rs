//! All ranks of one process save together, now or beside other work.

use std::{
    collections::BTreeMap,
    fmt,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
        mpsc::{Receiver, RecvTimeoutError, channel},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use super::{Attempt, SaveTensor};
use crate::{Progress, SaveError, Scalar, error::chain, parallel::parallel};

/// All parts are written before they are waited for, so this is not waited out.
const PARTS_TIMEOUT: Duration = Duration::from_secs(60);
/// How long a save may write nothing, unless another time is chosen.
const STALL_TIMEOUT: Duration = Duration::from_secs(600);
/// More ranks than this at once do not make a disk faster.
const MAX_RANKS_AT_ONCE: usize = 4;

/// What one rank saves.
#[derive(Clone, Debug, Default)]
pub struct RankSave {
    /// Its tensors. Clones of tensors share their data, so a description of what is saved takes no copy:
    /// Burn changes shared data nowhere.
    pub tensors: Vec<SaveTensor>,
    /// Single values of the optimizer.
    pub scalars: BTreeMap<String, Scalar>,
}

impl RankSave {
    /// The same with every tensor in this process' memory; see [`SaveTensor::on_host`].
    ///
    /// # Errors
    ///
    /// When a device fails.
    pub fn on_host(self) -> Result<Self, SaveError> {
        let tensors = self.tensors.into_iter().map(SaveTensor::on_host);
        Ok(Self {
            tensors: tensors.collect::<Result<_, _>>()?,
            scalars: self.scalars,
        })
    }
}

impl Attempt {
    /// Writes all ranks from this process, several at a time, and publishes; gives the directory. What a
    /// rank saves is asked for when its turn comes.
    ///
    /// # Errors
    ///
    /// The first error of a rank; nothing is published then. Otherwise as
    /// [`publish`](Self::publish).
    pub fn save_all(
        self,
        of_rank: impl Fn(u32) -> Result<RankSave, SaveError> + Sync,
        progress: &dyn Progress,
    ) -> Result<PathBuf, SaveError> {
        let handle = self.handle();
        let cores = thread::available_parallelism().map_or(1, usize::from);
        let at_once = cores.min(MAX_RANKS_AT_ONCE);
        let handle = match handle.world_size() {
            1 => handle,
            // The ranks share the cores.
            _ => handle.threads(1),
        };
        let written = parallel(at_once, 0..handle.world_size(), |rank| {
            let RankSave { tensors, scalars } = of_rank(rank)?;
            handle.write_rank_with(rank, &tensors, &scalars, progress)
        });
        written.into_iter().collect::<Result<(), SaveError>>()?;
        self.publish(PARTS_TIMEOUT)
    }

    /// As [`save_all`](Self::save_all), on a thread of its own. What is saved are the values of now: what
    /// is done to the tensors meanwhile works on other memory, so until the save is done there may be
    /// as much of it again as is saved.
    ///
    /// On Linux, its threads have nice value 14, and so have threads that `of_rank`, `progress` or a store start:
    /// other work on the same cores has priority.
    ///
    /// # Errors
    ///
    /// When no thread can be started.
    pub fn save_in_background(
        self,
        of_rank: impl Fn(u32) -> Result<RankSave, SaveError> + Send + Sync + 'static,
        progress: Arc<dyn Progress>,
    ) -> Result<Saving, SaveError> {
        self.save_on_thread(of_rank, progress, lower_priority)
    }

    /// As [`save_all`](Self::save_all), with a timeout.
    ///
    /// # Errors
    ///
    /// As there, and [`SaveError::Stalled`] when nothing was written for the length of the timeout; the save's thread
    /// then runs on.
    pub fn save_watched(
        self,
        of_rank: impl Fn(u32) -> Result<RankSave, SaveError> + Send + Sync + 'static,
        progress: Arc<dyn Progress>,
        timeout: Duration,
    ) -> Result<PathBuf, SaveError> {
        let saving = self.save_on_thread(of_rank, progress, || {})?;
        saving.timeout(timeout).wait()
    }

    fn save_on_thread(
        self,
        of_rank: impl Fn(u32) -> Result<RankSave, SaveError> + Send + Sync + 'static,
        progress: Arc<dyn Progress>,
        first: fn(),
    ) -> Result<Saving, SaveError> {
        let step = self.handle().step();
        let written = Arc::new(Written {
            progress,
            reports: AtomicU64::new(0),
            begun: AtomicU64::new(0),
            done: AtomicU64::new(0),
        });
        let reported = written.clone();
        let (sender, ended) = channel();
        let thread = thread::Builder::new().name(format!("save step {step}"));
        let thread = thread.spawn(move || {
            first();
            // Who waits may have given up.
            let _ = sender.send(self.save_all(of_rank, &*reported));
        });
        Ok(Saving {
            step,
            timeout: STALL_TIMEOUT,
            written,
            running: Some(Running {
                thread: thread.map_err(|source| SaveError::Thread { source })?,
                ended,
            }),
        })
    }
}

/// Lowers the priority of this thread and of threads that it starts: they use idle cores, and at most a twentieth of a
/// busy one. On systems other than Linux a priority applies to the whole process, and is not changed.
fn lower_priority() {
    #[cfg(target_os = "linux")]
    {
        /// Weight 45, where other threads have 1,024.
        const NICE: i32 = 14;
        // Threads of lower priority keep it. An error changes nothing but speed.
        if rustix::process::getpriority_process(None).is_ok_and(|now| now < NICE) {
            let _ = rustix::process::setpriority_process(None, NICE);
        }
    }
}

/// Counts what is written, for who waits.
struct Written {
    progress: Arc<dyn Progress>,
    reports: AtomicU64,
    begun: AtomicU64,
    done: AtomicU64,
}

impl Progress for Written {
    fn begin(&self, bytes: u64) {
        self.begun.fetch_add(bytes, Relaxed);
        self.reports.fetch_add(1, Relaxed);
        self.progress.begin(bytes);
    }

    fn done(&self, bytes: u64) {
        self.done.fetch_add(bytes, Relaxed);
        self.reports.fetch_add(1, Relaxed);
        self.progress.done(bytes);
    }
}

/// The thread of a save, and what it ends with.
struct Running {
    thread: JoinHandle<()>,
    ended: Receiver<Result<PathBuf, SaveError>>,
}

/// A save that goes on beside other work.
///
/// Dropped, it waits as [`wait`](Self::wait) does, and reports a failure in a `tracing` error.
pub struct Saving {
    step: u64,
    timeout: Duration,
    written: Arc<Written>,
    running: Option<Running>,
}

impl fmt::Debug for Saving {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let done = self.is_done();
        write!(f, "Saving {{ step: {}, done: {done} }}", self.step)
    }
}

impl Saving {
    /// The step that is saved.
    pub fn step(&self) -> u64 {
        self.step
    }

    /// How long the save may write nothing while somebody waits for it; ten minutes unless chosen.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Whether it has ended, with or without success.
    pub fn is_done(&self) -> bool {
        let running = self.running.as_ref();
        running.is_none_or(|running| running.thread.is_finished())
    }

    /// Waits until it has ended; gives the directory. It may take any time as long as it writes.
    ///
    /// # Errors
    ///
    /// As [`Attempt::save_all`]. [`SaveError::Stalled`] when it has written nothing from one look to the next, a
    /// [timeout](Self::timeout) apart; its thread is then left to itself.
    pub fn wait(mut self) -> Result<PathBuf, SaveError> {
        self.join().expect("only a drop joins before")
    }

    fn join(&mut self) -> Option<Result<PathBuf, SaveError>> {
        let Running { thread, ended } = self.running.take()?;
        let mut seen = self.written.reports.load(Relaxed);
        loop {
            match ended.recv_timeout(self.timeout) {
                Ok(result) => {
                    // It has sent its last word.
                    let _ = thread.join();
                    return Some(result);
                }
                Err(RecvTimeoutError::Disconnected) => {
                    let panic = thread.join().err();
                    let message = panic.as_ref().and_then(|panic| {
                        let said = panic.downcast_ref::<String>().cloned();
                        said.or_else(|| panic.downcast_ref::<&str>().map(|s| (*s).into()))
                    });
                    return Some(Err(SaveError::Panicked {
                        step: self.step,
                        message: message.unwrap_or_default(),
                    }));
                }
                Err(RecvTimeoutError::Timeout) => {
                    let now = self.written.reports.load(Relaxed);
                    if std::mem::replace(&mut seen, now) == now {
                        return Some(Err(SaveError::Stalled {
                            step: self.step,
                            waited_ms: self.timeout.as_millis(),
                            written: self.written.done.load(Relaxed),
                            begun: self.written.begun.load(Relaxed),
                        }));
                    }
                }
            }
        }
    }
}

impl Drop for Saving {
    fn drop(&mut self) {
        if let Some(Err(error)) = self.join() {
            tracing::error!(step = self.step, error = %chain(&error), "a save in the background failed");
        }
    }
}
