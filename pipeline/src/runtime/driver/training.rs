//! Training steps and evaluations, of whole batches or of shares: of a share, each process has only the samples of its replica.

use std::collections::BTreeMap;
use std::hash::Hasher;
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use serde::{Deserialize, Serialize};
use tinderbox_fake::Mode;
use tinderbox_world::with_causes;
use twox_hash::XxHash3_64;

use super::batches::{Batches, MicroBatch, Work, check_samples, split_and_run, weights};
use super::carry::Carry;
use super::driver::{Condition, Driver};
use super::output::{Evaluation, collect};
use crate::batch::size_of_part;
use crate::error::Result;
use crate::runtime::learning_rates::StepRates;
use crate::runtime::program::CutProgram;
use crate::runtime::ranks::{Notice, To, digest_of};
use crate::runtime::round::{MicroBatches, MicroInput, Round, RoundCarries};
use crate::schedule::RankIndex;
use crate::{ActionError, BatchError, LossOver, PipelineError, ScheduleChoice, StepError};

impl Driver {
    /// Runs a training step. A share is the number of samples of a batch if each process has only its own part.
    pub(super) fn step(
        &mut self,
        rates: &Arc<StepRates>,
        batches: &dyn Batches,
        share: Option<usize>,
    ) -> Result<Evaluation> {
        // First, so that the others notice a call that only this process refuses.
        self.counts.calls += 1;
        if self.settings.optimizers.is_none() {
            return Err(StepError::NoOptimizer.into());
        }
        self.check_not_averaged()?;
        check_rates(rates)?;
        let step = self.state.step;
        let output = match share {
            None => self.run_batches(rates, batches)?,
            Some(samples) => self.run_share(rates, batches, samples)?,
        };
        if let Some(gradients) = &output.stopped {
            return Err(self.not_finite(step, &output, gradients).into());
        }
        if let Some(scale) = &mut self.state.loss_scale {
            scale.after_step(!output.skipped);
        }
        self.state.step = step + 1;
        self.state.last_rates = Some(rates.clone());
        self.record_memory()?;
        Ok(output)
    }

    fn not_finite(&self, step: u64, output: &Evaluation, gradients: &[usize]) -> StepError {
        let distinct = self.table.distinct().enumerate();
        let wrong = distinct.filter(|(at, _)| gradients.contains(at));
        StepError::NotFinite {
            step,
            losses: output.losses_not_finite().collect(),
            gradients: wrong.map(|(_, parameter)| parameter.path.clone()).collect(),
        }
    }

    /// Splits each batch into the micro-batches of the pipeline, or into fewer if it has fewer samples
    /// and the schedule is not for a fixed number, and runs them.
    fn run_batches(&mut self, rates: &Arc<StepRates>, batches: &dyn Batches) -> Result<Evaluation> {
        let is_written = matches!(self.programs.choice, ScheduleChoice::Written(_));
        let most = (self.options.micro_batches, self.options.samples, is_written);
        split_and_run(batches, most, |parts, counts| {
            let mut output = self.run_whole(Some(rates), parts, None)?;
            output.batches = counts;
            Ok(output)
        })
    }

    /// Runs the forward of a batch alone, with a carry if there is one.
    pub(crate) fn evaluate(
        &mut self,
        batch: &dyn Batches,
        carry: Option<&mut Carry>,
    ) -> Result<Evaluation> {
        self.counts.calls += 1;
        let samples = batch.samples()?.into_iter();
        let counts = samples.map(|samples| self.options.micro_batches.min(samples));
        let counts: Vec<usize> = counts.collect();
        self.run_whole(None, batch.split(Mode::Inference, &counts)?, carry)
    }

    /// Runs all micro-batches of a round, which this process has. With learning rates, it trains.
    fn run_whole(
        &mut self,
        rates: Option<&Arc<StepRates>>,
        parts: Vec<MicroBatch<'_>>,
        carry: Option<&mut Carry>,
    ) -> Result<Evaluation> {
        let work = self.prepare(parts, 0)?;
        self.run(rates, work, true, carry)
    }

    /// Checks that a round can run, and returns the step of its random values.
    fn random_step(&self) -> Result<u32> {
        self.check_condition()?;
        let step = self.state.step;
        Ok(u32::try_from(step).map_err(|_| StepError::StepOverflow { step })?)
    }

    /// Loads the programs of micro-batches, checks their indices, and computes what they count.
    fn prepare(&mut self, parts: Vec<MicroBatch<'_>>, first: usize) -> Result<Work> {
        let context = (self.settings.seed, self.random_step()?);
        let prepared = self.programs.prepare(context, parts, first);
        prepared.inspect_err(|error| {
            // A batch that can't be read means that its device has failed.
            if let PipelineError::Step(StepError::MicroBatch { source, .. }) = error
                && !matches!(**source, ActionError::IndexOutOfRange { .. })
            {
                self.condition = Condition::Stopped;
            }
        })
    }

