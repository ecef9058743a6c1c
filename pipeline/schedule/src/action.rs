//! The actions in the list of a rank.

use std::collections::BTreeMap;
use std::slice;

use serde::{Deserialize, Serialize};
use tinderbox_ids::{MicroBatchIndex, StageIndex};

use crate::dependencies::{Edge, Tie};
use crate::task::{Compute, Task};

/// A message between two ranks, identified by the name under which it is sent and received.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Message {
    /// All values of one edge for one micro-batch.
    Values {
        /// The program that computes the values and the one that reads them.
        edge: Edge,
        /// The micro-batch that the values belong to.
        micro_batch: MicroBatchIndex,
    },
    /// The updated values of the parameters that two stages share, once per step.
    Tie(Tie),
    /// The sums of squares of a stage's gradients, once per step, for a rank that clips by the norm of
    /// all gradients. Every stage of the receiving rank uses them; `to` is its lowest stage.
    Norm {
        /// The stage whose gradients are summed.
        from: StageIndex,
        /// The lowest stage of the rank that receives.
        to: StageIndex,
    },
}

impl Message {
    /// Returns the stage that sends.
    pub const fn sender(self) -> StageIndex {
        match self {
            Self::Values { edge, .. } => edge.from.stage,
            Self::Tie(tie) => tie.owner,
            Self::Norm { from, .. } => from,
        }
    }

    /// Returns the stage that receives.
    pub const fn receiver(self) -> StageIndex {
        match self {
            Self::Values { edge, .. } => edge.to.stage,
            Self::Tie(tie) => tie.copy,
            Self::Norm { to, .. } => to,
        }
    }

    /// Returns its bytes, by the bytes of each edge; 0 if unknown.
    pub fn bytes(self, message_bytes: &BTreeMap<Edge, u64>) -> u64 {
        match self {
            Self::Values { edge, .. } => message_bytes.get(&edge).copied().unwrap_or(0),
            Self::Tie(_) | Self::Norm { .. } => 0,
        }
    }
}

/// One entry of a rank's list.
///
/// Serialized as text, such as `"2F5"`; the words are listed in the
/// [crate's docs](crate).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
#[non_exhaustive]
pub enum Action {
    /// Runs a program of a stage.
    Compute(Task),
    /// Runs a forward and a backward of two stages of one rank, concurrently if the rank has
    /// threads for both. The forward is first.
    Overlap([Task; 2]),
    /// Passes a message to the link, without blocking.
    Send(Message),
    /// Waits for a message.
    Receive(Message),
    /// Begins the sum of the stage's gradients, which are complete on this rank, over its replicas, without blocking. Does
    /// nothing without other replicas.
    Reduce {
        /// The stage whose gradients are complete on this rank.
        stage: StageIndex,
    },
    /// Waits for the gradients of the other replicas, and sums the part of the stage that this rank updates.
    Sum {
        /// The stage whose gradients are summed.
        stage: StageIndex,
    },
    /// Runs the optimizer on the stage's parameters, once per step. With replicas, on the part that this rank updates,
    /// which it then sends to the other replicas, without blocking.
    Update {
        /// The stage whose parameters are updated.
        stage: StageIndex,
    },
    /// Waits for the parameters that the other replicas have updated.
    Gather {
        /// The stage whose parameters are gathered.
        stage: StageIndex,
    },
}

impl Action {
    /// Creates a compute action.
    pub const fn compute(
        stage: StageIndex,
        compute: Compute,
        micro_batch: MicroBatchIndex,
    ) -> Self {
        Self::Compute(Task::new(stage, compute, micro_batch))
    }

    /// Returns the stage of the action: its rank has the action in its list. An overlapped pair has the stage of its
    /// forward.
    pub const fn stage(&self) -> StageIndex {
        match self {
            Self::Compute(task) | Self::Overlap([task, _]) => task.stage,
            Self::Send(message) => message.sender(),
            Self::Receive(message) => message.receiver(),
            Self::Reduce { stage }
            | Self::Sum { stage }
            | Self::Update { stage }
            | Self::Gather { stage } => *stage,
        }
    }

    /// Returns the micro-batch of the action; `None` for actions that run once per step. An overlapped pair has the
    /// micro-batch of its forward.
    pub const fn micro_batch(&self) -> Option<MicroBatchIndex> {
        match self {
            Self::Compute(task) | Self::Overlap([task, _]) => Some(task.micro_batch),
            Self::Send(Message::Values { micro_batch, .. })
            | Self::Receive(Message::Values { micro_batch, .. }) => Some(*micro_batch),
            _ => None,
        }
    }

    /// Returns the message that the action sends or receives.
    pub(crate) const fn message(&self) -> Option<&Message> {
        match self {
            Self::Send(message) | Self::Receive(message) => Some(message),
            _ => None,
        }
    }

    /// Returns the programs that the action runs: two for an overlapped pair, none if it is not a compute action.
    pub const fn tasks(&self) -> &[Task] {
        match self {
            Self::Compute(task) => slice::from_ref(task),
            Self::Overlap(tasks) => tasks,
            _ => &[],
        }
    }

    /// Returns the programs that the action runs, mutably.
    pub(crate) const fn tasks_mut(&mut self) -> &mut [Task] {
        match self {
            Self::Compute(task) => slice::from_mut(task),
            Self::Overlap(tasks) => tasks,
            _ => &mut [],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_action_belongs_to_its_own_side_of_a_message() {
        let edge = Edge::chain_forward(StageIndex::new(1));
        let message = Message::Values {
            edge,
            micro_batch: MicroBatchIndex::new(4),
        };
        assert_eq!(Action::Send(message).stage(), StageIndex::new(1));
        assert_eq!(Action::Receive(message).stage(), StageIndex::new(2));
        assert_eq!(
            Action::Send(message).micro_batch(),
            Some(MicroBatchIndex::new(4))
        );
        assert!(Action::Send(message).tasks().is_empty());

        let task = |word: &str| word.parse::<Action>().unwrap().tasks()[0];
        let pair = Action::Overlap([task("2F5"), task("1B3")]);
        assert_eq!(pair.stage(), StageIndex::new(2));
        assert_eq!(pair.tasks(), [task("2F5"), task("1B3")]);

        let tie = Message::Tie(Tie {
            owner: StageIndex::new(0),
            copy: StageIndex::new(3),
        });
        assert_eq!(Action::Send(tie).stage(), StageIndex::new(0));
        assert_eq!(Action::Receive(tie).stage(), StageIndex::new(3));
        assert_eq!(Action::Receive(tie).micro_batch(), None);
    }
}
