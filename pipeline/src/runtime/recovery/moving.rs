//! Moves the state of all ranks to where a new plan needs it.

use std::collections::{BTreeMap, BTreeSet};
use std::error::Error;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use burn::optim::DynState;
use burn::tensor::TensorData;
use burn_pack::Scalar;
use bytes::Bytes;
use tinderbox_deferred::{Observer, ParameterPath, ParameterTable, Values};
use tinderbox_fake::DynTensor;
use tinderbox_world::clock::{Condvar, Instant};
use tinderbox_world::{Buffer, Failure, Handler, World, WorldError};

use crate::cut::Layout;
use crate::runtime::optimizer::{SavedOptimizer, StateFields, StateTensor};
use crate::runtime::snapshots::{Contents, Item, Name, tensor};
use crate::runtime::wire::lend_row_major;
use crate::schedule::RankIndex;
use crate::{PipelineError, ProcessError, RankError};

/// What a rank of the new plan holds, whole.
pub(super) struct Moved {
    pub(super) values: Values,
    pub(super) state: MovedState,
    /// The bytes that this rank was sent.
    pub(super) received_bytes: u64,
}

/// The state of the optimizer for the parameters that a rank owns.
pub(super) struct MovedState {
    /// The states that stay on this rank.
    pub(super) own: BTreeMap<ParameterPath, DynState>,
    fields: BTreeMap<ParameterPath, StateFields>,
    /// Each is read once.
    values: Mutex<BTreeMap<ParameterPath, Vec<DynTensor>>>,
}

impl SavedOptimizer for MovedState {
    fn fields(&self, path: &ParameterPath) -> StateFields {
        self.fields.get(path).cloned().unwrap_or_default()
    }

    fn state(&self, path: &ParameterPath) -> Option<DynState> {
        self.own.get(path).cloned()
    }

    fn read(
        &self,
        path: &ParameterPath,
        _: &dyn Observer,
    ) -> Result<Vec<TensorData>, Box<dyn Error + Send + Sync>> {
        let values = self.values.lock();
        let values = values.unwrap_or_else(PoisonError::into_inner).remove(path);
        let read = values.into_iter().flatten();
        read.map(|value| Ok(value.into_data()?)).collect()
    }
}

/// What the ranks of a layout need.
pub(super) struct Needs<'a> {
    layout: &'a Layout,
    /// The number of ranks of all replicas.
    ranks: usize,
    /// The parameters that each rank of a replica holds, and those that it owns, by position.
    held: Vec<BTreeSet<usize>>,
    owned: Vec<BTreeSet<usize>>,
}

impl<'a> Needs<'a> {
    pub(super) fn of(layout: &'a Layout, ranks: usize) -> Self {
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

    /// Whether a rank needs the state of a parameter, and no other does.
    pub(super) fn owns_alone(&self, rank: RankIndex, position: usize) -> bool {
        self.ranks == self.layout.rank_count() && self.owns(rank, position)
    }

    fn owns(&self, rank: RankIndex, position: usize) -> bool {
        self.is_in(&self.owned, rank, position)
    }

    fn is_in(&self, of_ranks: &[BTreeSet<usize>], rank: RankIndex, position: usize) -> bool {
        let place = rank.index() % self.layout.rank_count();
        rank.index() < self.ranks && of_ranks[place].contains(&position)
    }
}

/// A value that a process holds.
pub(super) enum Value {
    Tensor(DynTensor),
    /// The bytes of a tensor, as they have arrived.
    Chunks(Arc<Vec<Buffer>>),
}

/// One of several chunks.
struct Chunk(Arc<Vec<Buffer>>, usize);

impl AsRef<[u8]> for Chunk {
    fn as_ref(&self) -> &[u8] {
        self.0[self.1].as_ref()
    }
}

impl Value {
    /// The bytes of its elements in row-major order. Not copied for a tensor on the CPU that is not a view.
    fn bytes(&self) -> Result<Vec<Bytes>, RankError> {
        match self {
            Self::Tensor(tensor) => {
                lend_row_major(vec![tensor.clone()]).map_err(|source| RankError::Unreadable {
                    what: "a value to move",
                    source: Box::new(source),
                })
            }
            Self::Chunks(chunks) => {
                let one = |at| Bytes::from_owner(Chunk(chunks.clone(), at));
                Ok((0..chunks.len()).map(one).collect())
            }
        }
    }

    /// The tensor of an item; `None` if it has other bytes than that says.
    fn into_tensor(self, item: &Item) -> Option<DynTensor> {
        match self {
            Self::Tensor(tensor) => Some(tensor),
            Self::Chunks(chunks) => tensor(item, Buffer::joined(&chunks)),
        }
    }
}

/// The tensors that a process needs, in rows, by name and first row.
#[derive(Default)]
struct Parts(BTreeMap<Name, BTreeMap<u64, DynTensor>>);

impl Parts {
    /// Adds an item from a rank; `None` for its value if other bytes have arrived than the item says.
    fn add(
        &mut self,
        from: RankIndex,
        item: &Item,
        value: Option<DynTensor>,
    ) -> Result<(), PipelineError> {
        let value = value.ok_or(ProcessError::Frame { rank: from })?;
        let rows = self.0.entry(item.name.clone()).or_default();
        rows.insert(item.first_row, value);
        Ok(())
    }

