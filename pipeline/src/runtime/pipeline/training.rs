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
    Batches, Carry, Command, Condition, Evaluation, MicroBatch, NamedValues, StateDigest,
    StepOutput,
};
use crate::runtime::learning_rates::StepRates;
use crate::runtime::optimizer::{SavedOptimizer, check_group, contains};
use crate::runtime::ranks::To;
use crate::trace::Trace;
use crate::{BatchError, GroupError, ProgramKey, StateError, StepError};

/// The number of steps with one rate for all parameters after which a warning is logged.
const EQUAL_RATES: u32 = 3;

impl<M: Module + Sync + 'static, B: Batch> Pipeline<M, B> {
    /// Runs one training step: splits the batch into micro-batches, sums their gradients in order, and updates the parameters.
    /// [`Outputs`](crate::Outputs) describes the weight of each micro-batch in the sum.
    ///
    /// The optimizer updates a stage as soon as the gradients of the stage are complete. With clipping by the norm of all
    /// gradients, it waits until the gradients of all stages are complete. With a [loss scale](crate::LossScale), every rank
    /// waits for all others before its update, and a step whose gradients are not finite updates nothing.
    ///
    /// The batch has at most as many samples as the batch with which the model was traced. A micro-batch of another shape
    /// needs another program, which is recorded before the step runs. Each recording is a `tracing` event at the info level.
    /// With [`fixed_shapes`](crate::PipelineBuilder::fixed_shapes), such a batch is an error instead.
    ///
    /// A batch may have fewer samples than micro-batches, for example the last batch of an epoch. It is split into fewer
    /// micro-batches: the largest number, up to its number of samples, for which the schedule can be generated. A written
    /// schedule has a fixed number of micro-batches, and refuses such a batch.
    ///
    /// The learning rate is a number, or the value of one of Burn's schedulers at this step. Its groups match parameters by
    /// their paths, not by ids. Burn does not expose the groups, so the pipeline can't check each of them. It logs a `tracing`
    /// warning if `lr` is a [`ModuleLearningRate`] and the first steps have one rate for all parameters. It does not warn if
    /// only some of several groups match nothing.
    ///
    /// # Errors
    ///
    /// The pipeline is unchanged if:
    ///
    /// - it has no optimizer;
    /// - a learning rate is negative, NaN or infinite;
    /// - the batch has [more samples than the traced batch](StepError::MoreSamples), or can't be split or traced;
    /// - the batch has an [index that is out of range](StepError::MicroBatch);
    /// - the counts that weight the losses are negative, not finite, or 0 for the whole batch;
    /// - a loss or a gradient is not finite, in a pipeline that [stops](crate::PipelineBuilder::stop_on_non_finite) on it.
    ///
    /// If an action fails, the pipeline has stopped.
    pub fn step(&mut self, lr: impl Into<ModuleLearningRate>, batch: B) -> Result<StepOutput> {
        self.train(lr, vec![batch], None)
    }

    /// Runs one training step over several batches. Each batch has at most as many samples as the traced batch, and is split
    /// into micro-batches as by [`step`](Self::step). The gradients of all batches are accumulated, with the weights that they
    /// have in one large batch. Then every optimizer steps once.
    ///
    /// The schedule covers the micro-batches of all batches, so the pipeline does not drain between two batches. A written
    /// schedule must be for the total number of micro-batches of a [replica](crate::Plan::replicas).
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

    /// Returns the range of samples that this process reads, from a batch of this many samples for all replicas. Returns the
    /// whole range without a [world](crate::PipelineBuilder::world) of processes, or without
    /// [replicas](crate::Plan::replicas). The range may be empty if the batch has fewer samples than there are replicas.
    ///
    /// A loader should count the samples of all replicas, and read only its share of each batch. It then continues with the
    /// same samples when a run is resumed with another number of replicas.
    pub fn share(&self, samples: usize) -> Range<usize> {
        self.driver.share(samples)
    }

    /// Runs one training step as [`step`](Self::step) does, over a batch of `samples` samples. Each process passes only its
    /// [share](Self::share) of the batch, so that no process loads samples that it does not use. Losses and outputs are of the
    /// whole batch.
    ///
    /// All ranks of a replica pass the same share. The pipeline compares the shapes of these shares, and with
    /// [`check_batches`](crate::PipelineBuilder::check_batches) also their values. A process whose share has no samples may
    /// pass any batch. If the whole batch has fewer samples than micro-batches, each sample is a micro-batch, and the schedule
    /// must exist for that number.
    ///
    /// Cost: one more small message to every process, with the counts of the micro-batches.
    ///
    /// # Errors
    ///
    /// As [`step`](Self::step). Nothing has run after these errors:
    ///
    /// - [`BatchError::Share`](crate::BatchError::Share): the share has another number of samples.
    /// - [`BatchError::ShareElsewhere`](crate::BatchError::ShareElsewhere): the share of another process can't be used.
    /// - [`BatchError::OtherShare`](crate::BatchError::OtherShare): ranks of one replica have different shares.
    /// - [`StepError::ShareRecovery`]: the pipeline has a recovery and several replicas.
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

    /// Makes the call of a training step. Adds the recoveries that happen during the call to its output. If `batches` is one
    /// share, `share_of` is the number of samples of the whole batch.
    fn train(
        &mut self,
        lr: impl Into<ModuleLearningRate>,
        batches: Vec<B>,
        share_of: Option<usize>,
    ) -> Result<StepOutput> {
        let step = Command::Step {
            rates: self.watched_rates(lr),
            batches: self.traced(batches),
            share: share_of,
        };
        let before = self.recovered().len();
        let mut output = self.make::<Evaluation>(step)?.of_training();
        output.recovered = self.recovered()[before..].to_vec();
        Ok(output)
    }

    /// Combines batches with the trace that records their programs. Does not record anything yet.
    pub(super) fn traced(&self, batches: Vec<B>) -> Arc<TracedBatches<B>> {
        Arc::new(TracedBatches {
            trace: self.trace.clone(),
            fixed_shapes: self.driver.options.fixed_shapes,
            batches,
        })
    }

    /// Returns the rates of a step. Warns once if `lr` may have groups, but every parameter had the base rate in the first
    /// steps: a group that matches no parameter has no effect. Steps that a recovery repeats do not count again.
    fn watched_rates<L: Into<ModuleLearningRate>>(&mut self, lr: L) -> Arc<StepRates> {
        let may_have_groups = type_name::<L>() == type_name::<ModuleLearningRate>();
        let rates = Arc::new(StepRates::new(&lr.into(), self.model.parameters()));
        let equal_steps = &mut self.equal_rates;
        if !may_have_groups || *equal_steps == EQUAL_RATES {
            return rates;
        }
        let base = rates.base;
        let mut trained = self.model.parameters().iter().filter(|p| p.trainable);
        let differs = trained.any(|p| rates.others.contains_key(&p.path));
        if differs {
            *equal_steps = EQUAL_RATES;
        } else if base > 0.0 {
            // A step with a rate of 0 is not counted: all rates may be 0 at the beginning of a warm-up.
            *equal_steps += 1;
            if *equal_steps == EQUAL_RATES {
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
    /// new values of [carried](crate::Carried) parts of the batch are dropped.
    ///
    /// The batch may have any number of samples. With fewer samples than micro-batches, it is split into fewer micro-batches.
    ///
    /// # Errors
    ///
    /// As [`Pipeline::step`], without the errors of optimizers, learning rates, gradients and large batches.
    pub fn evaluate(&mut self, batch: B) -> Result<Evaluation> {
        self.make(Command::Evaluate(self.traced(vec![batch])))
    }

    /// Runs the forward alone, as [`evaluate`](Self::evaluate) does, with [carried](crate::Carried) values that stay on
    /// the ranks. The first evaluation with a carry reads them from the batch. Each later evaluation reads the values that the
    /// previous evaluation computed ([`Outputs::carry`](crate::Outputs::carry)).
    ///
    /// The carried tensors of a later batch must have the names, shapes and dtypes of the first batch. Their values are not
    /// used. The other tensors may have any shapes, for example a prompt of many tokens and then one token at a time.
    ///
    /// Carried values depend on the parameters with which they were computed. Use a new carry after a training step.
    ///
    /// A value stays on the stage that computes it, and is never sent to another rank or to the driver. The stage holds the
    /// only handle, so an operation that Burn can run in place does not copy the value. The first batch is read without a
    /// copy: drop it after the call, because a second handle prevents work in place.
    ///
    /// Memory: the carried tensors of each carry, on the ranks. Initial zeros, and tensors whose values are not used, need no
    /// memory if they are expanded from one element: `Tensor::zeros([1, 1, 1, 1], &device).expand(shape)`.
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
    /// As [`evaluate`](Self::evaluate); [`StepError::Carry`] when the batch has no carried tensor, or other carried tensors
    /// than the carry. If the error is found before anything runs, the carry is unchanged. After any other error, the pipeline
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
    /// it. The returned value is not a copy, but later steps do not change it. In a [world](crate::PipelineBuilder::world) of
    /// processes, every process calls this, and the processes without that rank get a copy in the memory of the host.
    ///
    /// # Errors
    ///
    /// [`StateError::UnknownParameter`] with the most similar paths; when a rank has failed.
    pub fn parameter(&mut self, path: &str) -> Result<DynTensor> {
        let only = Some(self.find_parameter(path)?.original().clone());
        let mut found: NamedValues = self.make(Command::Values(To::All, only))?;
        let (_, value) = found.pop().expect("every parameter has an owner");
        Ok(value)
    }

    /// Replaces the values of parameters and running states by their paths, on every rank that holds them, for example for a
    /// target network, an average of weights or a clamp. The optimizer's state and the number of steps do not change.
    ///
    /// Values may be on any device and have any float dtype. Nothing changes unless all values fit. A value for the path of a
    /// clone replaces the original. Values for several clones of one parameter must be equal.
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
    /// - [`StateError::UnknownParameter`].
    /// - [`StateError::Averaged`].
    /// - [`StateError::Values`]. It lists values of another shape, values of a dtype that can't be cast, fake values, and pairs
    ///   of values that differ for one parameter.
    /// - When a rank has failed.
    pub fn set_parameters<P: AsRef<str>>(
        &mut self,
        values: impl IntoIterator<Item = (P, DynTensor)>,
    ) -> Result<()> {
        self.driver.check_not_averaged()?;
        let table = self.model().parameters().clone();
        // By the position of the original, because several clones of one parameter may be given.
        let mut new_values = BTreeMap::new();
        let (mut given, mut requests) = (Vec::new(), Vec::new());
        let host = Device::flex();
        for (path, value) in values {
            let parameter = self.find_parameter(path.as_ref())?;
            let value = value.without_autodiff();
            let position = table.position(parameter.original());
            let position = position.expect("an original is in its table");
            if new_values.insert(position, value.clone()).is_none() {
                requests.push(Request::of(&table, parameter, &host));
            }
            given.push((parameter.path.clone(), value));
        }
        let known: Values = given.into_iter().collect();
        let fits = known.check(&table, &requests);
        fits.map_err(|source| StateError::Values { source })?;
        let converted = new_values.into_iter().map(|(position, value)| {
            let dtype = table.iter().as_slice()[position].dtype;
            (position, value.cast_float(dtype))
        });
        self.make(Command::Set(converted.collect()))
    }

    /// Runs code with the [averages](crate::PipelineBuilder::average) in place of the parameters, to evaluate, gather or save
    /// the averaged model. Before the first step, the averages are equal to the parameters. A checkpoint that the code saves
    /// has no state of the optimizer, so training can't resume from it.
    ///
    /// Cost: none on the ranks that own the parameters, if these are in f32. Averages of parameters in 16 bits are cast.
    /// Averages are copied to other ranks that hold the parameters. In a [world](crate::PipelineBuilder::world), all averages
    /// are sent to every process.
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
    /// [`StateError::NoAverages`]; [`StateError::Averaged`] if the code calls this again; when a rank has failed.
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

    /// Freezes the parameters of a group: from the next step on, the optimizer does not update them. Their optimizer state is
    /// kept. The statistics of a frozen batch norm still change.
    ///
    /// The gradients of frozen parameters are neither summed nor part of the norm, but they are still computed. To avoid that
    /// cost, trace a model in which the parameters are frozen.
    ///
    /// A checkpoint names the frozen parameters. A resume compares these names with the frozen parameters of the pipeline, and
    /// freezes none itself. So freeze before the resume.
    ///
    /// # Errors
    ///
    /// [`StateError::Group`] if the group contains no parameter, if none of its parameters was trainable in the trace, or if
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
        let positions = self.trainable_positions(group).map_err(StateError::from)?;
        self.make(Command::SetTrains { positions, trains })
    }

    /// The positions of the parameters of a group that were trainable when the model was traced.
    fn trainable_positions(&self, group: &ParamGroup) -> Result<Vec<usize>, GroupError> {
        check_group(group, None)?;
        let parameters = self.model().parameters().iter().enumerate();
        let contained = parameters.filter(|(_, parameter)| contains(group, &parameter.path));
        let contained: Vec<(usize, &Parameter)> = contained.collect();
        let (_, first) = contained.first().ok_or(GroupError::NoParameters)?;
        let trainable = contained.iter().filter(|(_, one)| one.trainable);
        let positions: Vec<usize> = trainable.map(|(position, _)| *position).collect();
        if positions.is_empty() {
            let path = first.path.clone();
            return Err(GroupError::NotTraced { path });
        }
        Ok(positions)
    }

    fn find_parameter(&self, path: &str) -> Result<&Parameter, StateError> {
        let table = self.model().parameters();
        let known = table.get(&ParameterPath::new(path));
        known.ok_or_else(|| StateError::UnknownParameter {
            path: ParameterPath::new(path),
            near: table.near(path),
        })
    }

    /// Replaces the parameters and the optimizer's state of every rank by saved values, in place. A
    /// pipeline without an optimizer reads no state. Set the step with [`resume_at`](Self::resume_at). If only some parameters
    /// have a saved state, a `tracing` warning names the other parameters whose optimizers keep a state.
    ///
    /// All ranks check names, shapes and dtypes before any of them changes anything. There is no time limit as long as some
    /// rank makes progress; see [timeout](crate::PipelineBuilder::timeout).
    ///
    /// Memory, in addition to the values that the pipeline holds afterwards and the memory of the source: for each rank, at
    /// most the size of the largest parameter or state of a parameter, or 1 MiB if that is more. With
    /// [replicas](crate::Plan::replicas), a rank that updates a part of a parameter reads the whole state of the parameter, so
    /// the maximum is the state of the largest parameter.
    ///
    /// # Errors
    ///
    /// [`StateError::Restore`] if the saved state does not fit. Nothing has changed then.
    /// [`StateError::PartlyRestored`] if a value can't be read. Some values are then new and others old,
    /// and the pipeline refuses every request except another restore.
    pub fn restore(
        &mut self,
        source: impl Source + 'static,
        state: impl SavedOptimizer + 'static,
    ) -> Result<()> {
        self.make(Command::Restore(Arc::new(source), Arc::new(state)))
    }

    /// Returns whether the pipeline refuses steps and evaluations until a [restore](Self::restore). There are two reasons: the
    /// state of lost ranks is lost ([`RecoveryError::StateLost`](crate::RecoveryError::StateLost)), or a restore has failed
    /// partway.
    pub fn awaits_restore(&self) -> bool {
        let condition = self.driver.condition;
        matches!(condition, Condition::PartlyRestored | Condition::StateLost)
    }
}

/// The batches of a call, with the trace that records the programs of their micro-batches.
pub(super) struct TracedBatches<B> {
    pub(super) trace: Trace<B>,
    /// Whether micro-batches of another shape than in the traced step are refused.
    pub(super) fixed_shapes: bool,
    pub(super) batches: Vec<B>,
}

impl<B: Batch> TracedBatches<B> {
    /// Returns whether a micro-batch has a shape that is neither in the traced step nor recorded yet. Refuses a shape that is
    /// not in the traced step, if shapes are fixed.
    fn is_new_shape(&self, mode: Mode, part: &B) -> Result<bool, StepError> {
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
                        let is_new = self.is_new_shape(mode, &part)?;
                        let joint = trace.program(mode, &part)?;
                        if is_new {
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
