//! The time, memory and messages of the stages of a partition.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use tinderbox_schedule::arithmetic::{add, sum};
use tinderbox_schedule::{
    Compute, Costs, Dependencies, Edge, Endpoint, RankIndex, StageCosts, StageIndex, Tie,
};

use crate::{Machine, Partition, Step, Work};

/// Bytes that a stage holds all the time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct StageBytes {
    /// Parameters, copies included.
    pub parameters: u64,
    /// Gradients of trainable parameters, copies included.
    pub gradients: u64,
    /// State of the optimizer.
    pub optimizer: u64,
}

impl StageBytes {
    /// Returns the sum of all.
    pub fn resident(&self) -> u64 {
        sum([self.parameters, self.gradients, self.optimizer])
    }

    /// Returns the bytes of two stages together.
    #[must_use]
    pub fn plus(mut self, other: Self) -> Self {
        add(&mut self.parameters, other.parameters);
        add(&mut self.gradients, other.gradients);
        add(&mut self.optimizer, other.optimizer);
        self
    }

    /// Completes the costs of a stage that holds these bytes and trains parameters of `trained` bytes: with its times at the
    /// speed of its rank, the times of the sum of its gradients over replicas and of its update, and the bytes that replicas
    /// exchange.
    pub fn complete(
        &self,
        costs: StageCosts,
        trained: u64,
        machine: &Machine,
        step: &Step,
        rank: RankIndex,
    ) -> StageCosts {
        let (rank, rates) = (machine.rank(rank), &machine.rates);
        let replicas = step.share() as u64;
        // Each replica updates its part, for which it adds the gradients of the others.
        let updated = trained / replicas;
        let added = updated.saturating_mul(replicas - 1);
        StageCosts {
            forward: rank.time(costs.forward),
            backward: rank.time(costs.backward),
            input_gradient: rank.time(costs.input_gradient),
            weight_gradient: rank.time(costs.weight_gradient),
            sum: rank.time(rates.add_ns(added)),
            update: rank.time(rates.update_ns(updated, step.optimizer_states)),
            exchanged_bytes: if replicas > 1 { trained } else { 0 },
            resident_bytes: self.resident(),
            ..costs
        }
    }
}

/// The costs of a partition's stages, their dependencies, and the bytes that each stage holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PartitionCosts {
    /// The costs for the simulator: a tick is a nanosecond.
    pub costs: Costs,
    /// Edges and ties.
    pub dependencies: Dependencies,
    /// The bytes that each stage holds all the time.
    pub bytes: Vec<StageBytes>,
}

