//! The result of a step or an evaluation: the reports of the ranks, exchanged and combined.

use std::collections::BTreeMap;
use std::fmt;
use std::mem::take;
use std::ops::Range;
use std::time::Duration;

use burn::tensor::{Tensor, kind::Basic};
use tinderbox_deferred::human_bytes;
use tinderbox_fake::{DynTensor, FakeError};
use tinderbox_world::Failure;

use super::driver::{Condition, Driver};
use crate::error::{Result, numbered};
use crate::runtime::points::{Point, reach};
use crate::runtime::ranks::To;
use crate::runtime::round::{Reported, Round};
use crate::schedule::{MicroBatchIndex, RankIndex, Schedule, StageIndex, TimeUnit, Timeline};
use crate::{OutputError, OutputsOn};

/// A named output of the micro-batches that this process has, in their order.
#[derive(Clone, Debug)]
pub(super) struct NamedOutput {
    name: String,
    micro_batches: Vec<usize>,
    values: Vec<DynTensor>,
}

impl NamedOutput {
    /// The output of a range of micro-batches, counted from the first one; `None` for an empty range.
    fn of(&self, range: &Range<usize>) -> Option<Self> {
        let place = |end: usize| self.micro_batches.partition_point(|k| *k < end);
        let places = place(range.start)..place(range.end);
        let micro_batches = self.micro_batches[places.clone()].iter();
        (!places.is_empty()).then(|| Self {
            name: self.name.clone(),
            micro_batches: micro_batches.map(|k| k - range.start).collect(),
            values: self.values[places].to_vec(),
        })
    }
}

/// The sum of losses times their weights. A weight of 0 adds nothing, even if the loss is NaN.
pub(super) fn weighted(losses: &[f64], weights: &[f64]) -> f64 {
    let weighted = losses.iter().zip(weights);
    let weighted = weighted.filter(|(_, weight)| **weight != 0.0);
    weighted.map(|(loss, weight)| loss * weight).sum()
}

/// The result of an evaluation. Its loss is `None` if the forward has none.
pub type Evaluation = StepOutput<Option<f64>>;

/// The result of a training step, or of an [evaluation](Evaluation).
#[derive(Clone, Debug)]
pub struct StepOutput<Loss = f64> {
    /// The loss of the batch: the weighted mean of the losses of its micro-batches, or their sum
    /// ([`Outputs::sum`](crate::Outputs::sum)).
    pub loss: Loss,
    /// The loss of each micro-batch, in order.
    pub micro_batch_losses: Vec<f64>,
    /// The weight of each micro-batch in `loss`: 1 for a sum, otherwise they sum to 1. A weight of 0
    /// adds nothing, whatever the loss.
    pub micro_batch_weights: Vec<f64>,
    /// The norm of all gradients, before they were clipped, after division by the loss scale; not
    /// finite for a skipped step. `None` in an evaluation, and on devices other than the CPU unless a
    /// rank needs it: for [clipping](crate::Clipping::GlobalNorm) by it, a [loss
    /// scale](crate::LossScale), or to [stop](crate::PipelineBuilder::stop_on_non_finite).
    pub gradient_norm: Option<f64>,
    /// Whether the update was skipped because the gradients of a [scaled loss](crate::LossScale) were
    /// not finite.
    pub skipped: bool,
    /// The time of each action of one [replica](crate::Plan::replicas), the first with the most micro-batches; `None` unless
    /// the pipeline [measures](crate::PipelineBuilder::measure).
    pub timeline: Option<Timeline>,
    /// A report for each loss of ranks in this step after which the others [continued](crate::PipelineBuilder::recovery).
    pub recovered: Vec<Recovered>,
    /// The named outputs, in the order of names.
    pub(super) outputs: Vec<NamedOutput>,
    /// The number of micro-batches of each batch.
    pub(crate) batches: Vec<usize>,
    pub(super) is_sum: bool,
    /// The positions of gradients that are not finite, if that or the loss stopped the update.
    pub(crate) stopped: Option<Vec<usize>>,
}

