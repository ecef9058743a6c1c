//! A thread that reads parameters before the stages that need them.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use crossbeam_channel::{Receiver, Sender, unbounded};
use tinderbox_deferred::{Observer, ParameterPath, Request, Source, SourceError};
use tinderbox_planner::{StreamState, StreamStep};

use super::pass::Pass;
use super::spill::Spill;
use super::tier::HostTier;
use crate::ActionError;
use crate::runtime::optimizer::SavedOptimizer;
use crate::runtime::stage::RankSetup;
use crate::runtime::streamed::{Item, State, Value};

/// Bytes of values that are requested from the source at once, if there is room for them: enough to keep all threads of the
/// source reading.
const GROUP_BYTES: u64 = 64 << 20;

/// What the thread gives to the rank.
pub(super) enum Loaded {
    /// Values of the next visit, by item.
    Values(Vec<(Item, Value)>),
    /// The next visit has all its values.
    Ready,
}

/// What the rank and the thread share.
struct Shared {
    reading: Mutex<Reading>,
    changed: Condvar,
}

struct Reading {
    state: StreamState,
    /// Whether the thread has to end.
    is_stopped: bool,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Reading> {
        // No change panics halfway.
        self.reading.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The thread that reads for one pass after the other.
pub(super) struct Reader {
    shared: Arc<Shared>,
    loaded: Receiver<Result<Loaded, SourceError>>,
    thread: Option<JoinHandle<()>>,
}

impl Reader {
    /// Starts to read for a pass.
    pub(super) fn start(
        pass: &Arc<Pass>,
        state: StreamState,
        setup: &Arc<RankSetup>,
        sources: Sources,
    ) -> Result<Self, ActionError> {
        let shared = Arc::new(Shared {
            reading: Mutex::new(Reading {
                state,
                is_stopped: false,
            }),
            changed: Condvar::new(),
        });
        let (sender, loaded) = unbounded();
        let (own, pass, setup) = (shared.clone(), pass.clone(), setup.clone());
        let thread = std::thread::Builder::new().name("reader".into());
        let thread = thread
            .spawn(move || run(&own, &pass, &setup, &sources, &sender))
            .map_err(|source| ActionError::Spawn { source })?;
        Ok(Self {
            shared,
            loaded,
            thread: Some(thread),
        })
    }

    /// Waits for what was read next.
    pub(super) fn next(&self) -> Result<Loaded, ActionError> {
        // A thread that panics drops its sender.
        let loaded = self.loaded.recv().map_err(|_| ActionError::ReaderEnded)?;
        loaded.map_err(|source| ActionError::Read { source })
    }

    /// A visit has ended: its memory is free.
    pub(super) fn finish(&self) {
        self.shared.lock().state.finish();
        self.shared.changed.notify_all();
    }
}

impl Drop for Reader {
    /// Waits for what is being read.
    fn drop(&mut self) {
        self.shared.lock().is_stopped = true;
        self.shared.changed.notify_all();
        if let Some(thread) = self.thread.take() {
            // Its panic would be reported by the next value that it does not send.
            let _ = thread.join();
        }
    }
}

/// Where a thread reads from.
pub(super) struct Sources {
    pub(super) parameters: Arc<dyn Source>,
    pub(super) states: Option<Arc<dyn SavedOptimizer>>,
    pub(super) spill: Option<Arc<Spill>>,
    pub(super) tier: Arc<HostTier>,
    /// Whether the system's cache of files can hold all values.
    pub(super) is_cached: bool,
}

impl Sources {
    /// Reads some values.
    fn read(
        &self,
        pass: &Pass,
        setup: &RankSetup,
        items: &[Item],
    ) -> Result<Vec<(Item, Value)>, SourceError> {
        let observer: &dyn Observer = &*setup.progress;
        let parameters = items.iter().filter_map(|item| match item {
            Item::Parameter(position) => Some(*position),
            _ => None,
        });
        let parameters: Vec<usize> = parameters.collect();
        let requested = parameters.iter().map(|at| (*at, pass.request(setup, *at)));
        let requested: Vec<(usize, Request)> = requested.collect();
        let read = self.tier.read(&requested, &*self.parameters, observer)?;
        let read = parameters
            .into_iter()
            .map(Item::Parameter)
            .zip(read.into_iter().map(Value::Parameter));
        let mut read: Vec<(Item, Value)> = read.collect();
        let states = items.iter().filter_map(|item| match item {
            Item::State(position) => Some(*position),
            _ => None,
        });
        let states: Vec<usize> = states.collect();
        let paths = states
            .iter()
            .map(|at| &setup.table.iter().as_slice()[*at].path);
        let values = self.states(&paths.collect::<Vec<_>>(), observer)?;
        let states = states.into_iter().map(Item::State);
        read.extend(states.zip(values.into_iter().map(Value::State)));
        for item in items {
            if let (Item::Activation(activation), Some(spill)) = (item, &self.spill) {
                let (value, holders) = spill.read(*activation, &setup.device)?;
                read.push((*item, Value::Activation(value, holders)));
            }
        }
        Ok(read)
    }

    /// Reads the optimizer's states of some parameters.
    fn states(
        &self,
        paths: &[&ParameterPath],
        observer: &dyn Observer,
    ) -> Result<Vec<State>, SourceError> {
        let Some(states) = &self.states else {
            return Ok(paths.iter().map(|_| State::None).collect());
        };
        let read = match self.is_cached {
            true => paths
                .iter()
                .map(|path| states.read(path, observer))
                .collect(),
            false => states.read_uncached(paths, observer),
        };
        let read = read.map_err(|source| SourceError::Failed {
            described: "the optimizer's state".to_owned(),
            source,
        })?;
        let states = paths.iter().zip(read).map(|(path, data)| {
            let fields = states.fields(path);
            match fields.is_empty() {
                true => State::None,
                false => State::Read(fields, data),
            }
        });
        Ok(states.collect())
    }
}

/// Reads what the state asks for, until it has to end or a read fails.
fn run(
    shared: &Shared,
    pass: &Pass,
    setup: &RankSetup,
    sources: &Sources,
    sender: &Sender<Result<Loaded, SourceError>>,
) {
    loop {
        let mut items = Vec::new();
        let mut bytes = 0;
        let mut is_ready = false;
        {
            let mut reading = shared.lock();
            while bytes < GROUP_BYTES && !is_ready {
                if reading.is_stopped {
                    return;
                }
                match reading.state.step() {
                    StreamStep::Read { item, .. } => {
                        bytes += pass.plan.item_bytes(item);
                        items.push(pass.items[item]);
                    }
                    StreamStep::Ready { .. } => is_ready = true,
                    StreamStep::Wait if !items.is_empty() => break,
                    StreamStep::Wait => {
                        let waited = shared.changed.wait(reading);
                        reading = waited.unwrap_or_else(PoisonError::into_inner);
                    }
                }
            }
        }
        if !items.is_empty() {
            let read = sources.read(pass, setup, &items).map(Loaded::Values);
            let failed = read.is_err();
            if sender.send(read).is_err() || failed {
                return;
            }
        }
        if is_ready && sender.send(Ok(Loaded::Ready)).is_err() {
            return;
        }
    }
}