/// Computes the costs of a partition. Linear in blocks, and in the readers of values and parameters.
pub fn partition_costs(
    work: &Work,
    machine: &Machine,
    step: &Step,
    partition: &Partition,
) -> PartitionCosts {
    let stages = partition.stages();
    let mut costs = vec![StageCosts::default(); stages];
    let mut bytes = vec![StageBytes::default(); stages];
    for (block, stage) in work.blocks.iter().zip(&partition.stage_of) {
        let cost = &mut costs[*stage];
        add(&mut cost.forward, block.forward);
        add(&mut cost.backward, block.backward);
        add(&mut cost.input_gradient, block.input_gradient);
        add(&mut cost.weight_gradient, block.weight_gradient);
        add(&mut cost.weight_gradient_bytes, block.weight_gradient_bytes);
        cost.transient_bytes = cost.transient_bytes.max(block.transient_bytes);
    }
    let mut edges = Edges::default();
    let (ties, trained) = hold_parameters(work, step, partition, &mut bytes, &mut edges);
    // The bytes that each stage keeps of its own values, and of the values that it receives.
    let mut kept = vec![(0_u64, 0_u64); stages];
    for value in &work.values {
        let from = partition.stage_of[value.maker];
        let of = |blocks: &[usize]| -> BTreeSet<usize> {
            let stages = blocks.iter().map(|block| partition.stage_of[*block]);
            stages.collect()
        };
        let (mut readers, keepers) = (of(&value.readers), of(&value.keepers));
        for to in readers.iter().filter(|to| **to != from) {
            edges.add(from, Compute::Forward, *to, Compute::Forward, value.bytes);
        }
        for to in keepers.difference(&readers).filter(|to| **to != from) {
            edges.add(from, Compute::Forward, *to, Compute::Backward, value.bytes);
        }
        readers.insert(from);
        edges.hand_down(&readers, value.gradient_bytes);
        for stage in keepers {
            let (own, got) = &mut kept[stage];
            add(if stage == from { own } else { got }, value.bytes);
        }
    }
    for (stage, cost) in costs.iter_mut().enumerate() {
        let (own, got) = kept[stage];
        cost.activation_bytes = got;
        if partition.recompute[stage] {
            add(&mut cost.backward, cost.forward);
            add(&mut cost.input_gradient, cost.forward);
            add(&mut cost.transient_bytes, own);
        } else {
            add(&mut cost.activation_bytes, own);
        }
        let rank = partition.stage_to_rank[stage];
        *cost = bytes[stage].complete(*cost, trained[stage], machine, step, rank);
    }
    let Edges(messages) = edges;
    let dependencies = Dependencies::new(stages, messages.keys().copied(), ties);
    PartitionCosts {
        dependencies: step.with_replicas(dependencies),
        costs: machine.costs(costs, messages, step.replicas),
        bytes,
    }
}

/// Bytes by edge.
#[derive(Default)]
struct Edges(BTreeMap<Edge, u64>);

impl Edges {
    fn add(&mut self, from: usize, made: Compute, to: usize, read: Compute, bytes: u64) {
        let end = |stage, compute| Endpoint::new(StageIndex::new(stage), compute);
        if bytes > 0 {
            let edge = Edge::new(end(from, made), end(to, read));
            add(self.0.entry(edge).or_default(), bytes);
        }
    }

    /// Adds the path of a gradient: each stage adds its part and sends the sum to the next lower stage,
    /// as Burn's backward pass accumulates gradients.
    fn hand_down(&mut self, stages: &BTreeSet<usize>, bytes: u64) {
        for (to, from) in stages.iter().zip(stages.iter().skip(1)) {
            self.add(*from, Compute::Backward, *to, Compute::Backward, bytes);
        }
    }
}

/// Adds every parameter to the stages that read it; the lowest of them owns it. Returns the ties, and
/// the bytes that each stage trains.
fn hold_parameters(
    work: &Work,
    step: &Step,
    partition: &Partition,
    bytes: &mut [StageBytes],
    edges: &mut Edges,
) -> (BTreeSet<Tie>, Vec<u64>) {
    let mut ties = BTreeSet::new();
    let mut trained = vec![0_u64; bytes.len()];
    for parameter in &work.parameters {
        let readers = parameter.readers.iter();
        let stages: BTreeSet<usize> = readers.map(|block| partition.stage_of[*block]).collect();
        let owner = stages.first().copied().unwrap_or(0);
        if parameter.is_trainable {
            edges.hand_down(&stages, parameter.gradient_bytes());
        }
        for stage in stages {
            let held = &mut bytes[stage];
            add(&mut held.parameters, parameter.held_bytes());
            if stage != owner {
                // The parts of its gradient are sent down micro-batch by micro-batch.
                let [owner, copy] = [owner, stage].map(StageIndex::new);
                ties.insert(Tie { owner, copy });
            } else if parameter.is_trainable {
                let gradients = parameter.bytes.saturating_mul(step.gradients_held());
                add(&mut held.gradients, gradients);
                add(&mut trained[stage], parameter.bytes);
                let state = parameter.bytes.saturating_mul(step.optimizer_states);
                add(&mut held.optimizer, state / step.share() as u64);
            }
        }
    }
    (ties, trained)
}