    /// Joins the rows of each tensor; the numbers of the optimizer's state are beside them.
    fn joined(
        self,
        scalars: impl Iterator<Item = (usize, String, Scalar)>,
        table: &ParameterTable,
    ) -> Result<(Values, MovedState), PipelineError> {
        let path = |position: usize| table.iter().as_slice()[position].path.clone();
        let mut of_parameters = Vec::new();
        let mut fields: BTreeMap<ParameterPath, StateFields> = BTreeMap::new();
        let mut of_state: BTreeMap<ParameterPath, Vec<DynTensor>> = BTreeMap::new();
        for (name, rows) in self.0 {
            let path = path(name.position);
            let value = joined(rows.into_values().collect())?;
            let Some(name) = name.state else {
                of_parameters.push((path, value));
                continue;
            };
            let shape = value.shape();
            let tensor = StateTensor {
                name,
                shape: shape.iter().map(|size| *size as u64).collect(),
                dtype: value.dtype(),
            };
            fields.entry(path.clone()).or_default().tensors.push(tensor);
            of_state.entry(path).or_default().push(value);
        }
        for (position, name, scalar) in scalars {
            let fields = fields.entry(path(position)).or_default();
            fields.scalars.push((name, scalar));
        }
        let state = MovedState {
            own: BTreeMap::new(),
            fields,
            values: Mutex::new(of_state),
        };
        Ok((of_parameters.into_iter().collect(), state))
    }
}

/// Sends what this process holds to the ranks that need it, and returns what its own rank needs. All processes call this.
pub(super) fn move_state(
    world: &World,
    (contents, values): (Contents, Vec<Value>),
    needs: &Needs<'_>,
    table: &ParameterTable,
    timeout: Duration,
) -> Result<Moved, PipelineError> {
    let own = world.rank();
    let arrived = Arc::new(Arrived::default());
    let channel = world.open(arrived.clone());
    let all: Vec<Contents> = world.all_gather(contents)?;
    for (at, (item, value)) in all[own.index()].items.iter().zip(&values).enumerate() {
        let at = u32::try_from(at).expect("a header has fewer items");
        // Read once, for all that need it.
        let mut bytes = None;
        for to in channel.others() {
            if needs.includes(to, &item.name) {
                let bytes = match &bytes {
                    Some(bytes) => bytes,
                    None => bytes.insert(value.bytes()?),
                };
                channel.send(to, &at.to_le_bytes(), bytes.clone());
            }
        }
    }
    let mut parts = Parts::default();
    let needed = |item: &Item| needs.includes(own, &item.name);
    for (item, value) in all[own.index()].items.iter().zip(values) {
        if needed(item) {
            parts.add(own, item, value.into_tensor(item))?;
        }
    }
    let mut received_bytes = 0;
    for from in channel.others() {
        let items = all[from.index()].items.iter().enumerate();
        for (at, item) in items.filter(|(_, item)| needed(item)) {
            let pieces = arrived.wait_for((from, at as u32), timeout)?;
            let bytes = match <[Buffer; 1]>::try_from(pieces) {
                Ok([whole]) => whole,
                Err(chunks) => Buffer::joined(&chunks),
            };
            received_bytes += bytes.len() as u64;
            parts.add(from, item, tensor(item, bytes))?;
        }
    }
    let scalars = all.into_iter().flat_map(|contents| contents.scalars);
    let scalars = scalars.filter(|(position, ..)| needs.owns(own, *position));
    let (values, state) = parts.joined(scalars, table)?;
    Ok(Moved {
        values,
        state,
        received_bytes,
    })
}

/// Joins rows, at least one, some of which may be on a device and others in the memory of the host.
fn joined(rows: Vec<DynTensor>) -> Result<DynTensor, RankError> {
    let device = rows[0].device();
    let rows = rows.into_iter().map(|rows| rows.to_device(&device));
    let rows = rows.collect::<Result<_, _>>();
    rows.map(DynTensor::joined)
        .map_err(|source| RankError::Unreadable {
            what: "a value to move",
            source: Box::new(source),
        })
}

/// The items that have arrived, by their sender and index.
#[derive(Default)]
struct Arrived {
    state: Mutex<ArrivedState>,
    changed: Condvar,
}

#[derive(Default)]
struct ArrivedState {
    items: BTreeMap<(RankIndex, u32), Vec<Buffer>>,
    failure: Option<Failure>,
}

impl Arrived {
    fn state(&self) -> MutexGuard<'_, ArrivedState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait_for(
        &self,
        key: (RankIndex, u32),
        timeout: Duration,
    ) -> Result<Vec<Buffer>, PipelineError> {
        let began = Instant::now();
        let mut state = self.state();
        loop {
            if let Some(pieces) = state.items.remove(&key) {
                return Ok(pieces);
            }
            if let Some(failure) = &state.failure {
                return Err(WorldError::Failed(failure.clone()).into());
            }
            let left = timeout.saturating_sub(began.elapsed());
            if left.is_zero() {
                let (rank, _) = key;
                let late = RankError::Timeout {
                    rank,
                    request: "send the state that it keeps",
                    timeout,
                };
                return Err(late.into());
            }
            state = self.changed.wait_timeout(&self.state, state, left);
        }
    }
}

impl Handler for Arrived {
    fn received(&self, from: RankIndex, header: &[u8], pieces: Vec<Buffer>) {
        if let Ok(at) = header.try_into() {
            let key = (from, u32::from_le_bytes(at));
            self.state().items.insert(key, pieces);
            self.changed.notify_all();
        }
    }

    fn failed(&self, failure: &Failure) {
        self.state().failure = Some(failure.clone());
        self.changed.notify_all();
    }
}
