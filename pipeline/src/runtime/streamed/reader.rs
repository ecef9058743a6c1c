//! A thread that reads parameters before the stages that need them.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use crossbeam_channel::{Receiver, Sender, unbounded};
use tinderbox_deferred::{Observer, ParameterPath, Request, Source, SourceError, Uncached};
use tinderbox_fake::DynTensor;
use tinderbox_planner::{StreamState, StreamStep};

use super::pass::Pass;
use super::rows::RowSource;
use super::spill::Spill;
use super::store::{StageStore, UpdatedStage};
use super::tier::HostTier;
use super::values::{Activation, Item, State, Value, Values};
use crate::ActionError;
use crate::kept::Holders;
use crate::runtime::rank::RankSetup;
use crate::runtime::restore::SavedOptimizer;
use crate::schedule::StageIndex;

/// Bytes of values that are requested from the source at once, if there is room for them: enough to keep all threads of the
/// source reading.
const GROUP_BYTES: u64 = 64 << 20;

/// What the thread gives to the rank.
enum Loaded {
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

/// What a rank has whose stages are read when they are needed.
pub(in crate::runtime) struct Streaming {
    setup: Arc<RankSetup>,
    source: Arc<dyn Source>,
    is_cached: bool,
    store: Option<Arc<dyn StageStore>>,
    spill: Option<Arc<Spill>>,
    tier: Arc<HostTier>,
    current: Option<(Arc<Pass>, Reader)>,
    /// The values that stay.
    kept: HashMap<Item, Value>,
    /// The index of the visit that is next or runs.
    visit: usize,
}

impl Streaming {
    pub(in crate::runtime) fn new(
        setup: Arc<RankSetup>,
        source: Arc<dyn Source>,
        store: Option<Arc<dyn StageStore>>,
    ) -> Self {
        let streamed = setup.streamed.as_ref();
        let is_cached = streamed.is_none_or(|streamed| streamed.is_cached);
        Self {
            is_cached,
            source: match is_cached {
                true => source,
                false => Arc::new(Uncached(source)),
            },
            tier: Arc::new(HostTier::new(
                streamed.map_or(0, |streamed| streamed.host_bytes),
            )),
            spill: {
                let dir = streamed.and_then(|streamed| streamed.scratch_dir.clone());
                dir.map(|dir| Arc::new(Spill::new(dir)))
            },
            setup,
            store,
            current: None,
            kept: HashMap::new(),
            visit: 0,
        }
    }

    /// Prepares a pass: reading continues where it was if the pass is the last call's, and changes nothing.
    pub(in crate::runtime) fn begin(&mut self, pass: &Arc<Pass>) -> Result<(), ActionError> {
        if let Some((last, _)) = &self.current
            && Arc::ptr_eq(last, pass)
            && !pass.is_training
        {
            return Ok(());
        }
        // What was read ahead is dropped.
        self.current = None;
        if let Some(spill) = &self.spill {
            spill.clear();
        }
        let values = pass.items.iter().enumerate();
        let in_memory = values.filter(|(_, item)| {
            let value = self.kept.get(item);
            value.is_some_and(|value| match (item, value) {
                (Item::Parameter(position), Value::Parameter(value)) => {
                    value.dtype() == pass.dtypes[position]
                }
                _ => true,
            })
        });
        let in_memory: BTreeSet<usize> = in_memory.map(|(item, _)| item).collect();
        let state = match pass.is_training {
            true => StreamState::of_one_pass(pass.plan.clone(), &in_memory),
            false => StreamState::new(pass.plan.clone(), &in_memory),
        };
        let kept = state.kept().iter().map(|item| pass.items[*item]);
        let kept: BTreeSet<Item> = kept.collect();
        self.kept.retain(|item, _| kept.contains(item));
        self.visit = 0;
        let trained = self.setup.streamed.as_ref();
        let trained = trained.filter(|_| pass.is_training);
        let trained = trained.map_or(&[][..], |streamed| &streamed.trained);
        let is_changed = |position: usize| {
            let mut states = trained.iter().filter_map(|stage| stage.get(&position));
            states.any(Option::is_some)
        };
        self.tier.choose(pass, is_changed);
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
        let (pass, setup) = (pass.clone(), self.setup.clone());
        let store = self.store.as_ref();
        let sources = Sources {
            parameters: self.source.clone(),
            states: store.and_then(|store| store.optimizer()),
            spill: self.spill.clone(),
            tier: self.tier.clone(),
            is_cached: self.is_cached,
        };
        let own = shared.clone();
        let thread = std::thread::Builder::new().name("reader".into());
        let thread = thread
            .spawn(move || run(&own, &pass, &setup, &sources, &sender))
            .map_err(|source| ActionError::Spawn { source })?;
        Ok(Reader {
            shared,
            loaded,
            thread: Some(thread),
        })
    }