impl From<StepOutput> for Evaluation {
    fn from(output: StepOutput) -> Self {
        let loss = Some(output.loss);
        output.with_loss(loss)
    }
}

impl Evaluation {
    /// The result of a training step, whose forward always has a loss.
    pub(crate) fn of_training(self) -> StepOutput {
        let loss = self.loss.expect("a forward that trains has a loss");
        self.with_loss(loss)
    }
}

impl<Loss> StepOutput<Loss> {
    fn with_loss<Other>(self, loss: Other) -> StepOutput<Other> {
        StepOutput {
            loss,
            micro_batch_losses: self.micro_batch_losses,
            micro_batch_weights: self.micro_batch_weights,
            gradient_norm: self.gradient_norm,
            skipped: self.skipped,
            timeline: self.timeline,
            recovered: self.recovered,
            outputs: self.outputs,
            batches: self.batches,
            is_sum: self.is_sum,
            stopped: self.stopped,
        }
    }

    /// Returns whether the losses of all micro-batches with a weight, and the norm of all gradients if
    /// it is known, are finite: neither NaN nor infinite.
    pub fn is_finite(&self) -> bool {
        self.gradient_norm.is_none_or(f64::is_finite) && self.losses_not_finite().next().is_none()
    }

    /// The losses that are not finite and have a weight, with their micro-batches.
    pub(crate) fn losses_not_finite(&self) -> impl Iterator<Item = (MicroBatchIndex, f64)> {
        let (losses, weights) = (&self.micro_batch_losses, &self.micro_batch_weights);
        let losses = losses.iter().zip(weights).enumerate();
        let wrong = losses.filter(|(_, (loss, weight))| **weight != 0.0 && !loss.is_finite());
        wrong.map(|(micro_batch, (loss, _))| (MicroBatchIndex::new(micro_batch), *loss))
    }

    /// Returns the losses and outputs of each batch of a step, in order; a step over [several
    /// batches](crate::Pipeline::step_accumulated) has more than one. The weights of a batch are of its own micro-batches.
    pub fn of_batches(&self) -> impl Iterator<Item = Evaluation> {
        let mut start = 0;
        self.batches.iter().map(move |count| {
            let of_batch = start..start + count;
            start += count;
            let losses = self.micro_batch_losses.get(of_batch.clone());
            let weights = &self.micro_batch_weights[of_batch.clone()];
            let sum = weights.iter().sum();
            let all: f64 = if self.is_sum { 1.0 } else { sum };
            // A batch without weight has no loss.
            let fraction = |weight: &f64| if all > 0.0 { weight / all } else { 0.0 };
            let weights: Vec<f64> = weights.iter().map(fraction).collect();
            let loss = losses.map(|losses| weighted(losses, &weights));
            let outputs = self.outputs.iter();
            let outputs = outputs.filter_map(|output| output.of(&of_batch));
            Evaluation {
                loss,
                micro_batch_losses: losses.unwrap_or_default().to_vec(),
                micro_batch_weights: weights,
                gradient_norm: self.gradient_norm,
                skipped: self.skipped,
                timeline: None,
                recovered: Vec::new(),
                outputs: outputs.collect(),
                batches: vec![*count],
                is_sum: self.is_sum,
                stopped: None,
            }
        })
    }

    /// Returns the named outputs, one tensor per micro-batch that this process has ([`OutputsOn`]).
    pub fn outputs(&self) -> impl Iterator<Item = (&str, &[DynTensor])> {
        let outputs = self.outputs.iter();
        outputs.map(|output| (output.name.as_str(), output.values.as_slice()))
    }

    /// Returns a named output, one tensor per micro-batch that this process has ([`OutputsOn`]).
    pub fn output(&self, name: &str) -> Option<&[DynTensor]> {
        Some(&self.named(name)?.values)
    }

    fn named(&self, name: &str) -> Option<&NamedOutput> {
        self.outputs.iter().find(|output| output.name == name)
    }

