//! Events of a session, and their handlers.

use std::path::PathBuf;
use std::time::Duration;

use tinderbox_pipeline::{Recovered, StepOutput};

use super::position::Position;
use super::stop::Interruption;
use super::validation::Validation;
use crate::checkpoints::SkippedCheckpoint;

/// An event of a session.
#[derive(Debug)]
#[non_exhaustive]
#[allow(
    clippy::large_enum_variant,
    reason = "an event is created once and lent to the handlers"
)]
pub enum Event {
    /// The session has restored a checkpoint: before the training, or because the state of lost processes is lost.
    Resumed {
        /// The error after which the training goes back, with its causes; `None` before the training.
        reason: Option<String>,
        /// The number of training steps done.
        step: u64,
        /// The position in the data.
        position: Position,
        /// The checkpoint.
        dir: PathBuf,
        /// The newer, damaged checkpoints, newest first.
        skipped: Vec<SkippedCheckpoint>,
    },
    /// A training begins or continues.
    ///
    /// If the process with rank 0 is lost, the next process with rank 0 gets this event during the training.
    Started {
        /// The number of training steps done.
        step: u64,
        /// The position in the data.
        position: Position,
        /// The end of the training.
        until: Until,
    },
    /// A training step is done.
    Step {
        /// The number of training steps done, this step included.
        step: u64,
        /// The position in the data after the step.
        position: Position,
        /// The loss of the batch.
        loss: f64,
        /// The learning rate of all parameters that are in no group.
        rate: f64,
        /// The samples of the batch.
        samples: u64,
        /// The time of the step, including the load of its batch.
        took: Duration,
        /// The result of the step.
        output: StepOutput,
    },
    /// The model was evaluated.
    Evaluated {
        /// The number of training steps done.
        step: u64,
        /// The result.
        validation: Validation,
    },
    /// A checkpoint is saved, or a save [in the background](crate::Checkpoints::in_background) has begun.
    Saved {
        /// The number of training steps done.
        step: u64,
        /// The checkpoint.
        dir: PathBuf,
    },
    /// Processes were lost, and the other processes continue.
    Recovered(Recovered),
    /// An epoch has ended.
    EpochEnded {
        /// The epoch, counted from 0.
        epoch: u64,
        /// The samples of the epoch.
        samples: u64,
        /// The number of training steps done.
        step: u64,
    },
    /// The training was interrupted, and is saved if the session has checkpoints.
    Interrupted {
        /// The number of training steps done.
        step: u64,
        /// The position in the data.
        position: Position,
        /// The reason.
        by: Interruption,
        /// The checkpoint, if the session has checkpoints.
        dir: Option<PathBuf>,
    },
    /// The training has reached its end, and is saved if the session has checkpoints.
    Finished {
        /// The number of training steps done.
        step: u64,
        /// The position in the data.
        position: Position,
    },
}

/// The end of a training. With several limits, the limit that is reached first ends it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Until {
    /// The number of training steps, including the steps before a resume.
    pub steps: Option<u64>,
    /// The number of epochs, including the epochs before a resume.
    pub epochs: Option<u64>,
}

/// Handles the events of a session: a closure `|event: &Event| ...`, or a type such as `Printer` (feature `printer`).
pub trait EventHandler {
    /// Handles an event. The session waits for it.
    fn handle(&mut self, event: &Event);

    /// Returns whether the handler gets the events of every process of a [`World`](crate::World). By default, it gets only the
    /// events of the process with rank 0.
    fn is_for_all(&self) -> bool {
        false
    }
}

impl<F: FnMut(&Event)> EventHandler for F {
    fn handle(&mut self, event: &Event) {
        self(event);
    }
}
