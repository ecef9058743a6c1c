//! A joint graph as blocks: one for each indivisible group of the forward.

use std::collections::BTreeSet;
use std::iter::successors;

use tinderbox_fake::{NodeId, TensorKind, ValueId};
use tinderbox_planner::{Block, Parameter, Value, Work};

use super::{OperationGroups, OperationTimes};
use crate::PlanError;
use crate::cut::place_gradients;
use crate::schedule::Compute;
use crate::trace::{JointGraph, Role};

/// Returns the work of a program: each block has the operations of one indivisible group of the forward,
/// with the backward operations that the cut would assign to a stage of only these operations.
///
/// Cost: linear in the graph, times logarithms of small sets.
pub fn work_of(
    joint: &JointGraph,
    groups: &OperationGroups,
    times: &OperationTimes,
) -> Result<Work, PlanError> {
    let positions = parameter_positions(joint).into_iter();
    let owners: Vec<usize> = positions.map(|position| groups.of(position)).collect();
    let mut stage = vec![None; joint.graph().nodes().len()];
    for (position, id) in joint.forward().nodes().iter().enumerate() {
        stage[id.index()] = Some(groups.of(position));
    }
    let stage = place_gradients(joint, &owners, groups.starts().len(), stage)?;
    let blocks = groups.starts().iter().map(|position| Block {
        name: joint.module_at(*position).to_owned(),
        ..Block::default()
    });
    let mut builder = Builder {
        joint,
        stage,
        blocks: blocks.collect(),
    };
    builder.assign_recomputable();
    builder.add_times(times);
    let values = builder.values();
    Ok(Work {
        blocks: builder.blocks,
        parameters: parameters(joint, groups, &owners),
        values,
    })
}

/// The position of each parameter of the table: the position of its first reader. A running state that the forward only
/// writes has the position of its new value. Another parameter that the forward does not read has the position of the nearest
/// parameter in the module tree that it reads.
pub fn parameter_positions(joint: &JointGraph) -> Vec<usize> {
    let table = joint.table();
    let first_read = |parameter: usize| joint.forward().first_read(parameter);
    let nearest = |module: &str| -> usize {
        // From the module outwards, to the whole model.
        let mut modules = successors(Some(module), |inner| match inner.rsplit_once('.') {
            Some((outer, _)) => Some(outer),
            None => (!inner.is_empty()).then_some(""),
        });
        let read = modules.find_map(|outer| joint.first_reads(|path| path.is_under(outer)).min());
        read.unwrap_or(0)
    };
    let parameters = table.iter().zip(joint.parameters());
    let positions = parameters.map(|(parameter, value)| {
        let first = joint.parameter_of(*value);
        let read = first.and_then(|at| first_read(at).or_else(|| joint.update_position(at)));
        read.unwrap_or_else(|| nearest(parameter.path.module()))
    });
    positions.collect()
}

fn parameters(joint: &JointGraph, groups: &OperationGroups, owners: &[usize]) -> Vec<Parameter> {
    let parameters = joint.table().iter().enumerate();
    let distinct = parameters.filter(|(_, parameter)| parameter.clone_of.is_none());
    let described = distinct.map(|(position, parameter)| {
        let readers = joint.reads_of(joint.parameters()[position]);
        let readers = readers.map(|reader| groups.of(reader));
        let readers: BTreeSet<usize> = readers.chain([owners[position]]).collect();
        Parameter {
            bytes: parameter.bytes,
            cast_bytes: joint.cast_bytes(position),
            is_trainable: parameter.trainable,
            readers: readers.into_iter().collect(),
        }
    });
    described.collect()
}

struct Builder<'a> {
    joint: &'a JointGraph,
    /// The block of each operation.
    stage: Vec<Option<usize>>,
    blocks: Vec<Block>,
}

