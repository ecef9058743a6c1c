//! Training steps, evaluations, and the calls that read and replace parameters between them.

use std::any::type_name;
use std::collections::BTreeMap;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;

use burn::module::{Module, ParamGroup};
use burn::optim::lr_scheduler::module_lr_scheduler::ModuleLearningRate;
use burn::tensor::Device;
use tinderbox_deferred::{Parameter, ParameterPath, Request, Source, Values};
use tinderbox_fake::{DynTensor, Mode};

use super::pipeline::Pipeline;
use crate::batch::{Batch, samples_of, split_samples};
use crate::error::Result;
use crate::runtime::driver::{
    Batches, Carry, Command, Condition, Evaluation, MicroBatch, StateDigest, StepOutput,
};
use crate::runtime::learning_rates::StepRates;
use crate::runtime::optimizer::{SavedOptimizer, check_group, contains};
use crate::runtime::ranks::To;
use crate::trace::Trace;
use crate::{BatchError, GroupError, ProgramKey, StateError, StepError};

/// The number of steps with the same rate for all parameters after which it is reported.
const EQUAL_RATES: u32 = 3;

impl<M: Module + Sync + 'static, B: Batch> Pipeline<M, B> {
    /// Runs one training step. The batch is split into micro-batches. Their gradients, weighted as described at
    /// [`Outputs`](crate::Outputs), are summed in order. The optimizer of a rank steps as soon as the gradients of its stage
    /// are complete, or with clipping by the norm of all gradients, when all gradients are complete.
    ///
    /// With a [loss scale](crate::LossScale) every rank waits for all others before its update, and a
    /// step whose gradients are not finite updates nothing.
    ///
    /// The batch has at most as many samples as the batch with which the model was traced. If it has another shape, the
    /// programs of its micro-batches are recorded first: a `tracing` event at the info level for each shape, or an error with
    /// [`fixed_shapes`](crate::PipelineBuilder::fixed_shapes).
    ///
    /// A batch with fewer samples than micro-batches, for example the last batch of an epoch, is split into fewer
    /// micro-batches: at most its number of samples, and the largest number for which the schedule can be generated. A
    /// written schedule is for a fixed number and refuses such a batch.
    ///
    /// The learning rate is a number, or the value of one of Burn's schedulers at its step. Its groups
    /// match parameters by their paths, not by ids. Burn does not show groups of rates. If all rates of the first steps
    /// are the same, a `tracing` warning reports it. If only some of several groups match nothing, there is no warning.
    ///
    /// # Errors
    ///
    /// When the pipeline has no optimizer, a learning rate is negative, NaN or infinite, the batch has [more samples than the
    /// traced one](StepError::MoreSamples), can't be split or traced or has an [index that is out of
    /// range](StepError::MicroBatch), the counts that weight the losses are negative, not finite or 0 for the whole batch, or
    /// a loss or a gradient is not finite in a pipeline that [stops](crate::PipelineBuilder::stop_on_non_finite) on it. The
    /// pipeline is then unchanged. When an action fails, the pipeline has stopped.
    pub fn step(&mut self, lr: impl Into<ModuleLearningRate>, batch: B) -> Result<StepOutput> {
        self.train(lr, vec![batch], None)
    }

    /// Runs one training step over several batches. Each batch has at most as many samples as the traced one, and is split
    /// into micro-batches as by [`step`](Self::step). The gradients are accumulated, weighted by the part of each batch in all
    /// batches, and every rank's optimizer steps once. The schedule covers the micro-batches of all batches, so the ranks do
    /// not drain between two batches. A written schedule must be for the total number of micro-batches of a
    /// [replica](crate::Plan::replicas).
    ///
    /// # Errors
    ///
    /// As [`Pipeline::step`]; [`BatchError::NoBatches`](crate::BatchError::NoBatches) without a batch.
    pub fn step_accumulated(
        &mut self,
        lr: impl Into<ModuleLearningRate>,
        batches: impl IntoIterator<Item = B>,
    ) -> Result<StepOutput> {
        self.train(lr, batches.into_iter().collect(), None)
    }

    /// Returns the positions of the samples that the stages of this process read, for a batch of all replicas with this number
    /// of samples. Without a [world](crate::PipelineBuilder::world) of processes, or without
    /// [replicas](crate::Plan::replicas), returns all positions. The range may be empty if the batch has fewer samples than
    /// there are replicas.
    ///
    /// A loader that counts the samples of all replicas, and reads only its share at each position, continues with the same
    /// samples when a run is resumed with another number of replicas.
    pub fn share(&self, samples: usize) -> Range<usize> {
        self.driver.share(samples)
    }

    /// Runs one training step as [`step`](Self::step) does, over a batch of this many samples. Each process passes only its
    /// [share](Self::share) of the batch, so that no process loads samples that it does not use. Losses and outputs are of the
    /// whole batch.
    ///
    /// The ranks of a replica pass the same share; its shapes are compared, and its values with
    /// [`check_batches`](crate::PipelineBuilder::check_batches). A share without samples may be any batch.
    /// A batch with fewer samples than micro-batches needs a schedule that exists for this number.
    ///
    /// Cost: one more small message to every process, with the counts of the micro-batches.
    ///
    /// # Errors
    ///
    /// As [`step`](Self::step); [`BatchError::Share`](crate::BatchError::Share) when the share has another number of samples,
    /// [`BatchError::ShareElsewhere`](crate::BatchError::ShareElsewhere) when the share of another process can't be used, and
    /// [`BatchError::OtherShare`](crate::BatchError::OtherShare) when ranks of one replica have different shares. Nothing has
    /// run then.
    pub fn step_share(
        &mut self,
        lr: impl Into<ModuleLearningRate>,
        share: B,
        samples: usize,
    ) -> Result<StepOutput> {
        if self.recovery.is_some() && self.driver.plan.replicas() > 1 {
            return Err(StepError::ShareRecovery.into());
        }
        self.train(lr, vec![share], Some(samples))
    }

    /// Makes a training step. Its output reports lost ranks.
    fn train(
        &mut self,
        lr: impl Into<ModuleLearningRate>,
        batches: Vec<B>,
        share: Option<usize>,
    ) -> Result<StepOutput> {
        let step = Command::Step {
            rates: self.watched_rates(lr),
            batches: self.traced(batches),
            share,
        };
        let before = self.recovered().len();
        let mut output = self.make::<Evaluation>(step)?.of_training();
        output.recovered = self.recovered()[before..].to_vec();
        Ok(output)
    }

    pub(super) fn traced(&self, batches: Vec<B>) -> Arc<TracedBatches<B>> {
        Arc::new(TracedBatches {
            trace: self.trace.clone(),
            fixed_shapes: self.driver.options.fixed_shapes,
            batches,
        })
    }

    /// Returns the rates of a step. If they may have groups, and no parameter had another rate than the base rate in the first
    /// steps, warns once, because a group that matches nothing has no effect. Steps that a recovery repeats do not count
    /// again.
    fn watched_rates<L: Into<ModuleLearningRate>>(&mut self, lr: L) -> Arc<StepRates> {
        let may_have_groups = type_name::<L>() == type_name::<ModuleLearningRate>();
        let rates = Arc::new(StepRates::new(&lr.into(), self.model.parameters()));
        let equal = &mut self.equal_rates;
        if !may_have_groups || *equal == EQUAL_RATES {
            return rates;
        }
        let base = rates.base;
        let mut trained = self.model.parameters().iter().filter(|p| p.trainable);
        let differs = trained.any(|p| rates.others.contains_key(&p.path));
        // At the beginning of a warm-up, all rates may be 0.
        if differs {
            *equal = EQUAL_RATES;
        } else if base > 0.0 {
            *equal += 1;
            if *equal == EQUAL_RATES {
                tracing::warn!(
                    base,
                    steps = EQUAL_RATES,
                    "all parameters have the base learning rate: if the rates have groups, none of them matches a parameter \
                     that trains; groups match the paths of parameters, not ids"
                );
            }
        }
        rates
    }

    /// Runs the forward alone, without dropout, and returns the loss and the named outputs. Does not change the model. The
    /// batch may have any number of samples. The new values of [carried](crate::Carried) parts of the batch are dropped.
    ///
    /// # Errors
    ///
    /// As [`Pipeline::step`]; a batch of fewer samples than micro-batches is split into fewer.
    pub fn evaluate(&mut self, batch: B) -> Result<Evaluation> {
        self.make(Command::Evaluate(self.traced(vec![batch])))
    }

    /// Runs the forward alone, as [`evaluate`](Self::evaluate) does, with [carried](crate::Carried) values that stay on
    /// the ranks. The first evaluation with a carry reads them from the batch. Each later evaluation reads the values that the
    /// previous one has computed ([`Outputs::carry`](crate::Outputs::carry)). The carried tensors of a later batch only have
    /// to have the names, shapes and dtypes of the first; their values are not used. Its other tensors may have any shapes,
    /// for example a prompt of many tokens and then one token at a time.
    ///
    /// Values depend on the parameters with which they were computed: use a new carry after a training step.
    ///
    /// A value stays on the stage that computes it, and its stage holds the only handle, so an operation that Burn can
    /// run in place does not copy it. It is never sent to another rank or to the driver. Memory: the carried tensors
    /// of each carry, on the ranks. The first batch is read without a copy, so it should not be kept. Initial zeros, and a
    /// tensor whose values are not used, need no memory as `Tensor::zeros([1, 1, 1, 1], &device).expand(shape)`.
    ///
    /// ```
    /// # extern crate tinderbox_pipeline as tinderbox;
    /// # use burn::nn::{Linear, LinearConfig};
    /// # use burn::tensor::{Device, Tensor};
    /// # use tinderbox_deferred::Deferred;
    /// # use tinderbox::{Machine};
    /// use tinderbox::{Carried, Outputs, Pipeline, Traceable};
    ///
    /// # let device = Device::flex();
    /// let model = Deferred::new(|device: &Device| LinearConfig::new(4, 4).init(device))?;
    /// let batch = |x: f32| (Tensor::<2>::full([1, 4], x, &device), Carried(Tensor::<2>::zeros([1, 4], &device)));
    /// let trace = model.trace_forward(&batch(0.0), |net: &Linear, (x, Carried(sum)): (_, Carried<Tensor<2>>)| {
    ///     let sum = sum + net.forward(x);
    ///     Outputs::none().with("sum", sum.clone()).carry(sum)
    /// })?;
    /// let plan = trace.plan(&Machine::local(1)?)?;
    /// let mut pipeline = Pipeline::builder(&model, &trace, &plan).start()?;
    ///
    /// let mut carry = pipeline.carry();
    /// let once = pipeline.evaluate_carried(&mut carry, batch(1.0))?.tensor::<2>("sum")?;
    /// let twice = pipeline.evaluate_carried(&mut carry, batch(1.0))?.tensor::<2>("sum")?;
    /// assert_eq!(twice.into_data(), (once * 2.0).into_data());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As [`evaluate`](Self::evaluate), and [`StepError::Carry`] when the batch has no carried tensor, or other carried
    /// tensors than the carry. The carry is unchanged after an error before anything ran. After any other error the pipeline
    /// has stopped.
    pub fn evaluate_carried(&mut self, carry: &mut Carry, batch: B) -> Result<Evaluation> {
        self.driver.carries.check(carry).map_err(StepError::from)?;
        let batch = self.traced(vec![batch]);
        self.driver.evaluate(&*batch, Some(carry))
    }

    /// Returns digests of all parameters and of the optimizer's state. In a [world](crate::PipelineBuilder::world) of
    /// processes, every process calls this and gets all digests.
    ///
    /// Cost: each rank reads its own values once, and copies the state of its optimizer to the host. Processes exchange one
    /// digest for a few MiB of values.
    ///
    /// # Errors
    ///
    /// When a rank has failed, or a device can't be read.
    pub fn digest(&mut self) -> Result<StateDigest> {
        self.make(Command::Digest)
    }

    /// Returns the current value of a parameter or running state by its path, on the device of the rank that owns
    /// it. The value is shared, and later steps do not change it. In a [world](crate::PipelineBuilder::world) of processes,
    /// every process calls this, and the processes without that rank get a copy in the memory of the host.
    ///
    /// # Errors
    ///
    /// [`StateError::UnknownParameter`] with the most similar paths; when a rank has failed.
    pub fn parameter(&mut self, path: &str) -> Result<DynTensor> {
        let only = Some(self.known(path)?.original().clone());
        let found = self.values(To::All, only)?.into_iter().next();
        let (_, value) = found.expect("every parameter has an owner");
        Ok(value)
    }

    /// Replaces the values of parameters and running states by their paths, on every rank that holds them, for example for a
    /// target network, an average of weights or a clamp. The optimizer's state and the number of steps do not change.
    ///
    /// Values may be on any device and have any float dtype. Nothing changes unless all values fit. The path of a clone
    /// sets its original; values of several clones of one parameter must be equal.
    ///
    /// ```no_run
    /// # use burn::nn::Linear;
    /// # use burn::tensor::Tensor;
    /// # use tinderbox_pipeline::{Pipeline, PipelineError};
    /// # fn example(
    /// #     online: &mut Pipeline<Linear, Tensor<2>>,
    /// #     target: &mut Pipeline<Linear, Tensor<2>>,
    /// # ) -> Result<(), PipelineError> {
    /// target.set_parameters([("weight", online.parameter("weight")?)])?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`StateError::UnknownParameter`]; [`StateError::Averaged`]; [`StateError::Values`], which lists values of another shape,
    /// values of a dtype that can't be cast, fake values, and pairs of values that differ for one parameter; when a rank has
    /// failed.
    pub fn set_parameters<P: AsRef<str>>(
        &mut self,
        values: impl IntoIterator<Item = (P, DynTensor)>,
    ) -> Result<()> {
        self.driver.check_not_averaged()?;
        let table = self.model().parameters().clone();
        // By the position of the original.
        let mut originals = BTreeMap::new();
        let (mut given, mut requests) = (Vec::new(), Vec::new());
        let host = Device::flex();
        for (path, value) in values {
            let parameter = self.known(path.as_ref())?;
            let value = value.without_autodiff();
            let position = table.position(parameter.original());
            let position = position.expect("an original is in its table");
            if originals.insert(position, value.clone()).is_none() {
                requests.push(Request::of(&table, parameter, &host));
            }
            given.push((parameter.path.clone(), value));
        }
        let known: Values = given.into_iter().collect();
        let fits = known.check(&table, &requests);
        fits.map_err(|source| StateError::Values { source })?;
        let placed = originals.into_iter().map(|(position, value)| {
            let dtype = table.iter().as_slice()[position].dtype;
            (position, value.cast_float(dtype))
        });
        self.make(Command::Set(placed.collect()))
    }

    /// Runs code with the [averages](crate::PipelineBuilder::average) in place of the parameters, to evaluate, gather or save
    /// the averaged model. A checkpoint that is saved meanwhile has no state of the optimizer, so no training can resume
    /// from it. Before the first step, the averages are the parameters.
    ///
    /// Cost: none for f32 on the ranks that own the parameters. Averages are copied to other ranks that hold the parameters,
    /// and averages of parameters in 16 bits are cast. In a [world](crate::PipelineBuilder::world), all averages are sent to
    /// every process.
    ///
    /// ```no_run
    /// # use burn::nn::Linear;
    /// # use burn::tensor::Tensor;
    /// # use tinderbox_pipeline::{Pipeline, PipelineError};
    /// # fn example(pipeline: &mut Pipeline<Linear, Tensor<2>>, batch: Tensor<2>) -> Result<(), PipelineError> {
    /// let evaluation = pipeline.with_averages(|averaged| averaged.evaluate(batch))??;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`StateError::NoAverages`]; [`StateError::Averaged`] within the code itself; when a rank has failed.
    pub fn with_averages<R>(&mut self, run: impl FnOnce(&mut Self) -> R) -> Result<R> {
        if self.driver.settings.average_decay.is_none() {
            return Err(StateError::NoAverages.into());
        }
        self.driver.check_not_averaged()?;
        self.make::<()>(Command::Average(true))?;
        let result = catch_unwind(AssertUnwindSafe(|| run(self)));
        self.make::<()>(Command::Average(false))?;
        result.or_else(|panic| resume_unwind(panic))
    }

    /// Stops the optimizer's updates of the parameters of a group, from the next step on; the statistics of a frozen batch
    /// norm still advance. Their optimizer state stays, and their
    /// gradients are neither summed nor part of the norm. The gradients are still computed; to avoid that, trace a model in
    /// which they are frozen. A checkpoint names the frozen parameters. A resume compares them and freezes none, so freeze
    /// before the resume.
    ///
    /// # Errors
    ///
    /// [`StateError::Group`] if the group contains no parameter, if none of them trained when the model was traced, or if
    /// the group has ids; when a rank has failed.
    pub fn freeze(&mut self, group: &ParamGroup) -> Result<()> {
        self.set_trains(group, false)
    }

    /// Updates the parameters of a group again, after [`freeze`](Self::freeze).
    ///
    /// # Errors
    ///
    /// As [`freeze`](Self::freeze).
    pub fn unfreeze(&mut self, group: &ParamGroup) -> Result<()> {
        self.set_trains(group, true)
    }

    fn set_trains(&mut self, group: &ParamGroup, trains: bool) -> Result<()> {
        let positions = self.trained(group).map_err(StateError::from)?;
        self.make(Command::SetTrains { positions, trains })
    }

    /// The positions of the parameters of a group that trained when the model was traced.
    fn trained(&self, group: &ParamGroup) -> Result<Vec<usize>, GroupError> {
        check_group(group, None)?;
        let parameters = self.model().parameters().iter().enumerate();
        let contained = parameters.filter(|(_, parameter)| contains(group, &parameter.path));
        let contained: Vec<(usize, &Parameter)> = contained.collect();
        let (_, first) = contained.first().ok_or(GroupError::NoParameters)?;
        let trained = contained.iter().filter(|(_, one)| one.trainable);
        let positions: Vec<usize> = trained.map(|(position, _)| *position).collect();
        if positions.is_empty() {
            let path = first.path.clone();
            return Err(GroupError::NotTraced { path });
        }
        Ok(positions)
    }

    fn known(&self, path: &str) -> Result<&Parameter, StateError> {
        let table = self.model().parameters();
        let known = table.get(&ParameterPath::new(path));
        known.ok_or_else(|| StateError::UnknownParameter {
            path: ParameterPath::new(path),
            near: table.near(path),
        })
    }

    /// Replaces the parameters and the optimizer's state of every rank by saved values, in place. A
    /// pipeline without an optimizer reads no state. Set the step with [`resume_at`](Self::resume_at). If only some parameters
    /// have a saved state, a `tracing` warning names the others whose optimizers keep one.
    ///
    /// All ranks check names, shapes and dtypes before any of them changes anything. The request fails
    /// only without progress, as described at [timeout](crate::PipelineBuilder::timeout).
    ///
    /// Memory: in addition to what the pipeline holds afterwards, at most the size of the largest parameter or state of a
    /// parameter for each rank, or 1 MiB, and the memory of the source; with [replicas](crate::Plan::replicas), at most the
    /// state of the largest parameter, which each rank that updates a part of it reads whole.
    ///
    /// # Errors
    ///
    /// [`StateError::Restore`] if the saved state does not fit; then nothing has changed.
    /// [`StateError::PartlyRestored`] if a value can't be read. Then some values are new and others old,
    /// and the pipeline refuses every request except another restore.
    pub fn restore(
        &mut self,
        source: impl Source + 'static,
        state: impl SavedOptimizer + 'static,
    ) -> Result<()> {
        self.make(Command::Restore(Arc::new(source), Arc::new(state)))
    }

    /// Returns whether the pipeline waits for a [restore](Self::restore) and refuses steps and evaluations: because the state
    /// of lost ranks is lost ([`RecoveryError::StateLost`](crate::RecoveryError::StateLost)), or a restore has failed
    /// partway.
    pub fn awaits_restore(&self) -> bool {
        let condition = self.driver.condition;
        matches!(condition, Condition::PartlyRestored | Condition::StateLost)
    }
}

