//! Errors of a schedule, which name the action.

use derive_more::Display;
use thiserror::Error;

use crate::action::Action;
use crate::dependencies::{Edge, Tie};
use crate::index::{RankIndex, StageIndex};
use crate::link_model::LinkModel;
use crate::lists::{Form, Place, ScheduleMode};

/// One step of a deadlock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wait {
    /// The action at which a rank waits.
    pub waiting: Place,
    /// The action of another rank that it waits for, and that this rank has not reached.
    pub awaited: Place,
}

/// The reason why one action of a rank has to be after another of the same rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Display)]
#[non_exhaustive]
pub enum Rule {
    /// A backward reads what the stage's own forward kept.
    #[display("a backward reads what its own forward kept")]
    BackwardAfterForward,
    /// A weight gradient reads what the input gradient kept.
    #[display("a weight gradient reads what its input gradient kept")]
    WeightAfterInput,
    /// A program reads values of another stage on the same rank.
    #[display("it reads values that the other computes")]
    ConsumerAfterProducer,
    /// A message is sent after its values are computed.
    #[display("values are sent after they are computed")]
    SendAfterCompute,
    /// A program starts after its values are received.
    #[display("values are received before they are read")]
    ComputeAfterReceive,
    /// Gradients are summed in micro-batch order.
    #[display(
        "a stage adds its gradients in micro-batch order, so that every schedule gives \
         the same bits"
    )]
    GradientOrder,
    /// A state is updated in micro-batch order.
    #[display(
        "a stage whose forward updates a running state, as batch norm does, runs its forwards in micro-batch order"
    )]
    StateOrder,
    /// Gradients are reduced after all micro-batches have added theirs.
    #[display("gradients are reduced after the last backward")]
    ReduceAfterBackward,
    /// The optimizer needs the gradients of all micro-batches.
    #[display("parameters are updated after the last backward")]
    UpdateAfterBackward,
    /// The optimizer needs the reduced gradients.
    #[display("parameters are updated after their gradients are reduced")]
    UpdateAfterReduce,
    /// A rank that waits for other replicas has given all ranks what they wait for.
    #[display("a rank sends all its values and gradients before it waits for other replicas")]
    SumAfterReduces,
    /// The optimizer needs the sums over all replicas.
    #[display("parameters are updated after the gradients of all replicas are summed")]
    UpdateAfterSum,
    /// Norms are computed of the sums over all replicas.
    #[display("norms are exchanged after all gradients of the rank are summed over the replicas")]
    NormsAfterSums,
    /// A rank that waits for the updates of other replicas has sent its own.
    #[display("a rank sends all its updated parameters before it waits for those of other ranks")]
    GatherAfterUpdates,
    /// Tied values are sent when all replicas have updated their parts.
    #[display("tied values are sent after the parts of all replicas are gathered")]
    SendAfterGather,
    /// Tied values are sent after their update.
    #[display("tied values are sent after their update")]
    SendAfterUpdate,
    /// Tied values are received after the stage's last use of the old ones.
    #[display("tied values are received after the stage's own update")]
    ReceiveAfterUpdate,
    /// Tied values on one rank are updated after the other stage's last use of the old ones.
    #[display("tied values are updated after the last backward of the stage that shares them")]
    UpdateAfterCopy,
    /// Norms are computed of complete gradients.
    #[display("norms are those of reduced gradients")]
    NormAfterReduce,
    /// A clip by the norm of all gradients needs the norms of all stages.
    #[display("a clip by the norm of all gradients comes before the first update")]
    UpdateAfterNorms,
    /// What a micro-batch keeps on a stage is freed after its backward.
    #[display("what a micro-batch keeps is freed after its backward, so it is sent before")]
    SendBeforeFree,
}

impl Rule {
    /// Returns what to do about two actions in the wrong order.
    const fn way_out(self) -> &'static str {
        match self {
            Self::GradientOrder => {
                "move the first after the second, or number the micro-batches in the order of the backwards, \
                 which must be the same on all stages"
            }
            Self::StateOrder => {
                "move the first after the second, or use a schedule with one order of micro-batches for forwards and \
                 backwards, such as `looped-bfs` for PyTorch's LoopedBFS"
            }
            _ => "move the first after the second",
        }
    }
}