    /// Returns a named output of the whole batch: its tensors of all micro-batches, joined along the first dimension
    /// in their order. Cost: a copy if there are several. With [`OutputsOn::Own`], only the tensors that this process has.
    ///
    /// An output of one element for each micro-batch, such as an accuracy, becomes one element for each.
    ///
    /// # Errors
    ///
    /// When the forward has no such output, or its rank, its kind or its shapes differ.
    pub fn tensor<const D: usize>(&self, name: &str) -> Result<Tensor<D>, OutputError> {
        self.tensor_of(name)
    }

    /// Returns a named output as [`tensor`](Self::tensor) does, of ints or booleans.
    ///
    /// # Errors
    ///
    /// As [`tensor`](Self::tensor).
    pub fn tensor_of<const D: usize, K: Basic>(
        &self,
        name: &str,
    ) -> Result<Tensor<D, K>, OutputError> {
        let output = self.named(name).ok_or_else(|| OutputError::Unknown {
            name: name.to_owned(),
            known: self.outputs().map(|(known, _)| known.to_owned()).collect(),
        })?;
        let typed = output.values.iter().map(|part| part.clone().typed());
        let typed: Result<Vec<Tensor<D, K>>, FakeError> = typed.collect();
        let mut typed = typed.map_err(|source| OutputError::Type {
            name: name.to_owned(),
            source,
        })?;
        let shapes: Vec<[usize; D]> = typed.iter().map(|part| part.dims()).collect();
        let other = shapes.iter().position(|shape| shape[1..] != shapes[0][1..]);
        if let Some(other) = other {
            return Err(OutputError::Shapes {
                name: name.to_owned(),
                first: shapes[0].to_vec(),
                micro_batch: output.micro_batches[other],
                other: shapes[other].to_vec(),
            });
        }
        match typed.len() {
            1 => Ok(typed.remove(0)),
            _ => Ok(Tensor::cat(typed, 0)),
        }
    }
}

impl Driver {
    /// Returns the reports of all ranks, given the reports of this process.
    pub(super) fn reports_of_all(&mut self, mut reports: Vec<Reported>) -> Result<Vec<Reported>> {
        let Some(own) = self.ranks.own() else {
            return Ok(reports);
        };
        reach(Point::Report);
        // In a world, each process has one rank, or waits.
        let (mut report, mut outputs) = reports.pop().unwrap_or_default();
        report.newest_backup = self.kept.as_ref().map_or(0, |kept| kept.newest());
        let is_withheld = self.options.outputs == OutputsOn::Own;
        let withheld = is_withheld.then(|| (take(&mut report.outputs), take(&mut outputs)));
        let exchanged = self.ranks.exchange(To::All, report, outputs);
        let mut reports = exchanged.inspect_err(|_| self.condition = Condition::Stopped)?;
        if let (Some(withheld), Some((report, outputs))) = (withheld, reports.get_mut(own.index()))
        {
            (report.outputs, *outputs) = withheld;
        }
        if let Some(kept) = &mut self.kept {
            kept.of_all = reports.iter().map(|(report, _)| report.newest_backup).min();
        }
        Ok(reports)
    }
}

