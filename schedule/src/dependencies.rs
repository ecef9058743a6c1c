//! Dependencies: the edges between programs of stages, and the ties between parameters.

use std::collections::BTreeSet;

use derive_more::Display;
use serde::{Deserialize, Serialize};

use crate::index::StageIndex;
use crate::task::{Compute, Task};

/// A program of a stage, as one end of an edge.
///
/// An edge is the same for every schedule, whether a micro-batch has a whole backward
/// or a split one. `Backward` therefore means the `B` of a micro-batch or, if it is split, its
/// `I`, which computes and reads all values that cross a boundary. `InputGradient` and `WeightGradient` mean
/// themselves or, if the micro-batch is not split, its `B`.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, Display,
)]
#[display("{stage}{}", compute.letter())]
#[must_use]
pub struct Endpoint {
    /// The stage that runs the program.
    pub stage: StageIndex,
    /// The program.
    pub compute: Compute,
}

impl Endpoint {
    /// Creates the endpoint of a program of a stage.
    pub const fn new(stage: StageIndex, compute: Compute) -> Self {
        Self { stage, compute }
    }

    /// Creates the forward endpoint of a stage.
    pub const fn forward(stage: StageIndex) -> Self {
        Self::new(stage, Compute::Forward)
    }

    /// Creates the backward endpoint of a stage.
    pub const fn backward(stage: StageIndex) -> Self {
        Self::new(stage, Compute::Backward)
    }

    /// Returns whether this endpoint is the given task, on the task's micro-batch.
    pub fn is_run_by(self, task: &Task) -> bool {
        self.stage == task.stage && self.programs().contains(&task.compute)
    }

    /// Returns the programs that can be this endpoint; a micro-batch of a valid schedule has one of them.
    pub(crate) const fn programs(self) -> &'static [Compute] {
        use Compute::{Backward, Forward, InputGradient, WeightGradient};
        match self.compute {
            Forward => &[Forward],
            Backward | InputGradient => &[Backward, InputGradient],
            WeightGradient => &[Backward, WeightGradient],
        }
    }
}

/// The values that one program computes for another stage's program: one message per micro-batch.
///
/// A stage's own forward is always a dependency of its backward, without an edge.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, Display,
)]
#[display("{from}>{to}")]
#[must_use]
pub struct Edge {
    /// The program that computes the values.
    pub from: Endpoint,
    /// The program that reads them.
    pub to: Endpoint,
}

impl Edge {
    /// Creates an edge between two programs.
    pub const fn new(from: Endpoint, to: Endpoint) -> Self {
        Self { from, to }
    }

    /// Creates an edge from the forward of a stage to the forward of the next.
    pub const fn chain_forward(stage: StageIndex) -> Self {
        let next = StageIndex::new(stage.index() + 1);
        Self::new(Endpoint::forward(stage), Endpoint::forward(next))
    }

    /// Creates an edge from the backward of the next stage to the backward of a stage.
    pub const fn chain_backward(stage: StageIndex) -> Self {
        let next = StageIndex::new(stage.index() + 1);
        Self::new(Endpoint::backward(next), Endpoint::backward(stage))
    }

    /// Returns whether the edge exists without a backward pass.
    pub const fn is_forward(self) -> bool {
        matches!(
            (self.from.compute, self.to.compute),
            (Compute::Forward, Compute::Forward)
        )
    }
}

/// Parameters that two stages read: the owner updates them and sends the values to the copy
/// before the step ends.
///
/// The copy's gradients reach the owner through ordinary edges.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, Display,
)]
#[display("{owner}U>{copy}U")]
pub struct Tie {
    /// The stage whose optimizer holds the parameters.
    pub owner: StageIndex,
    /// A stage that reads a copy.
    pub copy: StageIndex,
}

/// The edges and ties of a plan.
///
/// Sorted, once by producer and once by consumer, so that the edges of one stage are a slice and
/// equal sets lower to equal lists.
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use]
pub struct Dependencies {
    stages: usize,
    edges: Vec<Edge>,
    edges_by_consumer: Vec<Edge>,
    ties: Vec<Tie>,
    global_norm: bool,
    replicas: bool,
    states: Vec<StageIndex>,
}

impl Dependencies {
    /// Creates the set of the given edges and ties; repeated ones count once.
    ///
    /// [`verify`](crate::verify) rejects edges that no schedule can satisfy.
    pub fn new(
        stages: usize,
        edges: impl IntoIterator<Item = Edge>,
        ties: impl IntoIterator<Item = Tie>,
    ) -> Self {
        let edges = sorted(edges);
        let mut edges_by_consumer = edges.clone();
        edges_by_consumer.sort_unstable_by_key(|edge| (edge.to, edge.from));
        Self {
            stages,
            edges,
            edges_by_consumer,
            ties: sorted(ties),
            global_norm: false,
            replicas: false,
            states: Vec::new(),
        }
    }

    /// Sets that the step clips by the norm of all gradients: every rank then needs the
    /// norms of all stages before its first update. Otherwise no rank waits for another to update.
    pub fn with_global_norm(mut self) -> Self {
        self.global_norm = true;
        self
    }

