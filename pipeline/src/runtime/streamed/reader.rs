//! A thread that reads parameters before the stages that need them.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use crossbeam_channel::{Receiver, Sender, unbounded};
use tinderbox_deferred::{Observer, Source, SourceError, read_values};
use tinderbox_fake::DynTensor;
use tinderbox_planner::{StreamState, StreamStep};

use super::pass::Pass;
use crate::ActionError;
use crate::runtime::rank::RankSetup;
use crate::schedule::StageIndex;

/// Bytes of values that are requested from the source at once, if there is room for them: enough to keep all threads of the
/// source reading.
const GROUP_BYTES: u64 = 64 << 20;

/// What the thread gives to the rank.
enum Loaded {
    /// Values of the next visit, by item.
    Values(Vec<(usize, DynTensor)>),
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
struct Reader {
    shared: Arc<Shared>,
    loaded: Receiver<Result<Loaded, SourceError>>,
    thread: Option<JoinHandle<()>>,
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

/// The parameters of a rank whose stages are read when they are needed.
pub(in crate::runtime) struct Streaming {
    setup: Arc<RankSetup>,
    source: Arc<dyn Source>,
    current: Option<(Arc<Pass>, Reader)>,
    /// The values that stay, by position in the table.
    kept: HashMap<usize, DynTensor>,
    /// The index of the visit that is next or runs.
    visit: usize,
}

impl Streaming {
    pub(in crate::runtime) fn new(setup: Arc<RankSetup>, source: Arc<dyn Source>) -> Self {
        Self {
            setup,
            source,
            current: None,
            kept: HashMap::new(),
            visit: 0,
        }
    }

    /// Prepares a pass: reading goes on where it was if the pass is that of the last call.
    pub(in crate::runtime) fn begin(&mut self, pass: &Arc<Pass>) -> Result<(), ActionError> {
        if let Some((last, _)) = &self.current
            && Arc::ptr_eq(last, pass)
        {
            return Ok(());
        }
        // What was read ahead is dropped.
        self.current = None;
        let values = pass.parameters.iter().enumerate();
        let in_memory = values.filter(|(_, (position, dtype))| {
            let value = self.kept.get(position);
            value.is_some_and(|value| value.dtype() == *dtype)
        });
        let in_memory: BTreeSet<usize> = in_memory.map(|(item, _)| item).collect();
        let state = StreamState::new(pass.plan.clone(), &in_memory);
        let kept = state.kept().iter().map(|item| pass.parameters[*item].0);
        let kept: BTreeSet<usize> = kept.collect();
        self.kept.retain(|position, _| kept.contains(position));
        self.visit = 0;
        let reader = self.start(pass, state)?;
        self.current = Some((pass.clone(), reader));
        Ok(())
    }

    fn start(&self, pass: &Arc<Pass>, state: StreamState) -> Result<Reader, ActionError> {
        let shared = Arc::new(Shared {
            reading: Mutex::new(Reading {
                state,
                is_stopped: false,
            }),
            changed: Condvar::new(),
        });
        let (sender, loaded) = unbounded();
        let (pass, setup, source) = (pass.clone(), self.setup.clone(), self.source.clone());
        let own = shared.clone();
        let thread = std::thread::Builder::new().name("reader".into());
        let thread = thread
            .spawn(move || run(&own, &pass, &setup, &*source, &sender))
            .map_err(|source| ActionError::Spawn { source })?;
        Ok(Reader {
            shared,
            loaded,
            thread: Some(thread),
        })
    }

    /// Waits for the parameters of a stage, by position in the table.
    pub(in crate::runtime) fn enter(
        &mut self,
        stage: StageIndex,
    ) -> Result<HashMap<usize, DynTensor>, ActionError> {
        let (pass, reader) = self.current.as_ref().expect("a pass was begun");
        debug_assert_eq!(
            pass.stages[self.visit], stage,
            "stages run in the order of the pass"
        );
        let mut values = HashMap::new();
        for item in pass.plan.items_of(self.visit) {
            let position = pass.parameters[*item].0;
            if let Some(value) = self.kept.remove(&position) {
                values.insert(position, value);
            }
        }
        loop {
            // A thread that panics drops its sender.
            let loaded = reader.loaded.recv().map_err(|_| ActionError::ReaderEnded)?;
            match loaded.map_err(|source| ActionError::Read { source })? {
                Loaded::Values(read) => {
                    let read = read.into_iter();
                    values.extend(read.map(|(item, value)| (pass.parameters[item].0, value)));
                }
                Loaded::Ready => return Ok(values),
            }
        }
    }

    /// Takes back the parameters of the stage that has run, and keeps those that stay.
    pub(in crate::runtime) fn leave(&mut self, mut values: HashMap<usize, DynTensor>) {
        let (pass, reader) = self.current.as_ref().expect("a pass was begun");
        let items = pass.plan.items_of(self.visit).iter();
        for (item, stays) in items.zip(pass.plan.stays(self.visit)) {
            let position = pass.parameters[*item].0;
            if let Some(value) = values.remove(&position).filter(|_| *stays) {
                self.kept.insert(position, value);
            }
        }
        drop(values);
        self.visit = (self.visit + 1) % pass.stages.len();
        reader.shared.lock().state.finish();
        reader.shared.changed.notify_all();
    }
}

/// Reads what the state asks for, until it has to end or a read fails.
fn run(
    shared: &Shared,
    pass: &Pass,
    setup: &RankSetup,
    source: &dyn Source,
    sender: &Sender<Result<Loaded, SourceError>>,
) {
    let observer: &dyn Observer = &*setup.progress;
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
                        bytes += pass.request(setup, item).bytes();
                        items.push(item);
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
            let requests: Vec<_> = items
                .iter()
                .map(|item| pass.request(setup, *item))
                .collect();
            let read = read_values(&requests, source, observer);
            let read = read.map(|values| Loaded::Values(items.into_iter().zip(values).collect()));
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