impl Builder<'_> {
    fn block_of(&self, node: NodeId) -> Option<usize> {
        self.stage[node.index()]
    }

    /// Assigns operations that any stage can recompute to the first block that reads them.
    fn assign_recomputable(&mut self) {
        let graph = self.joint.graph();
        for id in graph.node_ids().rev() {
            if let Role::Recomputable | Role::BackwardLocal = self.joint.role(id) {
                let users = graph.readers(id);
                self.stage[id.index()] = users.filter_map(|user| self.block_of(user)).min();
            }
        }
    }

    /// Adds every operation to the program of its block that runs it.
    fn add_times(&mut self, times: &OperationTimes) {
        let graph = self.joint.graph();
        let none = || vec![false; graph.nodes().len()];
        // The programs that need an operation; several may need a recomputed operation.
        let (mut forward, mut input, mut weight) = (none(), none(), none());
        for id in graph.node_ids().rev() {
            let Some(here) = self.block_of(id) else {
                continue;
            };
            let index = id.index();
            let users = || graph.readers(id);
            match self.joint.role(id) {
                Role::Assigned => forward[index] = true,
                Role::Gradient => {
                    // Lower blocks wait for this gradient, or for a value computed from it here.
                    input[index] = users().any(|user| match self.block_of(user) {
                        Some(block) => block < here || (block == here && input[user.index()]),
                        None => false,
                    });
                    weight[index] = !input[index];
                }
                _ => {
                    forward[index] = users().any(|user| forward[user.index()]);
                    input[index] = users().any(|user| input[user.index()]);
                    // Outputs of `I` that `W` reads.
                    weight[index] = !input[index] && users().any(|user| weight[user.index()]);
                }
            }
            let bytes = graph.bytes(graph.node(id).outputs());
            let block = &mut self.blocks[here];
            block.transient_bytes = block.transient_bytes.max(bytes);
            let time = |is_for: bool, compute| u64::from(is_for) * times.of(id, compute);
            block.forward += time(forward[index], Compute::Forward);
            block.backward += time(input[index] || weight[index], Compute::Backward);
            block.input_gradient += time(input[index], Compute::InputGradient);
            block.weight_gradient += time(weight[index], Compute::WeightGradient);
        }
        self.add_weight_bytes(&weight);
    }

    /// Adds the bytes that `W` of each block reads from its `I`, from other blocks and from forwards.
    fn add_weight_bytes(&mut self, weight: &[bool]) {
        let graph = self.joint.graph();
        let mut read: BTreeSet<(usize, ValueId)> = BTreeSet::new();
        let nodes = graph.node_ids().zip(&self.stage);
        let nodes = nodes.filter(|(id, _)| weight[id.index()]);
        for (id, here) in nodes.filter_map(|(id, here)| Some((id, (*here)?))) {
            for input in graph.node(id).inputs() {
                let made = graph.producer(*input).filter(|node| !weight[node.index()]);
                let is_kept = made.is_some_and(|node| {
                    let role = self.joint.role(node);
                    matches!(role, Role::Assigned | Role::Gradient | Role::BackwardLocal)
                });
                if is_kept && read.insert((here, *input)) {
                    self.blocks[here].weight_gradient_bytes += graph.value(*input).bytes();
                }
            }
        }
    }

    /// The values of the forward that other blocks or a backward read.
    fn values(&self) -> Vec<Value> {
        let graph = self.joint.graph();
        let role = |id: &NodeId| self.joint.role(*id);
        let is_assigned = |id: &NodeId| role(id) == Role::Assigned;
        let is_backward = |id: &NodeId| matches!(role(id), Role::Gradient | Role::BackwardLocal);
        let with_gradients = self.with_gradients();
        let mut values = Vec::new();
        let nodes = self.joint.forward().nodes().iter();
        for (id, maker) in nodes.filter_map(|id| Some((*id, self.block_of(*id)?))) {
            for output in graph.node(id).outputs() {
                let users = graph.users(*output).iter();
                let blocks = |keep: &dyn Fn(&NodeId) -> bool, first: usize| -> Vec<usize> {
                    let users = users.clone().filter(|user| keep(user));
                    let blocks = users.filter_map(|user| self.block_of(*user));
                    let blocks: BTreeSet<usize> = blocks.filter(|of| *of >= first).collect();
                    blocks.into_iter().collect()
                };
                let readers = blocks(&is_assigned, maker + 1);
                let keepers = blocks(&is_backward, maker);
                let value = graph.value(*output);
                let bytes = value.bytes();
                let flows = with_gradients.contains(output)
                    && TensorKind::of(value.dtype) == TensorKind::Float;
                if !readers.is_empty() || !keepers.is_empty() {
                    values.push(Value {
                        bytes,
                        maker,
                        readers,
                        keepers,
                        gradient_bytes: if flows { bytes } else { 0 },
                    });
                }
            }
        }
        values
    }

    /// Parameters with a gradient, and the forward values that depend on them, including detached values. Partitioners count
    /// these values as if their gradients were sent between stages; the prediction of a plan uses the actual programs.
    fn with_gradients(&self) -> BTreeSet<ValueId> {
        let graph = self.joint.graph();
        let parameters = self.joint.parameters().iter().zip(self.joint.gradients());
        let trained = parameters.filter(|(_, gradient)| gradient.is_some());
        let mut values: BTreeSet<ValueId> = trained.map(|(value, _)| *value).collect();
        for id in self.joint.forward().nodes() {
            let node = graph.node(*id);
            if node.inputs().iter().any(|input| values.contains(input)) {
                values.extend(node.outputs());
            }
        }
        values
    }
}