    /// Returns whether the step clips by the norm of all gradients.
    pub const fn has_global_norm(&self) -> bool {
        self.global_norm
    }

    /// Sets that other ranks run replicas of each stage with other micro-batches: gradients are summed over them before the
    /// update, and each rank updates a part of the parameters. The lists of the replicas are of the same kind, for their
    /// own numbers of micro-batches.
    pub fn with_replicas(mut self) -> Self {
        self.replicas = true;
        self
    }

    /// Returns whether other ranks run replicas of each stage.
    pub const fn has_replicas(&self) -> bool {
        self.replicas
    }

    /// Sets the stages whose forward updates a state that the next forward reads, such as the running
    /// statistics of batch norm: they run their forwards in micro-batch order.
    pub fn with_states(mut self, stages: impl IntoIterator<Item = StageIndex>) -> Self {
        self.states = sorted(stages);
        self
    }

    /// Returns the stages that run their forwards in micro-batch order, sorted.
    pub fn states(&self) -> &[StageIndex] {
        &self.states
    }

    /// Creates a chain of stages without skips: every forward feeds the next, every backward the previous one.
    pub fn chain(stages: usize) -> Self {
        let edges = (1..stages).flat_map(|next| {
            let stage = StageIndex::new(next - 1);
            [Edge::chain_forward(stage), Edge::chain_backward(stage)]
        });
        Self::new(stages, edges, [])
    }

    /// Returns the number of stages that the edges refer to.
    pub const fn stages(&self) -> usize {
        self.stages
    }

    /// Returns all edges, sorted by producer.
    pub fn edges(&self) -> &[Edge] {
        &self.edges
    }

    /// Returns all ties, sorted by owner.
    pub fn ties(&self) -> &[Tie] {
        &self.ties
    }

    /// Returns the edges that carry the outputs of a task.
    pub fn made_by(&self, task: Task) -> impl Iterator<Item = Edge> + '_ {
        of_task(&self.edges, task, |edge| edge.from)
    }

    /// Returns the edges that carry the inputs of a task.
    pub fn read_by(&self, task: Task) -> impl Iterator<Item = Edge> + '_ {
        of_task(&self.edges_by_consumer, task, |edge| edge.to)
    }

    /// Returns the index of an edge in [`Dependencies::edges`].
    pub(crate) fn position(&self, edge: Edge) -> Option<usize> {
        self.edges.binary_search(&edge).ok()
    }
}

/// Returns the elements in order, each once.
fn sorted<T: Ord>(elements: impl IntoIterator<Item = T>) -> Vec<T> {
    BTreeSet::from_iter(elements).into_iter().collect()
}

/// Returns the edges of which a task is one end, of edges that are sorted by this end.
fn of_task(
    edges: &[Edge],
    task: Task,
    end: impl Fn(&Edge) -> Endpoint + Copy,
) -> impl Iterator<Item = Edge> {
    let start = edges.partition_point(|edge| end(edge).stage < task.stage);
    let of_stage = edges[start..].iter();
    let of_stage = of_stage.take_while(move |edge| end(edge).stage == task.stage);
    of_stage
        .copied()
        .filter(move |edge| end(edge).is_run_by(&task))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::index::MicroBatchIndex;

    fn task(stage: usize, compute: Compute) -> Task {
        Task {
            stage: StageIndex::new(stage),
            compute,
            micro_batch: MicroBatchIndex::new(0),
        }
    }

    #[test]
    fn a_chain_has_one_edge_per_direction_and_boundary() {
        assert!(Dependencies::chain(0).edges().is_empty());
        assert!(Dependencies::chain(1).edges().is_empty());
        let chain = Dependencies::chain(4);
        assert_eq!(chain.edges().len(), 6);
        let read: Vec<Edge> = chain.read_by(task(1, Compute::Backward)).collect();
        assert_eq!(read, [Edge::chain_backward(StageIndex::new(1))]);
        assert_eq!(chain.read_by(task(0, Compute::Forward)).count(), 0);
    }

    #[test]
    fn the_order_and_number_of_mentions_do_not_matter() {
        let chain = Dependencies::chain(5);
        let again = chain.edges().iter().rev().chain(chain.edges()).copied();
        assert_eq!(Dependencies::new(5, again, []), chain);
    }

    /// A whole backward is both of its parts, and an edge of a backward is satisfied by `I`.
    #[test]
    fn edges_hold_for_whole_and_split_backwards() {
        let cases = [
            (Compute::Backward, [false, true, true, false]),
            (Compute::InputGradient, [false, true, true, false]),
            (Compute::WeightGradient, [false, true, false, true]),
            (Compute::Forward, [true, false, false, false]),
        ];
        for (compute, expected) in cases {
            let endpoint = Endpoint {
                stage: StageIndex::new(2),
                compute,
            };
            let found = Compute::ALL.map(|compute| endpoint.is_run_by(&task(2, compute)));
            assert_eq!(found, expected, "{compute:?}");
            assert!(
                !Compute::ALL
                    .iter()
                    .any(|&c| endpoint.is_run_by(&task(1, c)))
            );
        }
    }
}
