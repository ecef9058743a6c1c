//! The running states that a forward updates, for example the statistics of batch norm, and the tensors of a batch whose new
//! values it computes for the next call.
//!
//! A `RunningState` of Burn keeps the new values of a forward by thread. At its next use, it becomes their mean. The recording
//! applies the new values at the end of the forward. The mean over one thread is a division by 1, which is left out.

use std::collections::{BTreeMap, BTreeSet};

use burn::tensor::DType;
use tinderbox_fake::{DynTensor, Graph, NodeId, Retyped, ValueId, typed_shape};

use super::joint::Result;
use super::{JointGraph, Role};
use crate::{CarriedFault, Leaf, StateFault, TraceError};

impl JointGraph {
    /// Sets the new values of the running states that the forward has updated.
    ///
    /// # Errors
    ///
    /// The path of a state whose new value has another type, or can't be computed in the type of the state.
    pub(super) fn find_updates(
        &mut self,
        updated: &[(usize, Option<ValueId>)],
        compute: Option<DType>,
    ) -> Result<()> {
        let mut updates = BTreeMap::new();
        for (position, value) in updated {
            // Clones share one state.
            if self.parameter(*position).clone_of.is_some() {
                continue;
            }
            let value = value.ok_or_else(|| self.refuse_state(*position, StateFault::Unknown))?;
            let value = before_division(self.graph(), value);
            let of = |value| self.graph().value(value);
            let (old, new) = (of(self.parameters()[*position]), of(value));
            if old.shape != new.shape || old.dtype != new.dtype {
                let (old, new) = (old.to_string(), new.to_string());
                return Err(self.refuse_state(*position, StateFault::Type { old, new }));
            }
            updates.insert(*position, value);
        }
        if compute.is_some()
            && let Some(retyped) = self.in_own_dtype(&updates)?
        {
            self.retype(retyped);
        }
        self.values.updates = updates;
        Ok(())
    }

    /// Returns the graph with f32 states and their updates in f32, for a forward in 16 bits. A running mean in 16 bits would
    /// lose the addition of a batch that is less than a 256th of the mean.
    fn in_own_dtype(&self, updates: &BTreeMap<usize, ValueId>) -> Result<Option<Retyped>> {
        let graph = self.graph();
        // The operations from a state to its update.
        let mut state_of: BTreeMap<NodeId, usize> = BTreeMap::new();
        for (state, update) in updates {
            let old = self.parameters()[*state];
            let own = self.parameter(*state).dtype;
            if own != DType::F32 || graph.value(old).dtype == own {
                continue;
            }
            let mut reached = BTreeSet::from([old]);
            let slice = graph.backward_slice([*update], |value| value == old);
            state_of.extend(graph.producer(old).map(|node| (node, *state)));
            for id in slice.nodes {
                let node = graph.node(id);
                if node.inputs().iter().any(|input| reached.contains(input)) {
                    reached.extend(node.outputs());
                    state_of.insert(id, *state);
                }
            }
        }
        if state_of.is_empty() {
            return Ok(None);
        }
        let nodes = state_of.keys().copied().collect();
        let retyped = graph.with_dtype(&nodes, DType::F32);
        retyped.map(Some).map_err(|node| {
            let operation = graph.describe(node);
            self.refuse_state(state_of[&node], StateFault::Precision { operation })
        })
    }

    pub(super) fn refuse_state(&self, position: usize, fault: StateFault) -> TraceError {
        let path = self.parameter(position).path.clone();
        TraceError::RunningState { path, fault }
    }

    /// The position of the operation that computes the new value of a running state; `None` if every stage can
    /// compute it.
    pub fn update_position(&self, state: usize) -> Option<usize> {
        self.position_of(*self.updates().get(&state)?)
    }

