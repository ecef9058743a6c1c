//! Moves the state of all ranks to where a new plan needs it.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use burn::tensor::TensorData;
use burn_pack::Scalar;
use bytes::Bytes;
use tinderbox_deferred::{ParameterPath, ParameterTable, Values};
use tinderbox_fake::{DynTensor, FakeError};
use tinderbox_link::Awaited;
use tinderbox_world::{Buffer, Failure, Handler, World, WorldError};

use crate::cut::Layout;
use crate::error::Result;
use crate::runtime::digest::joined;
use crate::runtime::optimizer::{StateFields, StateTensor};
use crate::runtime::snapshots::{Contents, Item, Name};
use crate::runtime::streamed::State;
use crate::runtime::wire::lend_row_major;
use crate::schedule::{RankIndex, StageIndex};
use crate::{ProcessError, RankError};

/// What a rank of the new plan holds, whole; nothing if it begins with initial values.
#[derive(Default)]
pub(super) struct Moved {
    pub(super) values: Option<Values>,
    /// The states of the optimizer for the parameters that the rank owns.
    pub(super) states: HashMap<ParameterPath, State>,
    /// The bytes that this rank was sent.
    pub(super) received_bytes: u64,
}

/// What the ranks of a layout need.
pub(super) struct Needs<'a> {
    pub(super) layout: &'a Layout,
}

impl Needs<'_> {
    /// Whether a rank needs a part of a state.
    fn includes(&self, rank: RankIndex, name: &Name) -> bool {
        let has_copy = |stage| self.layout.copies(stage).contains(&name.position);
        self.owns(rank, name.position) || (name.state.is_none() && self.runs(rank, has_copy))
    }

    /// Whether a rank needs the state of a parameter, and no other does.
    pub(super) fn owns_alone(&self, rank: RankIndex, position: usize) -> bool {
        self.layout.replicas == 1 && self.owns(rank, position)
    }

    fn owns(&self, rank: RankIndex, position: usize) -> bool {
        let owner = self.layout.owners.get(position);
        self.runs(rank, |stage| owner == Some(&stage))
    }

    /// Whether a rank runs such a stage.
    fn runs(&self, rank: RankIndex, is_such: impl Fn(StageIndex) -> bool) -> bool {
        let (replica, _) = self.layout.place_of(rank);
        let is_own = |stage: &StageIndex| self.layout.rank_in(replica, *stage) == rank;
        replica < self.layout.replicas && self.layout.stages().filter(is_own).any(is_such)
    }
}

/// A value that a process holds.
pub(super) enum Value {
    Tensor(DynTensor),
    /// The bytes of a tensor, as they have arrived.
    Chunks(Vec<Bytes>),
}

impl Value {
    /// The bytes of its elements in row-major order. Not copied for a tensor on the CPU that is not a view.
    fn bytes(&self) -> Result<Vec<Bytes>, RankError> {
        match self {
            Self::Tensor(tensor) => lend_row_major(vec![tensor.clone()]).map_err(unreadable),
            Self::Chunks(chunks) => Ok(chunks.clone()),
        }
    }

    /// The tensor of an item; `None` if it has other bytes than that says.
    fn into_tensor(self, item: &Item) -> Option<DynTensor> {
        match self {
            Self::Tensor(tensor) => Some(tensor),
            Self::Chunks(chunks) => item.kind.tensor(Buffer::joined(&chunks)),
        }
    }
}

/// The tensors that a process needs, in rows, by name and first row.
#[derive(Default)]
struct Parts(BTreeMap<Name, BTreeMap<u64, DynTensor>>);

impl Parts {
    /// Adds an item from a rank; `None` for its value if other bytes have arrived than the item says.
    fn add(&mut self, from: RankIndex, item: &Item, value: Option<DynTensor>) -> Result<()> {
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
    ) -> Result<(Values, HashMap<ParameterPath, State>)> {
        let path = |position: usize| table.iter().as_slice()[position].path.clone();
        let mut of_parameters = Vec::new();
        let mut states: HashMap<ParameterPath, (StateFields, Vec<TensorData>)> = HashMap::new();
        for (name, rows) in self.0 {
            let path = path(name.position);
            let value = joined(rows.into_values().collect()).map_err(unreadable)?;
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
            let (fields, data) = states.entry(path).or_default();
            fields.tensors.push(tensor);
            data.push(value.into_data().map_err(unreadable)?);
        }
        for (position, name, scalar) in scalars {
            let (fields, _) = states.entry(path(position)).or_default();
            fields.scalars.push((name, scalar));
        }
        let states = states.into_iter();
        let states = states.map(|(path, (fields, data))| (path, State::Read(fields, data)));
        Ok((of_parameters.into_iter().collect(), states.collect()))
    }
}

/// Sends what this process holds to the ranks that need it, and returns what its own rank needs. All processes call this.
pub(super) fn move_state(
    world: &World,
    (contents, values): (Contents, Vec<Value>),
    needs: &Needs<'_>,
    table: &ParameterTable,
    timeout: Duration,
) -> Result<Moved> {
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
            parts.add(from, item, item.kind.tensor(bytes))?;
        }
    }
    let scalars = all.into_iter().flat_map(|contents| contents.scalars);
    let scalars = scalars.filter(|(position, ..)| needs.owns(own, *position));
    let (values, states) = parts.joined(scalars, table)?;
    Ok(Moved {
        values: Some(values),
        states,
        received_bytes,
    })
}

/// The error of a value that can't be read.
fn unreadable(source: FakeError) -> RankError {
    RankError::Unreadable {
        what: "a value to move",
        source: Box::new(source),
    }
}

/// The items that have arrived, by their sender and index, and the failure of the world.
#[derive(Default)]
struct Arrived(Awaited<(Items, Option<Failure>)>);

type Items = BTreeMap<(RankIndex, u32), Vec<Buffer>>;

impl Arrived {
    fn wait_for(&self, key: (RankIndex, u32), timeout: Duration) -> Result<Vec<Buffer>> {
        let found = self.0.wait_for(timeout, |(items, failure)| {
            let failed = || Some(Err(WorldError::Failed(failure.clone()?).into()));
            items.remove(&key).map(Ok).or_else(failed)
        });
        let late = RankError::Timeout {
            rank: key.0,
            request: "send the state that it keeps",
            timeout,
        };
        found.unwrap_or_else(|| Err(late.into()))
    }
}

impl Handler for Arrived {
    fn received(&self, from: RankIndex, header: &[u8], pieces: Vec<Buffer>) {
        if let Ok(at) = header.try_into() {
            let key = (from, u32::from_le_bytes(at));
            self.0.change(|(items, _)| items.insert(key, pieces));
        }
    }

    fn failed(&self, failure: &Failure) {
        self.0.change(|(_, failed)| *failed = Some(failure.clone()));
    }
}