/// The batches of a call.
pub(super) struct TracedBatches<B> {
    pub(super) trace: Trace<B>,
    /// Whether batches with other shapes than in the traced step are refused.
    pub(super) fixed_shapes: bool,
    pub(super) batches: Vec<B>,
}

impl<B: Batch> TracedBatches<B> {
    /// Returns whether a micro-batch needs a program that is not of the traced step and is not recorded yet.
    fn is_other_shape(&self, mode: Mode, part: &B) -> Result<bool, StepError> {
        let (key, _) = Trace::key(mode, part);
        if self.trace.is_of_step(&key) {
            return Ok(false);
        }
        if self.fixed_shapes {
            let traced = self.trace.example_program()?.key().clone();
            return Err(StepError::Shape {
                traced: ProgramKey { mode, ..traced }.to_string(),
                found: key.to_string(),
            });
        }
        Ok(!self.trace.has_recorded(&key))
    }
}

impl<B: Batch> Batches for TracedBatches<B> {
    fn samples(&self) -> Result<Vec<usize>, BatchError> {
        self.batches.iter().map(samples_of).collect()
    }

    fn split(&self, mode: Mode, counts: &[usize]) -> Result<Vec<MicroBatch<'_>>, BatchError> {
        let (trace, samples) = (&self.trace, self.samples()?);
        let mut parts = Vec::new();
        for ((batch, samples), count) in self.batches.iter().zip(samples).zip(counts) {
            for (part, samples) in split_samples(batch, samples, *count)? {
                let (key, inputs) = Trace::key(mode, &part);
                parts.push(MicroBatch {
                    key,
                    inputs,
                    samples,
                    record: Box::new(move || {
                        trace.check_batch(&part)?;
                        let is_other = self.is_other_shape(mode, &part)?;
                        let joint = trace.program(mode, &part)?;
                        if is_other {
                            tracing::info!(
                                program = %joint.key(),
                                "program recorded for another shape than the micro-batches of the traced step have: \
                                 `fixed_shapes` refuses such batches"
                            );
                        }
                        trace.check_skipped(&joint, &part)?;
                        Ok(joint)
                    }),
                });
            }
        }
        Ok(parts)
    }
}