    /// Runs a round, and combines the reports of all ranks. With learning rates, it trains.
    fn run(
        &mut self,
        rates: Option<&Arc<StepRates>>,
        work: Work,
        announces: bool,
        carry: Option<&mut Carry>,
    ) -> Result<Evaluation> {
        let step = self.random_step()?;
        let used = carry.as_ref().map(|carry| carry.check(&work.0.own));
        let used = used.transpose().map_err(StepError::from)?;
        let (mut round, weights) = self.round(rates, work, step)?;
        if announces {
            self.announce(rates, &round.micro_batches.own, None)?;
        }
        let request = match rates {
            None => "run an evaluation",
            Some(_) => {
                self.check_unchanged()?;
                "run a training step"
            }
        };
        round.carries = self.carries.of_round(used);
        round.epoch = self.settings.measure.then(Instant::now);
        let round = Arc::new(round);
        self.counts.rounds += 1;
        let reports = self.ranks.run(&round, request)?;
        let reports = self.reports_of_all(reports)?;
        if let Some(carry) = carry {
            carry.advance(&round.micro_batches.own);
        }
        let output = collect(&round, reports, &weights, &self.programs.layout.norm_order);
        if !output.is_finite() {
            tracing::warn!(
                step,
                losses = ?output.micro_batch_losses,
                gradient_norm = output.gradient_norm,
                skipped = output.skipped,
                "the loss or the norm of the gradients is not finite"
            );
        }
        Ok(output)
    }

    /// The round of micro-batches, without carries and its beginning, and the weight of each micro-batch.
    fn round(
        &mut self,
        rates: Option<&Arc<StepRates>>,
        (mut micro_batches, counts): Work,
        step: u32,
    ) -> Result<(Round, Vec<f64>)> {
        let (weights, loss_scale) = (weights(counts)?, self.loss_scale(rates));
        let MicroBatches { own, first } = &mut micro_batches;
        for (micro, weight) in own.iter_mut().zip(&weights[*first..]) {
            micro.weight = weight * loss_scale.unwrap_or(1.0);
        }
        // This process has no programs of other shares, and does not run their lists: its own programs replace them. Each
        // process certifies the lists of its own replica.
        let stand_in = match own.first() {
            Some(micro) => micro.cut.clone(),
            None => self.programs.example()?,
        };
        let cuts = (0..weights.len()).map(|k| {
            let own = k.checked_sub(*first).and_then(|at| own.get(at));
            own.map_or(&*stand_in, |micro| &*micro.cut)
        });
        let cuts: Vec<&CutProgram> = cuts.collect();
        let mode = rates.map_or(Mode::Inference, |_| Mode::Training);
        let parts = self.programs.parts(mode, &cuts)?;
        let round = Round {
            number: self.counts.rounds,
            step,
            rates: rates.cloned(),
            loss_scale,
            parts,
            groups: self.programs.groups(weights.len()),
            is_sum: matches!(stand_in.loss_over, LossOver::Sum),
            micro_batches,
            kept: self.programs.kept(),
            carries: RoundCarries::default(),
            epoch: None,
        };
        Ok((round, weights))
    }

    /// Notifies the other processes of the round that this one is about to run.
    fn announce(
        &self,
        rates: Option<&Arc<StepRates>>,
        micro_batches: &[MicroInput],
        of_share: Option<usize>,
    ) -> Result<()> {
        if self.ranks.own().is_none() {
            return Ok(());
        }
        let notice = Notice::new(
            (self.counts.calls, self.state.step),
            rates.is_some(),
            (micro_batches, of_share),
            self.digest_of_settings(rates),
            self.options.checks_batches,
        );
        let notice = notice.map_err(|source| BatchError::Unread { source })?;
        self.ranks.announce(notice);
        Ok(())
    }

    /// A digest of the settings of a round that are the same in all processes, without the batch.
    fn digest_of_settings(&self, rates: Option<&Arc<StepRates>>) -> u64 {
        let mut hasher = XxHash3_64::with_seed(self.state.changes);
        hasher.write_u64(self.loss_scale(rates).unwrap_or(1.0).to_bits());
        for parameter in self.table.iter() {
            let rate = rates.map_or(0.0, |rates| rates.of(&parameter.path));
            hasher.write_u64(rate.to_bits());
        }
        hasher.finish()
    }

    /// The loss scale of a round; `None` in an evaluation.
    fn loss_scale(&self, rates: Option<&Arc<StepRates>>) -> Option<f64> {
        let scale = self.state.loss_scale.filter(|_| rates.is_some());
        scale.map(|scale| scale.factor())
    }

    /// The samples that the stages of this process read, of a batch of this many.
    pub(crate) fn share(&self, samples: usize) -> Range<usize> {
        let count = self.options.micro_batches.min(samples);
        let own = self.own_micro_batches(count);
        let before = |end: usize| (0..end).map(|k| size_of_part(samples, count, k)).sum();
        before(own.start)..before(own.end)
    }

