//! Dependencies: the edges between programs of stages, and the ties between parameters.

use std::collections::BTreeSet;

use derive_more::Display;
use serde::{Deserialize, Serialize};
use tinderbox_ids::StageIndex;

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
/// The copy's gradients reach the owner through ordinary edges, with every micro-batch. The owner sums them as plain Burn
/// sums them. The values are sent after every step, also of a frozen parameter.
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
    edges: ByStage,
    edges_by_consumer: ByStage,
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
            edges: ByStage::new(edges, stages, |edge| edge.from),
            edges_by_consumer: ByStage::new(edges_by_consumer, stages, |edge| edge.to),
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

    /// Sets that other ranks run replicas of each stage with other micro-batches. Gradients are summed over the replicas
    /// before the update, and each rank updates a part of the parameters. The lists of the replicas are of the same kind,
    /// for their own numbers of micro-batches.
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
        &self.edges.edges
    }

    /// Returns all ties, sorted by owner.
    pub fn ties(&self) -> &[Tie] {
        &self.ties
    }

    /// Returns the edges that carry the outputs of a task.
    pub fn made_by(&self, task: Task) -> impl Iterator<Item = Edge> + '_ {
        self.edges.of_task(task, |edge| edge.from)
    }

    /// Returns the edges that carry the inputs of a task.
    pub fn read_by(&self, task: Task) -> impl Iterator<Item = Edge> + '_ {
        self.edges_by_consumer.of_task(task, |edge| edge.to)
    }

    /// Returns the index of an edge in [`Dependencies::edges`].
    pub(crate) fn position(&self, edge: Edge) -> Option<usize> {
        let (start, of_stage) = self.edges.of_stage(edge.from.stage);
        Some(start + of_stage.binary_search(&edge).ok()?)
    }
}

/// Returns the elements in order, each once.
fn sorted<T: Ord>(elements: impl IntoIterator<Item = T>) -> Vec<T> {
    BTreeSet::from_iter(elements).into_iter().collect()
}

/// Edges that are sorted by the stage of one end, with an index by stage, because a verification and a simulation search
/// several times for each action.
#[derive(Debug, Clone, PartialEq, Eq)]
struct ByStage {
    edges: Vec<Edge>,
    /// The position of each stage's first edge, up to the highest stage that has one.
    starts: Vec<usize>,
}

impl ByStage {
    /// Creates the index. `stages` bounds its memory; edges of higher stages are searched.
    fn new(edges: Vec<Edge>, stages: usize, end: fn(&Edge) -> Endpoint) -> Self {
        let start = |stage| edges.partition_point(|edge| end(edge).stage.index() < stage);
        // A number from a file may be arbitrary.
        let starts = (0..=stages.min(edges.len())).map(start).collect();
        Self { edges, starts }
    }

    /// Returns the edges of a stage, and maybe some after them, with the position of the first edge.
    fn of_stage(&self, stage: StageIndex) -> (usize, &[Edge]) {
        let known = |stage: usize| self.starts.get(stage).copied();
        let last = self.starts.last().copied().unwrap_or(0);
        let start = known(stage.index()).unwrap_or(last);
        let end = known(stage.index() + 1).unwrap_or(self.edges.len());
        (start, &self.edges[start..end])
    }

    /// Returns the edges whose `end` is a task.
    fn of_task(&self, task: Task, end: fn(&Edge) -> Endpoint) -> impl Iterator<Item = Edge> {
        let (_, edges) = self.of_stage(task.stage);
        let edges = edges.iter().copied();
        edges.filter(move |edge| end(edge).is_run_by(&task))
    }
}
