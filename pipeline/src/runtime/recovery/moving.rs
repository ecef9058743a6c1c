//! Moves the state of all ranks to where a new plan needs it.

use std::collections::{BTreeMap, BTreeSet};
use std::error::Error;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use burn::tensor::TensorData;
use tinderbox_deferred::{Observer, ParameterPath, ParameterTable, Values};
use tinderbox_fake::DynTensor;
use tinderbox_world::{Buffer, Failure, Handler, World, WorldError};

use super::snapshot::{Contents, Item, Name, tensor};
use crate::PipelineError;
use crate::cut::Layout;
use crate::runtime::restore::{SavedOptimizer, StateFields, StateTensor};
use crate::runtime::wire::lend_row_major;
use crate::schedule::RankIndex;

/// What a rank of the new plan holds, whole.
pub(super) struct Moved {
    pub(super) values: Values,
    pub(super) state: MovedState,
    /// The bytes that this rank was sent.
    pub(super) received_bytes: u64,
}

/// The state of the optimizer for the parameters that a rank owns.
#[derive(Debug, Default)]
pub(super) struct MovedState {
    of_paths: BTreeMap<ParameterPath, (StateFields, Vec<DynTensor>)>,
}

impl SavedOptimizer for MovedState {
    fn fields(&self, path: &ParameterPath) -> StateFields {
        let found = self.of_paths.get(path);
        found.map(|(fields, _)| fields.clone()).unwrap_or_default()
    }

    fn read(
        &self,
        path: &ParameterPath,
        _: &dyn Observer,
    ) -> Result<Vec<TensorData>, Box<dyn Error + Send + Sync>> {
        let tensors = self.of_paths.get(path).map(|(_, tensors)| tensors);
        let read = tensors.into_iter().flatten();
        read.map(|value| Ok(value.to_data()?)).collect()
    }
}

/// What the ranks of a layout need.
struct Needs<'a> {
    layout: &'a Layout,
    /// The number of ranks of all replicas.
    ranks: usize,
    /// The parameters that each rank of a replica holds, and those that it owns, by position.
    held: Vec<BTreeSet<usize>>,
    owned: Vec<BTreeSet<usize>>,
}

impl<'a> Needs<'a> {
    fn of(layout: &'a Layout, ranks: usize) -> Self {
        let mut held = vec![BTreeSet::new(); layout.rank_count()];
        let mut owned = held.clone();
        for (stage, rank) in layout.stages().zip(&layout.ranks) {
            let rank = rank.index();
            owned[rank].extend(layout.owned(stage).iter().copied());
            held[rank].extend(layout.owned(stage).iter().copied());
            held[rank].extend(layout.copies(stage).iter().copied());
        }
        Self {
            layout,
            ranks,
            held,
            owned,
        }
    }

    /// Whether a rank needs a part of a state.
    fn includes(&self, rank: RankIndex, name: &Name) -> bool {
        match name.state {
            None => self.is_in(&self.held, rank, name.position),
            Some(_) => self.owns(rank, name.position),
        }
    }

    fn owns(&self, rank: RankIndex, position: usize) -> bool {
        self.is_in(&self.owned, rank, position)
    }

    fn is_in(&self, of_ranks: &[BTreeSet<usize>], rank: RankIndex, position: usize) -> bool {
        let place = rank.index() % self.layout.rank_count();
        rank.index() < self.ranks && of_ranks[place].contains(&position)
    }
}

