//! Training steps and evaluations.

use std::any::type_name;
use std::hash::Hasher;
use std::sync::Arc;
use std::time::Instant;

use burn::module::Module;
use burn::optim::lr_scheduler::module_lr_scheduler::ModuleLearningRate;
use tinderbox_fake::{DynTensor, Mode};
use twox_hash::XxHash3_64;

use super::carry::Carry;
use super::learning_rates::{LastRates, LearningRates};
use super::output::{Evaluation, OutputsOn, RankReport, StepOutput};
use super::pipeline::{Condition, Pipeline};
use super::recovery::CallKind;
use super::remote::{Notice, To};
use super::round::{MicroInput, Round, RoundReport};
use super::stage::CutProgram;
use super::weights::weights;
use crate::batch::{Batch, samples_of, split_samples};
use crate::lists::ScheduleChoice;
use crate::schedule::RankIndex;
use crate::trace::LossOver;
use crate::{ActionError, BatchError, PipelineError};

/// The number of steps with the same rate for all parameters after which it is reported.
const EQUAL_RATES: u32 = 3;

/// The micro-batches of a step or an evaluation.
pub(super) struct Work<B> {
    /// Those that this process has, each with its samples; or why it has none.
    pub(super) own: Result<Vec<(B, usize)>, PipelineError>,
    /// The index of the first of them among the micro-batches of all replicas.
    pub(super) first: usize,
    /// The samples of the micro-batches of all replicas.
    pub(super) sizes: Vec<usize>,
    /// The samples of all shares, if this process has only its own.
    pub(super) of_share: Option<usize>,
}

impl<B> Work<B> {
    /// The micro-batches of a batch that this process has whole.
    fn whole(parts: Vec<(B, usize)>) -> Self {
        Self {
            sizes: parts.iter().map(|(_, samples)| *samples).collect(),
            own: Ok(parts),
            first: 0,
            of_share: None,
        }
    }
}

/// The numbers of micro-batches into which each batch of a step may be split, those to try first at the beginning: fewer and
/// fewer if a batch has fewer samples than micro-batches, until the schedule can be generated.
pub(super) fn splits(
    samples: &[usize],
    micro_batches: usize,
    is_written: bool,
) -> Result<impl Iterator<Item = Vec<usize>>, BatchError> {
    let smallest = samples.iter().copied().min().unwrap_or(0);
    let largest = samples.iter().copied().max().unwrap_or(0);
    let is_short = smallest < micro_batches;
    if is_short && is_written {
        return Err(BatchError::TooFewForSchedule {
            samples: smallest,
            micro_batches,
        });
    }
    let most = micro_batches.min(largest);
    let least = if is_short { most.min(1) } else { most };
    let counts = (least..=most).rev();
    Ok(counts.map(move |count| samples.iter().map(|of| count.min(*of)).collect()))
}

/// Splits each batch into its number of micro-batches.
pub(super) fn split_all<B: Batch>(
    batches: &[B],
    samples: &[usize],
    counts: &[usize],
) -> Result<Vec<(B, usize)>, BatchError> {
    let mut parts = Vec::new();
    for ((batch, samples), count) in batches.iter().zip(samples).zip(counts) {
        parts.extend(split_samples(batch, *samples, *count)?);
    }
    Ok(parts)
}

