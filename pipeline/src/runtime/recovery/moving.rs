//! Moves the state of all ranks to the ranks that need it in a new plan.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use burn::tensor::TensorData;
use burn_pack::Scalar;
use bytes::Bytes;
use tinderbox_deferred::{ParameterPath, ParameterTable, Values};
use tinderbox_fake::{DynTensor, FakeError};
use tinderbox_world::{Buffer, World};

use crate::cut::Layout;
use crate::error::Result;
use crate::runtime::arrivals::Arrivals;
use crate::runtime::digest::joined;
use crate::runtime::optimizer::State;
use crate::runtime::snapshots::{Contents, Item, Name};
use crate::runtime::wire::lend_row_major;
use crate::schedule::{RankIndex, StageIndex};
use crate::{ProcessError, RankError, StateFields, StateTensor};

/// The state of a rank of the new plan, with undivided parameters.
#[derive(Default)]
pub(super) struct Moved {
    /// `None` if the rank begins with initial values.
    pub(super) values: Option<Values>,
    /// The states of the optimizer for the parameters that the rank owns.
    pub(super) states: HashMap<ParameterPath, State>,
    /// The bytes that this rank received.
    pub(super) received_bytes: u64,
}

/// Whether a rank of a layout needs a part of a state.
fn needs(layout: &Layout, rank: RankIndex, name: &Name) -> bool {
    let has_copy = |stage| layout.copies(stage).contains(&name.position);
    owns(layout, rank, name.position) || (name.state.is_none() && runs(layout, rank, has_copy))
}

/// Whether a rank of a layout owns a parameter.
pub(super) fn owns(layout: &Layout, rank: RankIndex, position: usize) -> bool {
    let owner = layout.owners.get(position);
    runs(layout, rank, |stage| owner == Some(&stage))
}

/// Whether a rank of a layout runs a stage with a property.
fn runs(layout: &Layout, rank: RankIndex, has_property: impl Fn(StageIndex) -> bool) -> bool {
    let (replica, _) = layout.place_of(rank);
    let is_own = |stage: &StageIndex| layout.rank_in(replica, *stage) == rank;
    replica < layout.replicas && layout.stages().filter(is_own).any(has_property)
}

/// A value that a process has.
pub(super) enum Value {
    Tensor(DynTensor),
    /// The value of a lost rank, in the chunks in which it arrived.
    Chunks(RankIndex, Vec<Bytes>),
}

/// The tensors that a process needs, in rows, by name and first row.
#[derive(Default)]
struct Parts(BTreeMap<Name, BTreeMap<u64, DynTensor>>);

impl Parts {
    fn add(&mut self, item: &Item, value: DynTensor) {
        let rows = self.0.entry(item.name.clone()).or_default();
        rows.insert(item.first_row, value);
    }

    /// Joins the rows of each tensor, and adds the numbers of the optimizer's state.
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

/// Returns the tensor of an item of a rank from its bytes.
fn received(rank: RankIndex, item: &Item, bytes: Buffer) -> Result<DynTensor> {
    let value = item.kind.tensor(bytes);
    Ok(value.ok_or(ProcessError::Frame { rank })?)
}

/// Sends the values of this process to the ranks that need them, and returns the values that its own rank needs. All processes
/// call this.
pub(super) fn move_state(
    world: &World,
    (contents, values): (Contents, Vec<Value>),
    layout: &Layout,
    table: &ParameterTable,
    timeout: Duration,
) -> Result<Moved> {
    let own = world.rank();
    let arrivals = Arc::new(Arrivals::default());
    let channel = world.open(arrivals.clone());
    let all: Vec<Contents> = world.all_gather(contents)?;
    for (at, (item, value)) in all[own.index()].items.iter().zip(&values).enumerate() {
        let at = u32::try_from(at).expect("a header has fewer items");
        let needs_it = |to: &RankIndex| needs(layout, *to, &item.name);
        let mut others = channel.others().filter(needs_it).peekable();
        if others.peek().is_some() {
            // A device is read once, for all ranks that need the value.
            let pieces = match value {
                Value::Tensor(tensor) => lend_row_major(vec![tensor.clone()]),
                Value::Chunks(_, chunks) => Ok(chunks.clone()),
            };
            let pieces = pieces.map_err(unreadable)?;
            others.for_each(|to| channel.send(to, &at.to_le_bytes(), pieces.clone()));
        }
    }
    let mut parts = Parts::default();
    let needed = |item: &Item| needs(layout, own, &item.name);
    for (item, value) in all[own.index()].items.iter().zip(values) {
        if needed(item) {
            let value = match value {
                Value::Tensor(tensor) => tensor,
                Value::Chunks(rank, chunks) => received(rank, item, Buffer::joined(&chunks))?,
            };
            parts.add(item, value);
        }
    }
    let mut received_bytes = 0;
    for from in channel.others() {
        let items = all[from.index()].items.iter().enumerate();
        for (at, item) in items.filter(|(_, item)| needed(item)) {
            let arrived = arrivals.wait_for((from, at as u32), timeout)?;
            let mut pieces = arrived.ok_or(RankError::Timeout {
                rank: from,
                request: "send the state that it keeps",
                timeout,
            })?;
            let bytes = match pieces.len() {
                1 => pieces.remove(0),
                _ => Buffer::joined(&pieces),
            };
            received_bytes += bytes.len() as u64;
            parts.add(item, received(from, item, bytes)?);
        }
    }
    let scalars = all.into_iter().flat_map(|contents| contents.scalars);
    let scalars = scalars.filter(|(position, ..)| owns(layout, own, *position));
    let (values, states) = parts.joined(scalars, table)?;
    Ok(Moved {
        values: Some(values),
        states,
        received_bytes,
    })
}

/// The error of a value that can't be read.
fn unreadable(source: FakeError) -> RankError {
    let (what, source) = ("a value to move", Box::new(source));
    RankError::Unreadable { what, source }
}
