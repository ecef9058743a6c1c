//! A thread that reads parameters before the stages that need them.

use std::sync::Arc;
use std::thread::JoinHandle;

use crossbeam_channel::{Receiver, Sender, unbounded};
use tinderbox_deferred::{Observer, ParameterPath, Source, SourceError};
use tinderbox_fake::DynTensor;
use tinderbox_planner::{StreamState, StreamStep};

use super::pass::Pass;
use super::tiers::{HostTier, Spill};
use crate::kept::Holders;
use crate::runtime::optimizer::State;
use crate::runtime::stage::RankSetup;
use crate::runtime::streamed::{Activation, Item, StageValues, request_as};
use crate::{ActionError, ActionResult, SavedOptimizer};

/// Bytes of values that are requested from the source at once, if they fit: enough to keep all threads of the source
/// reading.
const GROUP_BYTES: u64 = 64 << 20;

/// Values that the thread has read.
#[derive(Default)]
pub(super) struct Read {
    pub(super) values: StageValues,
    pub(super) activations: Vec<(Activation, DynTensor, Holders)>,
}

/// A message of the thread to the rank: values of the next visit, or `None` once that visit has all its values.
type Loaded = Option<Read>;

/// The thread that reads for a pass. Dropping it waits for the reads in progress.
pub(super) struct Reader {
    /// Gets a message for each visit that has ended.
    ended: Sender<()>,
    loaded: Receiver<Result<Loaded, SourceError>>,
    /// Dropped last: the thread ends when the channels are closed.
    _thread: Joined,
}

/// A thread that is joined when this is dropped.
struct Joined(Option<JoinHandle<()>>);

impl Drop for Joined {
    fn drop(&mut self) {
        if let Some(thread) = self.0.take() {
            // Its panic would be reported by the next value that it does not send.
            let _ = thread.join();
        }
    }
}

impl Reader {
    /// Starts to read for a pass.
    pub(super) fn start(
        pass: &Arc<Pass>,
        state: StreamState,
        setup: &Arc<RankSetup>,
        sources: Sources,
    ) -> ActionResult<Self> {
        let ((ended, visits), (sender, loaded)) = (unbounded(), unbounded());
        let (pass, setup) = (pass.clone(), setup.clone());
        let thread = std::thread::Builder::new().name("reader".into());
        let thread = thread
            .spawn(move || run(state, &pass, &setup, &sources, (&visits, &sender)))
            .map_err(|source| ActionError::Spawn { source })?;
        Ok(Self {
            ended,
            loaded,
            _thread: Joined(Some(thread)),
        })
    }

    /// Waits for the next values; `None` once the next visit has all its values.
    pub(super) fn next(&self) -> ActionResult<Loaded> {
        // A thread that panics drops its sender.
        let loaded = self.loaded.recv().map_err(|_| ActionError::ReaderEnded)?;
        loaded.map_err(|source| ActionError::Read { source })
    }

    /// Reports that a visit has ended and its memory is free.
    pub(super) fn finish(&self) {
        // A thread that has ended is reported by the next value that it does not send.
        let _ = self.ended.send(());
    }
}

/// The sources from which a thread reads.
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
    fn read(&self, pass: &Pass, setup: &RankSetup, items: &[Item]) -> Result<Read, SourceError> {
        let observer: &dyn Observer = &*setup.progress;
        let mut read = Read::default();
        let (mut requested, mut states) = (Vec::new(), Vec::new());
        for item in items {
            match *item {
                Item::Parameter(at) => {
                    let request = request_as(&setup.table, at, pass.dtypes[&at], &setup.device);
                    requested.push((at, request));
                }
                Item::State(at) => states.push((at, &setup.table.iter().as_slice()[at].path)),
                Item::Activation(activation) => {
                    if let Some(spill) = &self.spill {
                        let (value, holders) = spill.read(activation, &setup.device)?;
                        read.activations.push((activation, value, holders));
                    }
                }
            }
        }
        read.values.parameters = self.tier.read(&requested, &*self.parameters, observer)?;
        let (positions, paths): (Vec<usize>, Vec<&ParameterPath>) = states.into_iter().unzip();
        let states = self.states(&paths, observer)?;
        read.values.states = positions.into_iter().zip(states).collect();
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
            true => states.read(paths, observer),
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

/// The values to read next, and whether the next visit has all its values then; `None` if there is nothing to do yet.
fn next_group(state: &mut StreamState, pass: &Pass) -> Option<(Vec<Item>, bool)> {
    let (mut items, mut bytes) = (Vec::new(), 0);
    while bytes < GROUP_BYTES {
        match state.step() {
            StreamStep::Read { item, .. } => {
                bytes += pass.plan.item_bytes(item);
                items.push(pass.items[item]);
            }
            StreamStep::Ready { .. } => return Some((items, true)),
            StreamStep::Wait if items.is_empty() => return None,
            StreamStep::Wait => break,
        }
    }
    Some((items, false))
}

/// Reads the values that the state requests, until the rank drops its channels or a read fails.
fn run(
    mut state: StreamState,
    pass: &Pass,
    setup: &RankSetup,
    sources: &Sources,
    (ended, sender): (&Receiver<()>, &Sender<Result<Loaded, SourceError>>),
) {
    loop {
        ended.try_iter().for_each(|()| state.finish());
        let Some((items, is_ready)) = next_group(&mut state, pass) else {
            match ended.recv() {
                Ok(()) => state.finish(),
                Err(_) => return,
            }
            continue;
        };
        if !items.is_empty() {
            let read = sources.read(pass, setup, &items).map(Some);
            let failed = read.is_err();
            if sender.send(read).is_err() || failed {
                return;
            }
        }
        if is_ready && sender.send(Ok(None)).is_err() {
            return;
        }
    }
}
