//! The time of each operation of a program.

use std::collections::{BTreeMap, BTreeSet};

use tinderbox_fake::{NodeId, ValueId};
use tinderbox_planner::Rates;

use crate::cost::operation_cost;
use crate::schedule::Compute;
use crate::trace::JointGraph;

/// The nanoseconds of every operation of one program, on a rank of speed 1.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OperationTimes {
    /// Times in a forward or in a whole backward.
    whole: Vec<u64>,
    /// Times in a split backward, where both measured halves may take longer than the whole.
    halves: Vec<u64>,
}

impl OperationTimes {
    /// Estimates times from shapes: the longer of the times of an operation's arithmetic and bytes,
    /// plus a constant overhead. The operation that computes a parameter's gradient also adds it to the
    /// sum over earlier micro-batches. Cost: linear in the graph.
    pub fn analytic(joint: &JointGraph, rates: &Rates) -> Self {
        let per_second = |amount: u64, rate: u64| -> u64 {
            let nanoseconds = u128::from(amount) * 1_000_000_000 / u128::from(rate.max(1));
            u64::try_from(nanoseconds).unwrap_or(u64::MAX)
        };
        let nanoseconds = joint.graph().node_ids().map(|node| {
            let cost = operation_cost(joint.graph(), node);
            let arithmetic = per_second(cost.flops, rates.flops_per_s);
            let memory = per_second(cost.bytes, rates.bytes_per_s);
            rates.operation_ns.saturating_add(arithmetic.max(memory))
        });
        let mut whole: Vec<u64> = nanoseconds.collect();
        let gradients: BTreeSet<ValueId> = joint.gradients().iter().copied().flatten().collect();
        for gradient in gradients {
            let value = joint.graph().value(gradient);
            // The sum and the gradient are read, the sum is written.
            let moved = value.bytes().saturating_mul(3);
            if let Some(producer) = value.producer {
                let time = &mut whole[producer.index()];
                *time = time.saturating_add(per_second(moved, rates.bytes_per_s));
            }
        }
        Self {
            halves: whole.clone(),
            whole,
        }
    }

    /// Returns the nanoseconds of an operation in a program.
    pub fn of(&self, node: NodeId, compute: Compute) -> u64 {
        let times = match compute {
            Compute::InputGradient | Compute::WeightGradient => &self.halves,
            _ => &self.whole,
        };
        times.get(node.index()).copied().unwrap_or(0)
    }

    /// Returns the total nanoseconds of several operations in a program.
    pub fn of_all(&self, nodes: &[NodeId], compute: Compute) -> u64 {
        let times = nodes.iter().map(|node| self.of(*node, compute));
        times.fold(0, u64::saturating_add)
    }

    /// Returns a copy with other times for some operations.
    pub(crate) fn with(
        mut self,
        whole: BTreeMap<NodeId, u64>,
        halves: BTreeMap<NodeId, u64>,
    ) -> Self {
        for (times, others) in [(&mut self.whole, whole), (&mut self.halves, halves)] {
            for (node, time) in others {
                if let Some(known) = times.get_mut(node.index()) {
                    *known = time;
                }
            }
        }
        self
    }
}
