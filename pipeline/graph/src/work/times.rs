//! The time of each operation of a program.

use std::collections::{BTreeMap, BTreeSet};

use tinderbox_fake::{Node, NodeId, ValueId};
use tinderbox_planner::Rates;

use crate::schedule::Compute;
use crate::schedule::arithmetic::{add, scaled, sum};
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
        let per_second = |amount: u64, rate: u64| scaled(amount, 1_000_000_000, rate.max(1));
        let nanoseconds = joint.graph().nodes().iter().map(|node| {
            let cost = node.operation().cost();
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
                let time = per_second(moved, rates.bytes_per_s);
                add(&mut whole[producer.index()], time);
            }
        }
        let halves = whole.clone();
        Self { whole, halves }
    }

    /// Returns the times of a model's program for a batch of another size. The time of each operation changes in the ratio of
    /// its times from shapes. If the programs have different operations, as for a single sample, all operations of one name
    /// change in the same ratio.
    pub fn scaled(&self, own: &JointGraph, other: &JointGraph, rates: &Rates) -> Self {
        let names = [own, other]
            .map(|joint| -> Vec<String> { joint.graph().nodes().iter().map(Node::name).collect() });
        let [from, to] = [own, other].map(|joint| Self::analytic(joint, rates));
        let like = |times: &[u64], from: &[u64], to: &[u64]| -> Vec<u64> {
            let pairs: Vec<(u64, u64)> = times.iter().copied().zip(from.iter().copied()).collect();
            // A time from shapes, times the ratio of a measured time and its time from shapes.
            let change = |time: u64, (measured, from_shapes): (u64, u64)| match from_shapes {
                0 => measured,
                _ => scaled(time, measured, from_shapes),
            };
            if names[0] == names[1] {
                let each = to.iter().zip(pairs);
                return each.map(|(to, pair)| change(*to, pair)).collect();
            }
            let mut of_all = (0, 0);
            let mut of_names: BTreeMap<&str, (u64, u64)> = BTreeMap::new();
            for (name, pair) in names[0].iter().zip(pairs) {
                for sums in [&mut of_all, of_names.entry(name).or_default()] {
                    add(&mut sums.0, pair.0);
                    add(&mut sums.1, pair.1);
                }
            }
            let of = |name: &str| of_names.get(name).copied().unwrap_or(of_all);
            let each = names[1].iter().zip(to);
            each.map(|(name, to)| change(*to, of(name))).collect()
        };
        let whole = like(&self.whole, &from.whole, &to.whole);
        let halves = like(&self.halves, &from.halves, &to.halves);
        Self { whole, halves }
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
        sum(nodes.iter().map(|node| self.of(*node, compute)))
    }

    /// Returns a copy with other times for some operations.
    pub fn with(mut self, whole: BTreeMap<NodeId, u64>, halves: BTreeMap<NodeId, u64>) -> Self {
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