    /// The micro-batches of this process.
    fn own_micro_batches(&self, count: usize) -> Range<usize> {
        let layout = &self.programs.layout;
        let (own, replicas) = (self.ranks.own(), layout.replicas);
        match own.map(|own| layout.place_of(own)) {
            None => 0..count,
            // It waits until another process is lost.
            Some((replica, _)) if replica >= replicas => 0..0,
            Some((replica, _)) => self.programs.groups(count).of_replica(replica, replicas),
        }
    }

    /// Runs a training step over the share of this process of a batch of this many samples.
    fn run_share(
        &mut self,
        rates: &Arc<StepRates>,
        share: &dyn Batches,
        samples: usize,
    ) -> Result<Evaluation> {
        if samples == 0 {
            return Err(PipelineError::from(BatchError::Empty));
        }
        check_samples(self.options.samples, samples)?;
        self.random_step()?;
        let count = self.options.micro_batches.min(samples);
        // Before this process waits for the counts of the others.
        self.announce(Some(rates), &[], Some(samples))?;
        let work = self.prepare_share(share, samples);
        let work = self.counts_of_all(work, count)?;
        self.run(Some(rates), work, false, None)
    }

    /// Splits a share into the micro-batches of this process, and loads their programs.
    fn prepare_share(&mut self, share: &dyn Batches, samples: usize) -> Result<Work> {
        let own = self.own_micro_batches(self.options.micro_batches.min(samples));
        let mut parts = Vec::new();
        // A share without samples may be any batch.
        if !own.is_empty() {
            let (expected, found) = (self.share(samples).len(), share.samples()?[0]);
            if expected != found {
                return Err(PipelineError::from(BatchError::Share { expected, found }));
            }
            parts = share.split(Mode::Training, &[own.len()])?;
        }
        self.prepare(parts, own.start)
    }

    /// Sends the counts of the micro-batches of this process to the others, or the reason why its share can't be used.
    /// Returns the counts of all.
    fn counts_of_all(&mut self, own: Result<Work>, count: usize) -> Result<Work> {
        let values = self.options.checks_batches;
        let own = own.and_then(|(micro_batches, counts)| {
            let digest = digest_of(&micro_batches.own, values);
            let digest = digest.map_err(|source| BatchError::Unread { source })?;
            let over = micro_batches.own.first();
            let report = ShareReport {
                first: micro_batches.first,
                counts,
                over: over.map(|micro| kind(&micro.cut.loss_over)),
                digest,
            };
            Ok((micro_batches, report))
        });
        let report = own.as_ref().map(|(_, report)| report.clone());
        let report = report.map_err(|error| with_causes(error));
        let all = self.ranks.exchange(To::All, report, Vec::new())?;
        let (micro_batches, own) = own?;
        let mut known: BTreeMap<usize, u64> = BTreeMap::new();
        let mut over = own.over;
        let mut counts = vec![None; count];
        for (rank, (report, _)) in all.into_iter().enumerate() {
            let rank = RankIndex::new(rank);
            let report = report.map_err(|reason| BatchError::ShareElsewhere { rank, reason })?;
            let first = report.first;
            if over.is_some() && report.over.is_some() && over != report.over {
                return Err(StepError::MixedLosses { micro_batch: first }.into());
            }
            over = over.or(report.over);
            if report.counts.is_empty() {
                continue;
            }
            // The ranks of a replica have the same share.
            if *known.entry(first).or_insert(report.digest) != report.digest {
                return Err(PipelineError::from(BatchError::OtherShare { rank }));
            }
            let places = counts.iter_mut().skip(first).zip(report.counts);
            places.for_each(|(place, count)| *place = count);
        }
        Ok((micro_batches, counts))
    }
}

/// The report of a share for the other processes.
#[derive(Clone, Serialize, Deserialize)]
struct ShareReport {
    first: usize,
    counts: Vec<Option<f64>>,
    /// The kind of the loss; `None` for a share without samples.
    over: Option<u8>,
    digest: u64,
}

/// Refuses rates that would make parameters NaN, or ascend the gradient.
fn check_rates(rates: &StepRates) -> Result<(), StepError> {
    let others = rates.others.iter();
    let others = others.map(|(path, rate)| (Some(path), *rate));
    let mut all = [(None, rates.base)].into_iter().chain(others);
    match all.find(|(_, rate)| !(rate.is_finite() && *rate >= 0.0)) {
        None => Ok(()),
        Some((path, rate)) => Err(StepError::LearningRate {
            rate,
            path: path.cloned(),
        }),
    }
}

fn kind<C>(over: &LossOver<C>) -> u8 {
    match over {
        LossOver::Sum => 0,
        LossOver::Samples => 1,
        LossOver::Count(_) => 2,
    }
}