/// Combines the reports of the ranks, in their order; squared norms are added in the order of the
/// table.
pub(super) fn collect(
    round: &Round,
    reports: Vec<Reported>,
    weights: &[f64],
    norm_order: &[(StageIndex, usize)],
) -> Evaluation {
    let (schedule, timed) = timed(round);
    let mut losses = vec![None; weights.len()];
    let mut outputs: BTreeMap<String, BTreeMap<usize, DynTensor>> = BTreeMap::new();
    let (mut gradient_norm, mut stopped) = (None, None);
    let mut squares: BTreeMap<(StageIndex, usize), Vec<f64>> = BTreeMap::new();
    let mut timelines = Vec::new();
    for (rank, (report, values)) in reports.into_iter().enumerate() {
        for (micro_batch, loss) in report.losses {
            // Another process could report any number.
            if let Some(place) = losses.get_mut(micro_batch) {
                *place = loss;
            }
        }
        // The pieces of a parameter are in the order of the replicas, as the reports are.
        for (stage, place, sums) in report.squares {
            squares.entry((stage, place)).or_default().extend(sums);
        }
        for ((micro_batch, name), value) in report.outputs.into_iter().zip(values) {
            outputs.entry(name).or_default().insert(micro_batch, value);
        }
        gradient_norm = gradient_norm.or(report.gradient_norm);
        stopped = stopped.or(report.stopped);
        timelines.extend(report.timeline.filter(|_| timed.contains(&rank)));
    }
    if gradient_norm.is_none() && !squares.is_empty() {
        let in_order = norm_order.iter();
        let in_order = in_order.map(|of| Some(squares.get(of)?.iter().sum::<f64>()));
        // Unknown if the gradients of some rank are not on the CPU.
        gradient_norm = in_order.sum::<Option<f64>>().map(f64::sqrt);
    }
    let micro_batch_losses: Vec<f64> = losses.into_iter().flatten().collect();
    let has_loss = micro_batch_losses.len() == weights.len();
    let loss = has_loss.then(|| weighted(&micro_batch_losses, weights));
    let outputs = outputs.into_iter().map(|(name, values)| {
        let (micro_batches, values) = values.into_iter().unzip();
        NamedOutput {
            name,
            micro_batches,
            values,
        }
    });
    let timeline = round.epoch.map(|_| Timeline {
        name: schedule.name.clone(),
        unit: TimeUnit::Nanoseconds,
        stage_to_rank: schedule.stage_to_rank.clone(),
        ranks: timelines,
    });
    let skipped = round.loss_scale.is_some() && gradient_norm.is_some_and(|n| !n.is_finite());
    Evaluation {
        loss,
        micro_batch_losses,
        micro_batch_weights: weights.to_vec(),
        gradient_norm,
        skipped,
        timeline,
        recovered: Vec::new(),
        outputs: outputs.collect(),
        batches: vec![weights.len()],
        is_sum: round.is_sum,
        stopped,
    }
}

/// The schedule of the replica whose times are reported, and its ranks. It is the first replica with the most micro-batches.
fn timed(round: &Round) -> (&Schedule, Range<usize>) {
    let schedule = |replica: usize| &round.parts[replica].lists.schedule;
    let replicas = (0..round.parts.len()).rev();
    let busiest = replicas.max_by_key(|replica| schedule(*replica).micro_batches);
    let busiest = busiest.unwrap_or(0);
    let ranks = schedule(busiest).world_size();
    (schedule(busiest), busiest * ranks..(busiest + 1) * ranks)
}

/// A report of lost processes, after which the pipeline continues.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recovered {
    /// The lost processes, in the numbering of the state to which the pipeline goes back.
    pub lost: Vec<RankIndex>,
    /// The first failure.
    pub failure: Failure,
    /// The number of training steps that are done.
    pub step: u64,
    /// The number of completed steps that were repeated.
    pub repeated: u64,
    /// The rank of this process now.
    pub rank: RankIndex,
    /// The number of ranks now.
    pub ranks: usize,
    /// The number of processes that wait until another one is lost.
    pub spares: usize,
    /// The bytes that this process received.
    pub received_bytes: u64,
    /// The time until the remaining processes had agreed on their numbering, since this process noticed the loss.
    pub agreed: Duration,
    /// The time after that until the ranks were started with the kept state.
    pub restored: Duration,
    /// The time until this process continued, since it noticed the loss. The repeated steps are included.
    pub took: Duration,
}

impl fmt::Display for Recovered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.lost[..] {
            [one] if *one == self.failure.rank => write!(f, "{}", self.failure),
            lost => write!(f, "{} are lost ({})", numbered(lost), self.failure),
        }?;
        write!(
            f,
            ": {} ranks and {} spares continue after step {}, with {} steps repeated and {} received by rank \
             {}, in {:.3} s: {:.3} s to agree, {:.3} s to restore the state",
            self.ranks,
            self.spares,
            self.step,
            self.repeated,
            human_bytes(self.received_bytes),
            self.rank,
            self.took.as_secs_f64(),
            self.agreed.as_secs_f64(),
            self.restored.as_secs_f64(),
        )
    }
}
