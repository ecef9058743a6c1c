//! All ranks of one process save together, now or beside other work.

use std::{
    collections::BTreeMap,
    fmt,
    path::PathBuf,
    sync::Arc,
    thread::{self, JoinHandle},
    time::Duration,
};

use super::{Attempt, SaveTensor};
use crate::{Progress, SaveError, Scalar, error::chain, parallel::parallel};

/// All parts are written before they are waited for, so this is not waited out.
const PARTS_TIMEOUT: Duration = Duration::from_secs(60);
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
    /// # Errors
    ///
    /// When no thread can be started.
    pub fn save_in_background(
        self,
        of_rank: impl Fn(u32) -> Result<RankSave, SaveError> + Send + Sync + 'static,
        progress: Arc<dyn Progress>,
    ) -> Result<Saving, SaveError> {
        let step = self.handle().step();
        let thread = thread::Builder::new().name(format!("save step {step}"));
        let thread = thread.spawn(move || self.save_all(of_rank, &*progress));
        Ok(Saving {
            step,
            thread: Some(thread.map_err(|source| SaveError::Thread { source })?),
        })
    }
}

/// A save that goes on beside other work.
///
/// Dropped, it waits until the save has ended, and tells of a failure in a `tracing` error.
pub struct Saving {
    step: u64,
    thread: Option<JoinHandle<Result<PathBuf, SaveError>>>,
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

    /// Whether it has ended, with or without success.
    pub fn is_done(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Waits until it has ended; gives the directory.
    ///
    /// # Errors
    ///
    /// As [`Attempt::save_all`].
    pub fn wait(mut self) -> Result<PathBuf, SaveError> {
        self.join().expect("only a drop joins before")
    }

    fn join(&mut self) -> Option<Result<PathBuf, SaveError>> {
        let joined = self.thread.take()?.join();
        Some(joined.unwrap_or_else(|panic| {
            let said = panic.downcast_ref::<String>().cloned();
            let said = said.or_else(|| panic.downcast_ref::<&str>().map(|s| (*s).to_owned()));
            Err(SaveError::Panicked {
                step: self.step,
                message: said.unwrap_or_default(),
            })
        }))
    }
}

impl Drop for Saving {
    fn drop(&mut self) {
        if let Some(Err(error)) = self.join() {
            tracing::error!(step = self.step, error = %chain(&error), "a save in the background failed");
        }
    }
}
