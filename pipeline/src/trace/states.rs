//! The running states that a forward updates, such as the statistics of batch norm.
//!
//! Burn keeps the value that a forward gives a running state apart from the state until the next use of the
//! state, and shows only whether there is one. The value itself is found in the graph:
//!
//! - The update of a batch norm is a chain: its old value is scaled, the batch's is added, and nothing reads the
//!   sum.
//! - Any other state shows it in a second forward of the same module, which reads the state first. Batch norms do
//!   not train in that forward: they would move their new statistics between devices, which Burn does not record.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use burn::tensor::DType;
use tinderbox_deferred::{Parameter, ParameterTable};
use tinderbox_fake::{Graph, NodeId, RecordError, Retyped, Value, ValueId, dtype_name};

use super::JointGraph;
use super::joint::Twice;
use crate::{StateFault, TraceError};

impl JointGraph {
    /// Finds the new value of every running state that the forward updates.
    ///
    /// # Errors
    ///
    /// The path of a state whose new value a pipeline can't know, or that an evaluation updates.
    pub(super) fn find_updates(
        &mut self,
        twice: Result<&Twice, RecordError>,
        compute: Option<DType>,
    ) -> Result<(), TraceError> {
        let states = States {
            graph: self.graph(),
            table: self.table(),
            values: self.parameters(),
            forward: self.forward_range(),
        };
        let updated = self.updated().iter().copied();
        let first_of_clones = updated.filter(|at| states.parameter(*at).clone_of.is_none());
        let positions: Vec<usize> = first_of_clones.collect();
        let own = positions.iter().find(|at| !states.is_batch_norm(**at));
        let twice = match (twice, own) {
            (Ok(twice), _) => twice,
            (Err(source), None) => return Err(TraceError::Record { source }),
            (Err(source), Some(state)) => {
                return Err(states.refuse(*state, StateFault::Moved { source }));
            }
        };
        let mut found = BTreeMap::new();
        for position in positions {
            found.insert(position, states.new_value(position, twice)?);
        }
        let retyped = match compute {
            Some(_) => Some(states.in_own_dtypes(&found)?),
            None => None,
        };
        if let Some(retyped) = retyped {
            self.retype(retyped);
        }
        self.set_updates(found);
        Ok(())
    }

    /// The position of the operation that computes the new value of a running state; `None` if every stage can
    /// compute it.
    pub(crate) fn update_position(&self, state: usize) -> Option<usize> {
        let update = self.updates().get(&state)?;
        let producer = self.graph().value(*update).producer?;
        self.forward().position(producer)
    }

    /// The first and last position of the operations that one stage has to run for each running state that the
    /// forward updates: those that read it or update it, after the last that reads another parameter of its
    /// module for the first time.
    pub(crate) fn state_ranges(&self) -> impl Iterator<Item = (usize, usize)> {
        let (graph, forward) = (self.graph(), self.forward());
        self.updates().keys().filter_map(move |state| {
            let readers = graph.users(self.parameters()[*state]).iter();
            let readers = readers.filter_map(|node| forward.position(*node));
            let touching: Vec<usize> = readers.chain(self.update_position(*state)).collect();
            let (first, last) = (touching.iter().min()?, touching.iter().max()?);
            let module = self.parameter(*state).path.module();
            let siblings = self.table().iter().enumerate();
            let siblings = siblings.filter(|(_, other)| other.path.module() == module);
            let reads = siblings.filter_map(|(position, _)| forward.first_read(position));
            let before = reads.filter(|read| read < first).max();
            Some((before.unwrap_or(*first), *last))
        })
    }
}

/// The running states of a model in a recorded forward.
struct States<'a> {
    graph: &'a Graph,
    table: &'a ParameterTable,
    /// The placeholder of each parameter.
    values: &'a [ValueId],
    /// The indices of the forward's operations.
    forward: Range<usize>,
}

impl States<'_> {
    fn parameter(&self, position: usize) -> &Parameter {
        &self.table.iter().as_slice()[position]
    }

    fn is_batch_norm(&self, position: usize) -> bool {
        self.parameter(position).owner() == "BatchNorm"
    }

    fn refuse(&self, position: usize, fault: StateFault) -> TraceError {
        let path = self.parameter(position).path.clone();
        TraceError::RunningState { path, fault }
    }

    /// The new value of a state that the forward updates.
    fn new_value(&self, position: usize, twice: &Twice) -> Result<ValueId, TraceError> {
        let value = match twice.shown.get(&position) {
            Some(shown) if shown.is_read_late => {
                return Err(self.refuse(position, StateFault::ReadLate));
            }
            Some(shown) => shown.value.filter(|value| self.is_of_forward(*value)),
            None if self.is_batch_norm(position) => self.end_of_chain(self.values[position]),
            None => None,
        };
        let value = value.ok_or_else(|| self.refuse(position, StateFault::Unknown))?;
        let [old, new] = [self.values[position], value].map(|value| self.graph.value(value));
        if old.shape == new.shape && old.dtype == new.dtype {
            return Ok(value);
        }
        let text =
            |value: &Value| format!("{}{:?}", dtype_name(value.dtype), value.shape.as_slice());
        let (old, new) = (text(old), text(new));
        Err(self.refuse(position, StateFault::Type { old, new }))
    }

    /// The graph with the states and their updates in f32, for a forward of 16 bits: a mean over many batches loses
    /// what a batch adds to it, where that is less than a 256th.
    fn in_own_dtypes(&self, updates: &BTreeMap<usize, ValueId>) -> Result<Retyped, TraceError> {
        let mut nodes = BTreeSet::new();
        for (state, update) in updates {
            let old = self.values[*state];
            let mut reached = BTreeSet::from([old]);
            nodes.extend(self.graph.value(old).producer);
            for id in self
                .graph
                .backward_slice([*update], |value| value == old)
                .nodes
            {
                let node = self.graph.node(id);
                if node.inputs().iter().any(|input| reached.contains(input)) {
                    reached.extend(node.outputs());
                    nodes.insert(id);
                }
            }
        }
        self.graph.with_dtype(&nodes, DType::F32).map_err(|node| {
            let reads = |state: &&usize| {
                let of_state = self.graph.backward_slice([updates[*state]], |_| false);
                of_state.nodes.contains(&node)
            };
            let state = updates.keys().find(reads).or(updates.keys().next());
            let operation = self.graph.describe(node);
            let fault = StateFault::Precision { operation };
            self.refuse(state.copied().unwrap_or(0), fault)
        })
    }

    fn is_of_forward(&self, value: ValueId) -> bool {
        let producer = self.graph.value(value).producer;
        producer.is_some_and(|node| self.forward.contains(&node.index()))
    }

    /// The last value of a chain of operations, each of which alone reads the one before it, and which nothing reads.
    fn end_of_chain(&self, start: ValueId) -> Option<ValueId> {
        let mut value = start;
        loop {
            let users: BTreeSet<NodeId> = self.graph.users(value).iter().copied().collect();
            let mut users = users.into_iter();
            match (users.next(), users.next()) {
                (None, _) => return (value != start).then_some(value),
                (Some(user), None) => match self.graph.node(user).outputs() {
                    [output] => value = *output,
                    _ => return None,
                },
                _ => return None,
            }
        }
    }
}