impl<M: Module + Sync + 'static, B: Batch> Pipeline<M, B> {
    /// Runs one training step: the batch is split into micro-batches, their gradients, weighted as
    /// described at [`Outputs`](crate::Outputs), are summed in order, and every rank's optimizer steps
    /// as soon as the gradients of its stage are complete; with clipping by the norm of all gradients,
    /// when all gradients are complete.
    ///
    /// With a [loss scale](crate::LossScale) every rank waits for all others before its update, and a
    /// step whose gradients are not finite updates nothing.
    ///
    /// A batch with fewer samples than micro-batches, such as the last of an epoch, is split into at
    /// most as many as it has samples, the most for which the schedule can be generated; a written
    /// schedule is for a fixed number and refuses it.
    ///
    /// The learning rate is a number, or the value of one of Burn's schedulers at its step. Its groups
    /// match parameters by their paths, not by ids. Burn does not show groups of rates: if all rates of the first steps
    /// are the same, a `tracing` warning says so. Of several groups, one that matches nothing is not noticed.
    ///
    /// # Errors
    ///
    /// When the pipeline has no optimizer, a learning rate is negative, NaN or infinite, the batch
    /// can't be split or traced or has an [index that is out of range](PipelineError::MicroBatch), the
    /// counts that weight the losses are negative, not finite or 0 for the whole batch, or a loss or a
    /// gradient is not finite in a pipeline that [stops](crate::PipelineBuilder::stop_on_non_finite) on
    /// it: the pipeline is then unchanged. When an action fails: the pipeline has then stopped.
    pub fn step(
        &mut self,
        lr: impl Into<ModuleLearningRate>,
        batch: B,
    ) -> Result<StepOutput, PipelineError> {
        let lr = self.watched_rates(lr);
        self.training(move |pipeline| {
            pipeline.train(&lr, |pipeline, lr| {
                pipeline.run_training(lr, std::slice::from_ref(&batch))
            })
        })
    }

    /// Runs one training step over several batches, each split into micro-batches as by
    /// [`step`](Self::step): their gradients, weighted by their share of all of them, are accumulated,
    /// and every rank's optimizer steps once. The schedule covers the micro-batches of all batches, so
    /// the ranks do not drain between two batches; a written schedule must be for the total number of
    /// micro-batches of a [replica](crate::Plan::replicas).
    ///
    /// # Errors
    ///
    /// As [`Pipeline::step`]; [`BatchError::NoSamples`](crate::BatchError::NoSamples) without a batch.
    pub fn step_accumulated(
        &mut self,
        lr: impl Into<ModuleLearningRate>,
        batches: impl IntoIterator<Item = B>,
    ) -> Result<StepOutput, PipelineError> {
        let batches: Vec<B> = batches.into_iter().collect();
        let lr = self.watched_rates(lr);
        self.training(move |pipeline| {
            pipeline.train(&lr, |pipeline, lr| match batches.is_empty() {
                true => Err(PipelineError::from(BatchError::NoBatches)),
                false => pipeline.run_training(lr, &batches),
            })
        })
    }

    /// Makes a step; if ranks are lost, says so in its output.
    pub(super) fn training(
        &mut self,
        step: impl Fn(&mut Self) -> Result<StepOutput, PipelineError> + Send + Sync + 'static,
    ) -> Result<StepOutput, PipelineError> {
        let before = self.recovered().len();
        let mut output = self.recovering(CallKind::Changes, step)?;
        output.recovered = self.recovered()[before..].to_vec();
        Ok(output)
    }

    /// Checks that a step can be trained, runs it, and counts it.
    pub(super) fn train(
        &mut self,
        lr: &ModuleLearningRate,
        run: impl FnOnce(&mut Self, &ModuleLearningRate) -> Result<Evaluation, PipelineError>,
    ) -> Result<StepOutput, PipelineError> {
        // First, so that a call that only this process refuses is noticed by the others.
        self.calls += 1;
        if self.settings.optimizers.is_none() {
            return Err(PipelineError::NoOptimizer);
        }
        self.check_not_averaged()?;
        self.check_rates(lr)?;
        let step = self.step;
        let output = run(self, lr)?;
        if let Some(gradients) = &output.stopped {
            return Err(self.not_finite(step, &output, gradients));
        }
        let output = output.of_training();
        if let Some(scale) = &mut self.loss_scale {
            scale.after_step(!output.skipped);
        }
        self.step = step + 1;
        self.last_rates = Some(LastRates::Given(LearningRates(lr.clone())));
        self.record_memory()?;
        Ok(output)
    }

    /// Returns the rates of a step. If they may have groups, and no parameter has had another rate than the base in a few
    /// steps, warns once: a group that matches nothing has no effect.
    pub(super) fn watched_rates<L: Into<ModuleLearningRate>>(
        &mut self,
        lr: L,
    ) -> ModuleLearningRate {
        let may_have_groups = type_name::<L>() == type_name::<ModuleLearningRate>();
        let rates = LearningRates(lr.into());
        let Some(steps) = self.equal_rates.filter(|_| may_have_groups) else {
            return rates.0;
        };
        let base = rates.0.base();
        let trained = self.model.parameters().iter().filter(|p| p.trainable);
        let differs = { trained }.any(|p| rates.of(&p.path).to_bits() != base.to_bits());
        // At the begin of a warm-up, all rates may be 0.
        self.equal_rates = match (differs, base > 0.0) {
            (true, _) => None,
            (false, true) if steps + 1 == EQUAL_RATES => {
                tracing::warn!(
                    base,
                    steps = EQUAL_RATES,
                    "all parameters have the base learning rate: if the rates have groups, none of them matches a parameter \
                     that trains; groups match the paths of parameters, not ids"
                );
                None
            }
            (false, is_counted) => Some(steps + u32::from(is_counted)),
        };
        rates.0
    }

    /// Refuses rates that would make parameters NaN, or ascend the gradient.
    fn check_rates(&self, lr: &ModuleLearningRate) -> Result<(), PipelineError> {
        let refused = |rate: f64| !(rate.is_finite() && rate >= 0.0);
        if refused(lr.base()) {
            return Err(PipelineError::LearningRate {
                rate: lr.base(),
                path: None,
            });
        }
        let rates = LearningRates(lr.clone());
        let mut paths = self.model.parameters().iter().map(|p| &p.path);
        match paths.find(|path| refused(rates.of(path))) {
            Some(path) => Err(PipelineError::LearningRate {
                rate: rates.of(path),
                path: Some(path.clone()),
            }),
            None => Ok(()),
        }
    }

    fn not_finite(&self, step: u64, output: &Evaluation, gradients: &[usize]) -> PipelineError {
        let distinct = self.model.parameters().iter();
        let distinct = distinct.filter(|parameter| parameter.clone_of.is_none());
        let wrong = distinct
            .enumerate()
            .filter(|(at, _)| gradients.contains(at));
        PipelineError::NotFinite {
            step,
            losses: output.losses_not_finite().collect(),
            gradients: wrong.map(|(_, parameter)| parameter.path.clone()).collect(),
        }
    }

    /// Splits each batch into the micro-batches of the pipeline, or into fewer if it has fewer samples
    /// and the schedule is not for a fixed number, and runs them.
    fn run_training(
        &mut self,
        lr: &ModuleLearningRate,
        batches: &[B],
    ) -> Result<Evaluation, PipelineError> {
        let samples = batches.iter().map(samples_of);
        let samples = samples.collect::<Result<Vec<usize>, _>>()?;
        let is_written = matches!(self.programs.choice(), ScheduleChoice::Written(_));
        let mut first = None;
        for counts in splits(&samples, self.micro_batches, is_written)? {
            let parts = split_all(batches, &samples, &counts)?;
            match self.run(Mode::Training, lr.clone(), Work::whole(parts), None) {
                // Detected before anything ran.
                Err(error @ (PipelineError::Generate(_) | PipelineError::Lists(_))) => {
                    first.get_or_insert(error);
                }
                Ok(mut output) => {
                    output.batches = counts;
                    return Ok(output);
                }
                Err(error) => return Err(error),
            }
        }
        Err(first.unwrap_or(BatchError::NoBatches.into()))
    }

    /// Runs the forward alone, without dropout, and returns the loss and the named outputs. Does not
    /// change the model. The new values of [carried](crate::Carried) parts of the batch are dropped.
    ///
    /// # Errors
    ///
    /// As [`Pipeline::step`]; a batch of fewer samples than micro-batches is split into fewer.
    pub fn evaluate(&mut self, batch: B) -> Result<Evaluation, PipelineError> {
        self.recovering(CallKind::Reads, move |pipeline| {
            pipeline.evaluate_parts(batch.clone(), None)
        })
    }

    /// Runs the forward alone, as [`evaluate`](Self::evaluate) does, with [carried](crate::Carried) values that stay on
    /// the ranks: the first evaluation with a carry reads them from the batch, each later one reads what the evaluation
    /// before it has computed ([`Outputs::carry`](crate::Outputs::carry)). The carried tensors of a later batch
    /// only give names, shapes and dtypes, which must be the same as in the first; its other tensors may have any shapes, such
    /// as a prompt of many tokens and then one token at a time.
    ///
    /// Values depend on the parameters with which they were computed: use a new carry after a training step.
    ///
    /// A value stays on the stage that computes it, and its stage holds the only handle, so an operation that Burn can
    /// run in place does not copy it. It never crosses to another rank or to the driver. Memory: the carried tensors
    /// of each carry, on the ranks. The first batch is read without a copy, so it should not be kept; a tensor that
    /// only gives a shape, and initial zeros, cost nothing as
    /// `Tensor::zeros([1, 1, 1, 1], &device).expand(shape)`.
    ///
    /// ```
    /// # extern crate tinderbox_pipeline as tinderbox;
    /// # use burn::nn::{Linear, LinearConfig};
    /// # use burn::tensor::{Device, Tensor};
    /// # use tinderbox_deferred::Deferred;
    /// # use tinderbox::{Machine, Plan};
    /// use tinderbox::{Carried, Outputs, Pipeline, Traceable};
    ///
    /// # let device = Device::flex();
    /// let model = Deferred::new(|device: &Device| LinearConfig::new(4, 4).init(device))?;
    /// let batch = |x: f32| (Tensor::<2>::full([1, 4], x, &device), Carried(Tensor::<2>::zeros([1, 4], &device)));
    /// let trace = model.trace_forward(&batch(0.0), |net: &Linear, (x, Carried(sum)): (_, Carried<Tensor<2>>)| {
    ///     let sum = sum + net.forward(x);
    ///     Outputs::none().with("sum", sum.clone()).carry(sum)
    /// })?;
    /// let plan = Plan::auto(&trace, &Machine::local(1)?)?;
    /// let mut pipeline = Pipeline::new(&model, &trace, &plan).start()?;
    ///
    /// let mut carry = pipeline.carry();
    /// let once = pipeline.evaluate_with(&mut carry, batch(1.0))?.tensor::<2>("sum")?;
    /// let twice = pipeline.evaluate_with(&mut carry, batch(1.0))?.tensor::<2>("sum")?;
    /// assert_eq!(twice.into_data(), (once * 2.0).into_data());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As [`evaluate`](Self::evaluate), and [`PipelineError::Carry`] when the batch has no carried tensor, or others than
    /// the carry has values of. The carry is unchanged after an error before anything ran; after any other error the
    /// pipeline has stopped.
    pub fn evaluate_with(
        &mut self,
        carry: &mut Carry,
        batch: B,
    ) -> Result<Evaluation, PipelineError> {
        self.carries.check(carry)?;
        self.evaluate_parts(batch, Some(carry))
    }

    fn evaluate_parts(
        &mut self,
        batch: B,
        carry: Option<&mut Carry>,
    ) -> Result<Evaluation, PipelineError> {
        self.calls += 1;
        let samples = samples_of(&batch)?;
        let parts = split_samples(&batch, samples, self.micro_batches.min(samples))?;
        self.run(Mode::Inference, 0.0.into(), Work::whole(parts), carry)
    }

    pub(super) fn run(
        &mut self,
        mode: Mode,
        lr: ModuleLearningRate,
        work: Work<B>,
        carry: Option<&mut Carry>,
    ) -> Result<Evaluation, PipelineError> {
        self.check_condition()?;
        let step = u32::try_from(self.step)
            .map_err(|_| PipelineError::StepOverflow { step: self.step })?;
        let lr = LearningRates(lr);
        let loss_scale = self.loss_scale.filter(|_| mode == Mode::Training);
        let loss_scale = loss_scale.map(|scale| scale.factor());
        let Work {
            own,
            first,
            sizes,
            of_share,
        } = work;
        if of_share.is_some() {
            // Before this process waits for what the others count.
            self.notify(mode, &[], of_share, (&lr, loss_scale))?;
        }
        let seed = self.settings.seed;
        let own = own.and_then(|parts| {
            let prepared = self.programs.prepare(mode, (seed, step), parts, first);
            prepared.inspect_err(|error| {
                // A batch that can't be read means that its device has failed.
                if let PipelineError::MicroBatch { source, .. } = error
                    && !matches!(**source, ActionError::IndexOutOfRange { .. })
                {
                    self.condition = Condition::Stopped;
                }
            })
        });
        let (mut micro_batches, counts) = match of_share {
            None => own?,
            Some(_) => self.counts_of_all(own, first, sizes.len())?,
        };
        let round_carry = carry.as_ref().map(|carry| carry.check(&micro_batches));
        let round_carry = round_carry.transpose()?;
        let weights = weights(counts)?;
        for (micro, weight) in micro_batches.iter_mut().zip(&weights[first..]) {
            micro.weight = weight * loss_scale.unwrap_or(1.0);
        }
        // This process has no programs of other shares and runs none of their lists: its own stand in for them. Each process
        // certifies the lists of its own replica.
        let stand_in = match micro_batches.first() {
            Some(micro) => micro.cut.clone(),
            None => self.programs.example()?,
        };
        let cuts = (0..sizes.len()).map(|k| {
            let own = k.checked_sub(first).and_then(|at| micro_batches.get(at));
            own.map_or(&*stand_in, |micro| &*micro.cut)
        });
        let cuts: Vec<&CutProgram> = cuts.collect();
        let parts = self.programs.parts(mode, &cuts)?;
        if of_share.is_none() {
            self.notify(mode, &micro_batches, None, (&lr, loss_scale))?;
        }
        if mode == Mode::Training {
            self.check_unchanged()?;
        }
        let pass = match &mut self.passes {
            Some(passes) => {
                let number = round_carry.as_ref().map(|carry| carry.number);
                let carried_bytes = self.carries.bytes_besides(number);
                Some(passes.pass(mode, &parts[0].lists, &cuts, carried_bytes)?)
            }
            None => None,
        };
        let round = Arc::new(Round {
            round: self.round,
            step,
            lr,
            loss_scale,
            parts,
            groups: self.programs.groups(sizes.len()),
            is_sum: matches!(stand_in.loss_over, LossOver::Sum),
            micro_batches,
            first,
            kept: self.programs.kept(),
            carry: round_carry,
            carries: self.carries.existing(),
            pass,
            epoch: self.settings.measure.then(Instant::now),
        });
        self.round += 1;
        let request = match mode {
            Mode::Training => "run a training step",
            Mode::Inference => "run an evaluation",
        };
        let reports = self.crew.round(round.clone(), request)?;
        let reports = self.reports_of_all(reports)?;
        if let Some(carry) = carry {
            self.carries.advance(carry, &round.micro_batches);
        }
        let order = self.programs.norm_order();
        let output = Evaluation::collect(&round, reports, &weights, order);
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

    /// Sends to the other processes what this one is about to run.
    fn notify(
        &self,
        mode: Mode,
        micro_batches: &[MicroInput],
        of_share: Option<usize>,
        (lr, loss_scale): (&LearningRates, Option<f64>),
    ) -> Result<(), PipelineError> {
        self.crew.notify(|| {
            let is_training = mode == Mode::Training;
            let (call, step) = (self.calls, self.step);
            let settings = self.digest_of_settings(lr, loss_scale);
            let (parts, values) = (micro_batches, self.checks_batches);
            let notice = Notice::new(call, step, is_training, parts, of_share, settings, values);
            notice.map_err(|source| PipelineError::from(BatchError::Unread { source }))
        })
    }

    /// A digest of what all processes have to have alike in a round, beside the batch.
    fn digest_of_settings(&self, lr: &LearningRates, loss_scale: Option<f64>) -> u64 {
        let mut hasher = XxHash3_64::with_seed(self.changes);
        hasher.write_u64(loss_scale.unwrap_or(1.0).to_bits());
        for parameter in self.model.parameters().iter() {
            hasher.write_u64(lr.of(&parameter.path).to_bits());
        }
        hasher.finish()
    }

    /// Reads the reports of the ranks of this process, and returns the reports of all.
    fn reports_of_all(
        &mut self,
        reports: Vec<RoundReport>,
    ) -> Result<Vec<(RankReport, Vec<DynTensor>)>, PipelineError> {
        let first = self.crew.own();
        let ranks = (first.map_or(0, RankIndex::index)..).map(RankIndex::new);
        let read = ranks
            .zip(reports)
            .map(|(rank, report)| RankReport::read(rank, report));
        let read = read.collect::<Result<Vec<_>, PipelineError>>();
        // The ranks have updated their parameters, possibly with values of a failed device.
        let mut read = read.map_err(|error| {
            self.condition = Condition::Stopped;
            self.crew.notified(error)
        })?;
        if first.is_none() {
            return Ok(read);
        }
        // In a world, each process has one rank, or waits.
        let (mut report, outputs) = read.pop().unwrap_or_default();
        report.newest_backup = self.newest_backup();
        let exchanged = match self.outputs {
            OutputsOn::All => self.crew.exchange(To::All, report, outputs),
            OutputsOn::Own => {
                let own = report.take_outputs();
                let all = self.crew.exchange(To::All, report, Vec::new());
                all.map(|mut all| {
                    if let Some((report, values)) = first.and_then(|rank| all.get_mut(rank.index()))
                    {
                        report.set_outputs(own);
                        *values = outputs;
                    }
                    all
                })
            }
        };
        let reports = exchanged.inspect_err(|_| self.condition = Condition::Stopped)?;
        self.note_backups(reports.iter().map(|(report, _)| report.newest_backup));
        Ok(reports)
    }
}
