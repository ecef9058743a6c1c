//! The work of the ranks for a step or an evaluation, and their reports.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;

use serde::{Deserialize, Serialize};
use tinderbox_fake::DynTensor;

use super::learning_rates::StepRates;
use super::program::{CutProgram, RoundCarry};
use crate::lists::StepLists;
use crate::schedule::{MicroBatchIndex, RankTimeline, StageIndex};
use crate::sum::Groups;

/// One micro-batch of a round.
#[derive(Debug)]
pub(crate) struct MicroInput {
    /// The programs for its shapes.
    pub(crate) cut: Arc<CutProgram>,
    /// Its tensors.
    pub(crate) inputs: Vec<DynTensor>,
    /// Its number of samples.
    pub(crate) samples: usize,
    /// Its weight in the loss, times the loss scale.
    pub(crate) weight: f64,
}

/// A training step or an evaluation.
#[derive(Debug)]
pub(crate) struct Round {
    /// The number of earlier steps and evaluations since the ranks were started.
    pub(crate) number: u64,
    /// The training step of the random values.
    pub(crate) step: u32,
    /// The learning rates; `None` in an evaluation.
    pub(crate) rates: Option<Arc<StepRates>>,
    /// The loss scale, which is divided out of the gradients.
    pub(crate) loss_scale: Option<f64>,
    /// The part of each replica.
    pub(crate) parts: Vec<ReplicaPart>,
    /// The micro-batches, in groups.
    pub(crate) groups: Groups,
    pub(crate) micro_batches: MicroBatches,
    /// Whether the loss of the batch is a sum.
    pub(crate) is_sum: bool,
    /// The numbers of the cuts that ranks keep loaded; the cuts of the micro-batches are among them.
    pub(crate) kept: BTreeSet<u64>,
    pub(crate) carries: RoundCarries,
    /// The beginning of the round, if it is measured.
    pub(crate) epoch: Option<Instant>,
}

impl Round {
    /// A micro-batch by its index among the micro-batches of all replicas; this process has it.
    pub(crate) fn micro_batch(&self, index: usize) -> &MicroInput {
        &self.micro_batches.own[index - self.micro_batches.first]
    }

    /// The programs of each micro-batch of a part of the round.
    pub(crate) fn cuts(&self, part: &ReplicaPart) -> impl Iterator<Item = &CutProgram> {
        let of_part = part.first..part.first + part.lists.schedule.micro_batches;
        of_part.map(|index| &*self.micro_batch(index).cut)
    }
}

/// The micro-batches that a process has: all micro-batches, or only the ones of its replica if it passes a share.
#[derive(Debug)]
pub(crate) struct MicroBatches {
    pub(crate) own: Vec<MicroInput>,
    /// The index of the first of them among the micro-batches of all replicas.
    pub(crate) first: usize,
}

/// The carried values of a round.
#[derive(Debug, Default)]
pub(crate) struct RoundCarries {
    /// The carry whose values the round reads and replaces.
    pub(crate) used: Option<RoundCarry>,
    /// The numbers of the carries that still exist.
    pub(crate) existing: BTreeSet<u64>,
    /// Bytes of the values of all other carries.
    pub(crate) other_bytes: u64,
}

/// The part of a round that a replica runs.
#[derive(Debug)]
pub(crate) struct ReplicaPart {
    /// The lists of its ranks, whose micro-batches count from 0.
    pub(crate) lists: Arc<StepLists>,
    /// Its first micro-batch.
    pub(crate) first: usize,
}

impl ReplicaPart {
    /// The index of a micro-batch of the lists among the micro-batches of all replicas.
    pub(crate) fn index(&self, micro_batch: MicroBatchIndex) -> usize {
        self.first + micro_batch.index()
    }
}

/// The report of a rank, and the tensors of its named outputs, in the order of their names.
pub(crate) type Reported = (RankReport, Vec<DynTensor>);

/// The report of a rank after a round.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct RankReport {
    /// The loss of each micro-batch, if this rank computes it.
    pub(crate) losses: Vec<(usize, Option<f64>)>,
    /// The micro-batch and the name of each output that this rank computes.
    pub(crate) outputs: Vec<(usize, String)>,
    /// The norm of all gradients, if ranks need it.
    pub(crate) gradient_norm: Option<f64>,
    /// The stage and the place of the parameter of each piece that it updates on the CPU, with the sums of squares of its
    /// gradient, if ranks do not need the norm.
    pub(crate) squares: Vec<(StageIndex, usize, Vec<f64>)>,
    /// The reason for stopping before the update: the positions of gradients that are not finite, in
    /// the order in which norms are added. Empty if only the loss is not finite.
    pub(crate) stopped: Option<Vec<usize>>,
    /// The time of each action, if the round was measured.
    pub(crate) timeline: Option<RankTimeline>,
    /// The newest version of which its process keeps all snapshots that it has to keep.
    pub(crate) newest_backup: u64,
}