/// An error of [`verify`](crate::verify).
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum VerifyError {
    /// A step needs a stage and a micro-batch.
    #[error(
        "a schedule of {stages} stages and {micro_batches} micro-batches has nothing to run: give it \
         at least one of each"
    )]
    Empty {
        /// The number of stages.
        stages: usize,
        /// The number of micro-batches.
        micro_batches: usize,
    },
    /// The stage-to-rank map does not fit the stages.
    #[error("the stage-to-rank map has {found} entries for {expected} stages: give one per stage")]
    StageMap {
        /// The number of stages.
        expected: usize,
        /// The number of entries.
        found: usize,
    },
    /// A stage is on a rank that has no list.
    #[error(
        "stage {stage} is on rank {rank}, but there are lists for {world_size} ranks: add the list \
         or correct the stage-to-rank map"
    )]
    NoSuchRank {
        /// The stage.
        stage: StageIndex,
        /// Its rank.
        rank: RankIndex,
        /// The number of lists.
        world_size: usize,
    },
    /// The dependencies and the schedule have different numbers of stages.
    #[error(
        "the dependencies have {found} stages, the schedule has {expected}: use both from one plan"
    )]
    Dependencies {
        /// The schedule's number of stages.
        expected: usize,
        /// The dependencies' number of stages.
        found: usize,
    },
    /// An edge with an endpoint that does not exist, or both endpoints on one stage.
    #[error("invalid edge `{edge}`: an edge joins two of the {stages} stages")]
    Edge {
        /// The edge.
        edge: Edge,
        /// The number of stages.
        stages: usize,
    },
    /// A tie with a stage that does not exist, or the same stage twice.
    #[error("invalid tie `{tie}`: a tie joins two of the {stages} stages")]
    Tie {
        /// The tie.
        tie: Tie,
        /// The number of stages.
        stages: usize,
    },
    /// An action of a stage or micro-batch that the schedule does not have.
    #[error(
        "{at} is beyond the schedule's {stages} stages and {micro_batches} micro-batches: remove it \
         or raise the count"
    )]
    OutOfRange {
        /// The action.
        at: Place,
        /// The number of stages.
        stages: usize,
        /// The number of micro-batches.
        micro_batches: usize,
    },
    /// An action that the schedule's mode or form does not have.
    #[error("{at} is not allowed in a {mode} schedule that is {form}: remove it")]
    NotAllowed {
        /// The action.
        at: Place,
        /// The schedule's mode.
        mode: ScheduleMode,
        /// The schedule's form.
        form: Form,
    },
    /// A sum or a gather in a step without replicas.
    #[error("{at} needs replicas, and the step has none: remove it")]
    NoReplicas {
        /// The action.
        at: Place,
    },
    /// An action in the list of a rank that does not run its stage.
    #[error("{at} belongs on rank {expected}, which runs its stage: move it there")]
    WrongRank {
        /// The action.
        at: Place,
        /// The rank of its stage.
        expected: RankIndex,
    },
    /// The same action twice.
    #[error("{at} is already at position {first}: remove one of them")]
    Duplicate {
        /// The second action.
        at: Place,
        /// The position of the first.
        first: usize,
    },
    /// A whole backward and a part of it for the same micro-batch.
    #[error("{at} repeats a part of {whole}: keep `B`, or `I` and `W`")]
    TwoBackwards {
        /// The part.
        at: Place,
        /// The whole backward.
        whole: Box<Place>,
    },
    /// A required action is missing.
    #[error("rank {rank} lacks `{action}`: add it to the list")]
    Missing {
        /// The rank that runs the action's stage.
        rank: RankIndex,
        /// The action.
        action: Action,
    },
    /// A message of no edge between two ranks.
    #[error(
        "{at} is not a message of this plan: remove it, or lower the schedule with the plan's \
         dependencies"
    )]
    UnknownMessage {
        /// The send or receive.
        at: Place,
    },
    /// A send without its receive, or a receive without its send.
    #[error("{at} has no counterpart: rank {rank} lacks `{missing}`; add it or lower again")]
    Unpaired {
        /// The half that exists.
        at: Place,
        /// The rank that lacks the other half.
        rank: RankIndex,
        /// The other half.
        missing: Box<Action>,
    },
    /// Two actions of one rank in the wrong order.
    #[error("{early} is before {late}: {rule}; {}", rule.way_out())]
    OutOfOrder {
        /// The action that is too early.
        early: Place,
        /// The action that has to be before it.
        late: Box<Place>,
        /// The rule that requires the order.
        rule: Rule,
    },
    /// An overlapped pair that is not a forward and a backward of one rank.
    #[error(
        "{at} is not a pair: an overlapped pair is a forward and then a backward, of stages of one rank"
    )]
    Overlap {
        /// The pair.
        at: Place,
    },
    /// A rank exceeds its memory limit.
    #[error(
        "{at} makes the rank hold {bytes} bytes, and {limit} is its limit: run a backward before it, \
         or take a schedule with fewer micro-batches in flight"
    )]
    Memory {
        /// The first action that exceeds the limit.
        at: Place,
        /// The bytes held while it runs.
        bytes: u64,
        /// The rank's limit.
        limit: u64,
    },
    /// Costs for another number of stages.
    #[error("there are costs of {found} stages for a schedule of {expected}: give one per stage")]
    Costs {
        /// The schedule's number of stages.
        expected: usize,
        /// The number of costs.
        found: usize,
    },
    /// Ranks that wait for each other in a cycle.
    #[error(
        "deadlock{}, no rank of this cycle can continue: {}; move one of the awaited actions \
             before the action at which its own rank waits",
        link.words(),
        cycle_text(cycle)
    )]
    Deadlock {
        /// The cycle: each rank waits for the next, the last for the first.
        cycle: Vec<Wait>,
        /// When the sends of the cycle wait.
        link: LinkModel,
    },
}

/// Returns the text of a deadlock, one clause per rank.
fn cycle_text(cycle: &[Wait]) -> String {
    let clause = |wait: &Wait| format!("{} waits for {}", wait.waiting, wait.awaited);
    cycle.iter().map(clause).collect::<Vec<_>>().join(", ")
}

/// An error of [`auto`](crate::auto()).
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum AutoError {
    /// The stages, the map, the dependencies or the costs are inconsistent, or the edges form a
    /// cycle.
    #[error("there is no schedule for these stages")]
    Verify(#[from] VerifyError),
    /// Programs that wait for each other's weight gradients, which no list can run.
    #[error("the edges of the stages form a cycle: remove one of them")]
    Circle,
    /// A rank's limit is below what a single micro-batch needs.
    ///
    /// `needed` is what the rank holds with one micro-batch at a time. No schedule needs less if
    /// every stage's backward comes after the forwards of all stages, as in a chain.
    #[error(
        "rank {rank} holds {needed} bytes with one micro-batch in flight, and {limit} is its limit: \
         make the micro-batches smaller, give the rank fewer layers, or raise its limit"
    )]
    Memory {
        /// The lowest such rank.
        rank: RankIndex,
        /// The bytes of its stages and of one micro-batch.
        needed: u64,
        /// The rank's limit in bytes.
        limit: u64,
    },
}
