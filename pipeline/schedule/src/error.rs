//! Errors of a schedule, which name the action.

use thiserror::Error;
use tinderbox_ids::{RankIndex, StageIndex};

use crate::action::Action;
use crate::dependencies::{Edge, Tie};
use crate::link_model::LinkModel;
use crate::lists::{Form, Place, ScheduleMode};
use crate::verify::rules;

/// One step of a deadlock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wait {
    /// The action at which a rank waits.
    pub waiting: Place,
    /// The action of another rank that it waits for, and that this rank has not reached.
    pub awaited: Place,
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
    #[error(
        "{early} is before {late}: {rule}; move the first after the second{}",
        alternative(rule)
    )]
    OutOfOrder {
        /// The action that is too early.
        early: Place,
        /// The action that has to be before it.
        late: Box<Place>,
        /// The rule that requires the order.
        rule: &'static str,
    },
    /// An overlapped pair that is not a forward and a backward of one rank.
    #[error(
        "{at} is not a pair: an overlapped pair is a forward and then a backward, of stages of one rank"
    )]
    Overlap {
        /// The pair.
        at: Place,
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
        /// The model of the links.
        link: LinkModel,
    },
}

/// Returns another correction of two actions in the wrong order, for the rules that have one.
fn alternative(rule: &str) -> &'static str {
    match rule {
        rules::GRADIENT_ORDER => {
            ", or number the micro-batches in the order of the backwards, which must be the same on all stages"
        }
        rules::STATE_ORDER => {
            ", or use a schedule with one order of micro-batches for forwards and backwards, such as `looped-bfs` for \
             PyTorch's LoopedBFS"
        }
        _ => "",
    }
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