    /// For each running state that the forward updates, the first and last position of the operations that one stage must run.
    /// They are the operations that read or update the state. They begin with the last earlier operation that reads another
    /// parameter of its module for the first time, if there is one.
    pub(super) fn state_ranges(&self) -> impl Iterator<Item = (usize, usize)> {
        self.updates().keys().filter_map(|state| {
            let readers = self.reads_of(self.parameters()[*state]);
            let touching: Vec<usize> = readers.chain(self.update_position(*state)).collect();
            let (first, last) = (touching.iter().min()?, touching.iter().max()?);
            let module = self.parameter(*state).path.module();
            let siblings = self.first_reads(|path| path.module() == module);
            let before = siblings.filter(|read| read < first).max();
            Some((before.unwrap_or(*first), *last))
        })
    }

    /// The first and last positions of operations that one stage must run: for each running state that the forward updates, and
    /// for each carried tensor whose new value depends on a parameter. They are the operations that read the tensor, and the
    /// operation that computes its new value.
    pub fn inseparable(&self) -> impl Iterator<Item = (usize, usize)> {
        let carried = self.touching_carried();
        let carried = carried.filter_map(|(_, at)| Some((*at.first()?, *at.last()?)));
        self.state_ranges().chain(carried)
    }

    /// For each carried tensor whose new value depends on a parameter, its position in the batch, and the positions of the
    /// operations that read it or compute its new value.
    pub fn touching_carried(&self) -> impl Iterator<Item = (usize, BTreeSet<usize>)> {
        self.carried().iter().filter_map(|(input, value)| {
            let made = self.position_of(*value)?;
            let mut touching = self.readers(self.inputs()[*input].value);
            touching.insert(made);
            Some((*input, touching))
        })
    }

    /// The positions of the operations that read a value, or read a recomputable value that depends on it.
    fn readers(&self, value: ValueId) -> BTreeSet<usize> {
        let (graph, forward) = (self.graph(), self.forward());
        let (mut readers, mut seen) = (BTreeSet::new(), BTreeSet::from([value]));
        let mut pending = vec![value];
        while let Some(value) = pending.pop() {
            for user in graph.users(value) {
                readers.extend(forward.position(*user));
                if self.role(*user) == Role::Recomputable {
                    let outputs = graph.node(*user).outputs().iter().copied();
                    pending.extend(outputs.filter(|output| seen.insert(*output)));
                }
            }
        }
        readers
    }
}

/// Returns the dividend if a value is a quotient by 1, else the value itself.
fn before_division(graph: &Graph, value: ValueId) -> ValueId {
    let node = graph.producer(value).map(|node| graph.node(node));
    let by_one = node.filter(|node| node.operation().divisor() == Some(1.0));
    let divided = by_one.and_then(|node| node.inputs().first());
    divided.copied().unwrap_or(value)
}

/// Returns the new value of each carried tensor, by its position in the batch.
///
/// # Errors
///
/// When the new value of a carried tensor is missing or has another type; when a new value has no carried tensor.
pub(super) fn new_values(
    leaves: &[Leaf],
    carried: &[(usize, String)],
    found: &[(String, DynTensor)],
) -> Result<Vec<(usize, DynTensor)>> {
    let mut values = Vec::with_capacity(carried.len());
    for (index, (position, expected)) in carried.iter().enumerate() {
        let leaf = &leaves[*position];
        let refused = |fault| TraceError::Carried {
            name: leaf.name.clone(),
            fault,
        };
        let found = found.get(index);
        let (name, value) = found.ok_or_else(|| refused(CarriedFault::Missing))?;
        if name != expected {
            let found = name.clone();
            return Err(refused(CarriedFault::Other { found }));
        }
        if value.shape().as_slice() != leaf.shape || value.dtype() != leaf.dtype {
            let old = typed_shape(leaf.dtype, &leaf.shape);
            let new = typed_shape(value.dtype(), &value.shape());
            return Err(refused(CarriedFault::Type { old, new }));
        }
        if !value.is_fake() {
            return Err(refused(CarriedFault::Foreign));
        }
        values.push((*position, value.clone()));
    }
    match found.get(carried.len()) {
        Some((name, _)) => Err(TraceError::NotCarried { name: name.clone() }),
        None => Ok(values),
    }
}
