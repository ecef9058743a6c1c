//! What the driver gives the ranks for a step or an evaluation, and what they report.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;

use tinderbox_fake::DynTensor;

use super::carry::RoundCarry;
use super::clip::SquareSums;
use super::learning_rates::LearningRates;
use super::stage::CutProgram;
use super::streamed::Pass;
use crate::lists::StepLists;
use crate::schedule::{MicroBatchIndex, RankTimeline, StageIndex};
use crate::sum::Groups;

/// One micro-batch of a round.
#[derive(Debug)]
pub(super) struct MicroInput {
    /// The programs for its shapes.
    pub(super) cut: Arc<CutProgram>,
    /// Its tensors.
    pub(super) inputs: Vec<DynTensor>,
    /// Its number of samples.
    pub(super) samples: usize,
    /// Its weight in the loss, times the loss scale.
    pub(super) weight: f64,
}

/// A training step or an evaluation.
#[derive(Debug)]
pub(super) struct Round {
    /// The number of earlier steps and evaluations.
    pub(super) round: u64,
    /// The training step of the random values.
    pub(super) step: u32,
    /// The learning rates; unused in an evaluation.
    pub(super) lr: LearningRates,
    /// The loss scale, which is divided out of the gradients.
    pub(super) loss_scale: Option<f64>,
    /// What each replica runs.
    pub(super) parts: Vec<Part>,
    /// The micro-batches, in groups.
    pub(super) groups: Groups,
    /// The micro-batches that this process has: the micro-batches of all replicas, or its own if it passes a share.
    pub(super) micro_batches: Vec<MicroInput>,
    /// The index of the first of them among the micro-batches of all replicas.
    pub(super) first: usize,
    /// Whether the loss of the batch is a sum.
    pub(super) is_sum: bool,
    /// The numbers of the cuts that ranks keep loaded, among them the cuts of the micro-batches.
    pub(super) kept: BTreeSet<u64>,
    /// The carried values that it reads and replaces.
    pub(super) carry: Option<RoundCarry>,
    /// The numbers of the carries that still exist.
    pub(super) carries: BTreeSet<u64>,
    /// What stays in memory, if the stages are streamed.
    pub(super) pass: Option<Arc<Pass>>,
    /// The beginning of the round, if it is measured.
    pub(super) epoch: Option<Instant>,
}

impl Round {
    /// A micro-batch by its index among the micro-batches of all replicas; this process has it.
    pub(super) fn micro_batch(&self, index: usize) -> &MicroInput {
        &self.micro_batches[index - self.first]
    }
}

/// What a replica runs of a round.
#[derive(Debug)]
pub(super) struct Part {
    /// The lists of its ranks, whose micro-batches count from 0.
    pub(super) lists: Arc<StepLists>,
    /// Its first micro-batch.
    pub(super) first: usize,
}

impl Part {
    /// The index of a micro-batch of the lists among the micro-batches of all replicas.
    pub(super) fn index(&self, micro_batch: MicroBatchIndex) -> usize {
        self.first + micro_batch.index()
    }
}

/// The report of a rank to the driver after a round.
#[derive(Debug, Default)]
pub(super) struct RoundReport {
    /// The loss of each micro-batch, if this rank computes it.
    pub(super) losses: Vec<(usize, DynTensor)>,
    /// The named outputs of each micro-batch that this rank computes.
    pub(super) outputs: Vec<(usize, String, DynTensor)>,
    /// The norm of all gradients, if ranks need it.
    pub(super) gradient_norm: Option<f64>,
    /// The squares of the gradients of the pieces of each stage that it updates, with the places of their parameters, on
    /// the CPU, if ranks do not need the norm.
    pub(super) squares: Vec<(StageIndex, Vec<usize>, SquareSums)>,
    /// The reason for stopping before the update: the positions of gradients that are not finite, in
    /// the order in which norms are added. Empty if only the loss is not finite.
    pub(super) stopped: Option<Vec<usize>>,
    /// The time of each action, if the round was measured.
    pub(super) timeline: Option<RankTimeline>,
}