/// Sends what this process holds to the ranks that need it, and returns what its own rank needs. All processes call this.
pub(super) fn move_state(
    world: &World,
    (contents, values): (Contents, Vec<DynTensor>),
    (layout, ranks): (&Layout, usize),
    table: &ParameterTable,
    timeout: Duration,
) -> Result<Moved, PipelineError> {
    let needs = Needs::of(layout, ranks);
    let own = world.rank();
    let arrived = Arc::new(Arrived::default());
    let channel = world.open(arrived.clone());
    let all: Vec<Contents> = world.all_gather(contents)?;
    let bytes = lend_row_major(values.clone()).map_err(|source| PipelineError::Unreadable {
        what: "a value to move",
        source: Box::new(source),
    })?;
    for to in channel.others() {
        for (at, item) in all[own.index()].items.iter().enumerate() {
            if needs.includes(to, &item.name) {
                let at = u32::try_from(at).expect("a header has fewer items");
                channel.send(to, &at.to_le_bytes(), vec![bytes[at as usize].clone()]);
            }
        }
    }
    // By name and first row.
    let mut parts: BTreeMap<Name, BTreeMap<u64, DynTensor>> = BTreeMap::new();
    let mut add = |item: &Item, value: DynTensor| {
        let rows = parts.entry(item.name.clone()).or_default();
        rows.insert(item.first_row, value);
    };
    let needed = |item: &&Item| needs.includes(own, &item.name);
    for (item, value) in all[own.index()].items.iter().zip(values) {
        if needed(&item) {
            add(item, value);
        }
    }
    let mut received_bytes = 0;
    for from in channel.others() {
        let items = all[from.index()].items.iter().enumerate();
        for (at, item) in items.filter(|(_, item)| needed(item)) {
            let piece = arrived.wait_for((from, at as u32), timeout)?;
            received_bytes += piece.len() as u64;
            let value = tensor(item, vec![piece]);
            add(item, value.ok_or(PipelineError::Frame { rank: from })?);
        }
    }
    let mut moved = Moved {
        values: Values::default(),
        state: MovedState::default(),
        received_bytes,
    };
    let mut of_parameters = Vec::new();
    for (name, rows) in parts {
        let path = table.iter().as_slice()[name.position].path.clone();
        let value = DynTensor::joined(rows.into_values().collect());
        match name.state {
            None => of_parameters.push((path, value)),
            Some(name) => {
                let (fields, tensors) = moved.state.of_paths.entry(path).or_default();
                let shape = value.shape();
                fields.tensors.push(StateTensor {
                    name,
                    shape: shape.iter().map(|size| *size as u64).collect(),
                    dtype: value.dtype(),
                });
                tensors.push(value);
            }
        }
    }
    let scalars = all.into_iter().flat_map(|contents| contents.scalars);
    for (position, name, scalar) in scalars.filter(|(position, ..)| needs.owns(own, *position)) {
        let path = table.iter().as_slice()[position].path.clone();
        let (fields, _) = moved.state.of_paths.entry(path).or_default();
        fields.scalars.push((name, scalar));
    }
    moved.values = of_parameters.into_iter().collect();
    Ok(moved)
}

/// The items that have arrived, by their sender and index.
#[derive(Default)]
struct Arrived {
    state: Mutex<ArrivedState>,
    changed: Condvar,
}

#[derive(Default)]
struct ArrivedState {
    items: BTreeMap<(RankIndex, u32), Buffer>,
    failure: Option<Failure>,
}

impl Arrived {
    fn state(&self) -> MutexGuard<'_, ArrivedState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait_for(&self, key: (RankIndex, u32), timeout: Duration) -> Result<Buffer, PipelineError> {
        let deadline = Instant::now() + timeout;
        let mut state = self.state();
        loop {
            if let Some(piece) = state.items.remove(&key) {
                return Ok(piece);
            }
            if let Some(failure) = &state.failure {
                return Err(WorldError::Failed(failure.clone()).into());
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let (rank, _) = key;
                return Err(PipelineError::Timeout {
                    rank,
                    request: "send the state that it keeps",
                    timeout,
                });
            }
            let waited = self.changed.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl Handler for Arrived {
    fn received(&self, from: RankIndex, header: &[u8], pieces: Vec<Buffer>) {
        if let (Ok(at), Some(piece)) = (header.try_into(), pieces.into_iter().next()) {
            let key = (from, u32::from_le_bytes(at));
            self.state().items.insert(key, piece);
            self.changed.notify_all();
        }
    }

    fn failed(&self, failure: &Failure) {
        self.state().failure = Some(failure.clone());
        self.changed.notify_all();
    }
}

/// Joins what a process holds of several ranks.
pub(super) fn together(parts: Vec<(Contents, Vec<DynTensor>)>) -> (Contents, Vec<DynTensor>) {
    let mut all = (Contents::default(), Vec::new());
    for (contents, values) in parts {
        all.0.items.extend(contents.items);
        all.0.scalars.extend(contents.scalars);
        all.1.extend(values);
    }
    all
}
