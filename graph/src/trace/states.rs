//! The running states that a forward updates, such as the statistics of batch norm.
//!
//! A `RunningState` of Burn keeps the values that a forward gives it apart, by thread, and applies them at its next use: it
//! becomes their mean. The recording applies them at the end of the forward; the mean over one thread is a division by 1,
//! which is left out.

use std::collections::{BTreeMap, BTreeSet};

use burn::tensor::DType;
use tinderbox_fake::{Graph, NodeId, Retyped, ValueId};

use super::JointGraph;
use crate::{StateFault, TraceError};

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
    ) -> Result<(), TraceError> {
        let mut updates = BTreeMap::new();
        for (position, value) in updated {
            // Clones share one state.
            if self.parameter(*position).clone_of.is_some() {
                continue;
            }
            let value = value.ok_or_else(|| self.refuse_state(*position, StateFault::Unknown))?;
            let value = before_division(self.graph(), value);
            let [old, new] =
                [self.parameters()[*position], value].map(|value| self.graph().value(value));
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

    /// The graph with states that are f32, and their updates, in f32, for a forward of 16 bits: a mean over many batches
    /// loses what a batch adds to it, where that is less than a 256th.
    fn in_own_dtype(
        &self,
        updates: &BTreeMap<usize, ValueId>,
    ) -> Result<Option<Retyped>, TraceError> {
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

    /// The positions of the running states that the forward updates and that do not belong to Burn's batch norms.
    pub(super) fn own_updates(&self) -> Vec<usize> {
        let updated = self.updates().keys().copied();
        let own = updated.filter(|state| self.states.own.contains(state));
        own.collect()
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

    /// The first and last position of the operations that one stage has to run for each running state that the
    /// forward updates: those that read it or update it, after the last that reads another parameter of its
    /// module for the first time.
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
}

/// The value of which another is the quotient by 1; the value itself if it is none.
fn before_division(graph: &Graph, value: ValueId) -> ValueId {
    let node = graph.producer(value).map(|node| graph.node(node));
    let by_one = node.filter(|node| node.operation().divisor() == Some(1.0));
    let divided = by_one.and_then(|node| node.inputs().first());
    divided.copied().unwrap_or(value)
}