    /// Whether the pass is one of a training step.
    pub(in crate::runtime) fn is_training(&self) -> bool {
        let (pass, _) = self.current.as_ref().expect("a pass was begun");
        pass.is_training
    }

    /// Whether the parameters of the stage that runs are updated.
    pub(in crate::runtime) fn is_update(&self) -> bool {
        let (pass, _) = self.current.as_ref().expect("a pass was begun");
        pass.visits[self.visit].is_update
    }

    /// Waits for the values of a stage.
    pub(in crate::runtime) fn enter(&mut self, stage: StageIndex) -> Result<Values, ActionError> {
        let (pass, reader) = self.current.as_ref().expect("a pass was begun");
        debug_assert_eq!(
            pass.visits[self.visit].stage, stage,
            "stages run in the order of the pass"
        );
        let mut values = Values {
            rows: (!pass.is_training).then(|| RowSource(self.source.clone())),
            ..Values::default()
        };
        for item in pass.plan.items_of(self.visit) {
            let item = pass.items[*item];
            if let Some(value) = self.kept.remove(&item) {
                values.insert(item, value);
            }
        }
        loop {
            // A thread that panics drops its sender.
            let loaded = reader.loaded.recv().map_err(|_| ActionError::ReaderEnded)?;
            match loaded.map_err(|source| ActionError::Read { source })? {
                Loaded::Values(read) => {
                    for (item, value) in read {
                        values.insert(item, value);
                    }
                }
                Loaded::Ready => return Ok(values),
            }
        }
    }

    /// Writes what a stage has after its update.
    pub(in crate::runtime) fn write(
        &self,
        step: u64,
        updated: UpdatedStage,
    ) -> Result<(), ActionError> {
        let Some(store) = &self.store else {
            return Ok(());
        };
        let written = store.write(step, updated);
        written.map_err(|source| ActionError::Write { source })
    }

    /// The activations of the stage that has run: those that do not stay, and if there are any, those that do, which may be views of
    /// the same memory.
    pub(in crate::runtime) fn activations(&self) -> (Vec<Activation>, Vec<Activation>) {
        let (pass, _) = self.current.as_ref().expect("a pass was begun");
        let items = pass.plan.items_of(self.visit).iter();
        let items = items.zip(pass.plan.stays(self.visit));
        let activations = items.filter_map(|(item, stays)| match pass.items[*item] {
            Item::Activation(activation) => Some((activation, *stays)),
            _ => None,
        });
        let (staying, spilled): (Vec<_>, Vec<_>) = activations.partition(|(_, stays)| *stays);
        let names = |of: Vec<(Activation, bool)>| of.into_iter().map(|(of, _)| of).collect();
        match spilled.is_empty() {
            true => (Vec::new(), Vec::new()),
            false => (names(spilled), names(staying)),
        }
    }

    /// Writes an activation.
    pub(in crate::runtime) fn spill(
        &self,
        activation: Activation,
        value: DynTensor,
        holders: Holders,
    ) -> Result<(), ActionError> {
        let spill = self.spill.as_ref();
        let spill = spill.expect("activations are values of a pass if they can be written");
        spill.put(activation, value, holders)
    }

    /// Takes back the values of the stage that has run, and keeps those that stay.
    pub(in crate::runtime) fn leave(&mut self, mut values: Values) {
        let (pass, reader) = self.current.as_ref().expect("a pass was begun");
        let items = pass.plan.items_of(self.visit).iter();
        for (item, stays) in items.zip(pass.plan.stays(self.visit)) {
            let item = pass.items[*item];
            if let Some(value) = values.remove(item).filter(|_| *stays) {
                self.kept.insert(item, value);
            }
        }
        drop(values);
        self.visit = (self.visit + 1) % pass.visits.len();
        if self.visit == 0
            && let Some(spill) = &self.spill
        {
            spill.clear();
        }
        reader.shared.lock().state.finish();
        reader.shared.changed.notify_all();
    }
}

/// Where a thread reads from.
struct Sources {
    parameters: Arc<dyn Source>,
    states: Option<Arc<dyn SavedOptimizer>>,
    spill: Option<Arc<Spill>>,
    tier: Arc<HostTier>,
    /// Whether the system's cache of files can hold all values.
    is_cached: bool,
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
