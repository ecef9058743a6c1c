//! Training steps, evaluations, and what reads and replaces parameters between them.

use std::any::type_name;
use std::collections::BTreeMap;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;

use burn::module::{Module, ParamGroup};
use burn::optim::lr_scheduler::module_lr_scheduler::ModuleLearningRate;
use burn::tensor::Device;
use tinderbox_deferred::{Parameter, ParameterPath, Request, Source, Values};
use tinderbox_fake::DynTensor;

use super::batches::TracedBatches;
use super::pipeline::Pipeline;
use crate::batch::Batch;
use crate::runtime::driver::{Carry, Command, Condition, Evaluation, StateDigest, StepOutput};
use crate::runtime::learning_rates::LearningRates;
use crate::runtime::optimizer::{SavedOptimizer, check_group, contains};
use crate::runtime::ranks::To;
use crate::{GroupError, PipelineError, StateError, StepError};

/// The number of steps with the same rate for all parameters after which it is reported.
const EQUAL_RATES: u32 = 3;

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
    /// can't be split or traced or has an [index that is out of range](StepError::MicroBatch), the
    /// counts that weight the losses are negative, not finite or 0 for the whole batch, or a loss or a
    /// gradient is not finite in a pipeline that [stops](crate::PipelineBuilder::stop_on_non_finite) on
    /// it: the pipeline is then unchanged. When an action fails: the pipeline has then stopped.
    pub fn step(
        &mut self,
        lr: impl Into<ModuleLearningRate>,
        batch: B,
    ) -> Result<StepOutput, PipelineError> {
        self.train(lr, vec![batch], None)
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
        self.train(lr, batches.into_iter().collect(), None)
    }

    /// Returns the samples, of a batch of all replicas with this many, that the stages of this process read: a range of
    /// positions. Without a [world](crate::PipelineBuilder::world) of processes, or without
    /// [replicas](crate::Plan::replicas), all of them. Empty if the batch has fewer samples than there are replicas, and none
    /// for this one.
    ///
    /// A loader that counts the samples of all replicas, and reads at this position the samples of its share, continues
    /// with the same samples when a run is resumed with another number of replicas.
    pub fn share(&self, samples: usize) -> Range<usize> {
        self.driver.share(samples)
    }

    /// Runs one training step as [`step`](Self::step) does, over a batch of this many samples of which each process passes only
    /// its [share](Self::share), so that none loads what it does not use. Losses and outputs are the whole batch's.
    ///
    /// The ranks of a replica pass the same share; its shapes are compared, and its values with
    /// [`check_batches`](crate::PipelineBuilder::check_batches). A share without samples may be any batch.
    /// A batch with fewer samples than micro-batches needs a schedule that exists for as many.
    ///
    /// Cost: one more small message to every process, with what the micro-batches count.
    ///
    /// # Errors
    ///
    /// As [`step`](Self::step); [`BatchError::Share`](crate::BatchError::Share) when the share has another number of samples,
    /// [`BatchError::ShareElsewhere`](crate::BatchError::ShareElsewhere) when the share of another process can't be used, and [`BatchError::OtherShare`](crate::BatchError::OtherShare) when ranks
    /// of one replica have different ones: nothing was run then.
    pub fn step_share(
        &mut self,
        lr: impl Into<ModuleLearningRate>,
        share: B,
        samples: usize,
    ) -> Result<StepOutput, PipelineError> {
        if self.recovery.is_some() && self.driver.plan.replica_count() > 1 {
            return Err(StepError::ShareRecovery.into());
        }
        self.train(lr, vec![share], Some(samples))
    }

    /// Makes a training step; if ranks are lost, says so in its output.
    fn train(
        &mut self,
        lr: impl Into<ModuleLearningRate>,
        batches: Vec<B>,
        share: Option<usize>,
    ) -> Result<StepOutput, PipelineError> {
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
            batches,
        })
    }

    /// Returns the rates of a step. If they may have groups, and no parameter has had another rate than the base in a few
    /// steps, warns once: a group that matches nothing has no effect. Steps that a recovery repeats do not count again.
    fn watched_rates<L: Into<ModuleLearningRate>>(&mut self, lr: L) -> LearningRates {
        let may_have_groups = type_name::<L>() == type_name::<ModuleLearningRate>();
        let rates = LearningRates(lr.into());
        let equal = &mut self.equal_rates;
        if !may_have_groups || *equal == EQUAL_RATES {
            return rates;
        }
        let base = rates.0.base();
        let trained = self.model.parameters().iter().filter(|p| p.trainable);
        let differs = { trained }.any(|p| rates.of(&p.path).to_bits() != base.to_bits());
        // At the begin of a warm-up, all rates may be 0.
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

    /// Runs the forward alone, without dropout, and returns the loss and the named outputs. Does not
    /// change the model. The new values of [carried](crate::Carried) parts of the batch are dropped.
    ///
    /// # Errors
    ///
    /// As [`Pipeline::step`]; a batch of fewer samples than micro-batches is split into fewer.
    pub fn evaluate(&mut self, batch: B) -> Result<Evaluation, PipelineError> {
        self.make(Command::Evaluate(self.traced(vec![batch])))
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
    /// As [`evaluate`](Self::evaluate), and [`StepError::Carry`] when the batch has no carried tensor, or others than
    /// the carry has values of. The carry is unchanged after an error before anything ran; after any other error the
    /// pipeline has stopped.
    pub fn evaluate_with(
        &mut self,
        carry: &mut Carry,
        batch: B,
    ) -> Result<Evaluation, PipelineError> {
        self.driver.carries.check(carry).map_err(StepError::from)?;
        let batch = self.traced(vec![batch]);
        self.driver.evaluate(&*batch, Some(carry))
    }

    /// Returns digests of all parameters and of the optimizer's state. In a [world](crate::PipelineBuilder::world) of
    /// processes, every process calls this and gets all.
    ///
    /// Cost: each rank reads its own values once, and copies the state of its optimizer to the host; the digests of a few
    /// MiB each cross between processes.
    ///
    /// # Errors
    ///
    /// When a rank has failed, or a device can't be read.
    pub fn digest(&mut self) -> Result<StateDigest, PipelineError> {
        self.make(Command::Digest)
    }
}

impl<M: Module + Sync + 'static, B: Batch> Pipeline<M, B> {
    /// Returns the current value of a parameter or running state by its path, on the device of the rank that owns
    /// it. The value is shared, and later steps do not change it. In a [world](crate::PipelineBuilder::world) of processes,
    /// every process calls this, and those without the rank get a copy in the memory of the host.
    ///
    /// # Errors
    ///
    /// [`StateError::UnknownParameter`] with the paths that are nearest; when a rank has failed.
    pub fn parameter(&mut self, path: &str) -> Result<DynTensor, PipelineError> {
        let only = Some(self.known(path)?.original().clone());
        let found = self.values(To::All, only)?.into_iter().next();
        let (_, value) = found.expect("every parameter has an owner");
        Ok(value)
    }

    /// Replaces the values of parameters and running states by their paths, on every rank that holds them: a target
    /// network, an average of weights, a clamp. State of the optimizer and the number of steps stay.
    ///
    /// Values may be on any device and have any float dtype. Nothing changes unless all of them fit. A clone stands for
    /// its original; values of several clones of one parameter must be equal.
    ///
    /// ```no_run
    /// # use burn::nn::Linear;
    /// # use burn::tensor::Tensor;
    /// # use tinderbox_pipeline::{Pipeline, PipelineError};
    /// # fn example(online: &mut Pipeline<Linear, Tensor<2>>, target: &mut Pipeline<Linear, Tensor<2>>) -> Result<(), PipelineError> {
    /// target.set_parameters([("weight", online.parameter("weight")?)])?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`StateError::UnknownParameter`]; [`StateError::Averaged`]; [`StateError::Values`] with every value of another shape, every one of
    /// a dtype that can't be cast, every fake one, and every two that differ for one parameter; when a rank has failed.
    pub fn set_parameters<P: AsRef<str>>(
        &mut self,
        values: impl IntoIterator<Item = (P, DynTensor)>,
    ) -> Result<(), PipelineError> {
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

    /// Runs code with the [averages](crate::PipelineBuilder::average) in place of the parameters: to evaluate, or to
    /// gather or save the averaged model. A checkpoint that is saved meanwhile has no state of the optimizer, so no
    /// training resumes from it. Before the first step, the averages are the parameters.
    ///
    /// Cost: none for f32 on the ranks that own the parameters. Parameters that several ranks hold are copied to them, and
    /// averages of parameters in 16 bits are cast. In a [world](crate::PipelineBuilder::world), every process is sent the
    /// averages of all.
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
    pub fn with_averages<R>(
        &mut self,
        run: impl FnOnce(&mut Self) -> R,
    ) -> Result<R, PipelineError> {
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
    /// norm still advance. Their state of the optimizer stays, and their
    /// gradients are neither added up nor part of the norm. The gradients are still computed: trace a model in which
    /// they are frozen to save that. A checkpoint names what is frozen, and a resume compares it without
    /// freezing: freeze before the resume.
    ///
    /// # Errors
    ///
    /// [`StateError::Group`] if the group contains no parameter, if none of them trained when the model was traced, or if
    /// the group has ids; when a rank has failed.
    pub fn freeze(&mut self, group: &ParamGroup) -> Result<(), PipelineError> {
        self.set_trains(group, false)
    }

    /// Updates the parameters of a group again, after [`freeze`](Self::freeze).
    ///
    /// # Errors
    ///
    /// As [`freeze`](Self::freeze).
    pub fn unfreeze(&mut self, group: &ParamGroup) -> Result<(), PipelineError> {
        self.set_trains(group, true)
    }

    fn set_trains(&mut self, group: &ParamGroup, trains: bool) -> Result<(), PipelineError> {
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
        let trained = contained
            .iter()
            .filter(|(_, parameter)| parameter.trainable);
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

    /// Replaces the parameters and the optimizer's state of every rank by saved ones, in place. A
    /// pipeline without an optimizer reads no state. Set the step with [`resume_at`](Self::resume_at). A `tracing` warning
    /// names parameters that have no saved state though others have, if their optimizers keep one.
    ///
    /// All ranks check names, shapes and dtypes before any of them changes anything. The request fails
    /// only without progress, as described at [timeout](crate::PipelineBuilder::timeout).
    ///
    /// Memory: in addition to what the pipeline holds afterwards, at most the size of the largest
    /// parameter or state of a parameter for each rank, or 1 MiB, and the memory of the source; with [replicas](crate::Plan::replicas), at most the state of
    /// the largest parameter, which each rank that updates a part of it reads whole.
    ///
    /// # Errors
    ///
    /// [`StateError::Restore`] if the saved state does not fit: nothing has changed.
    /// [`StateError::PartlyRestored`] if a value can't be read: some values are new and others old,
    /// and the pipeline refuses every request but another restore.
    pub fn restore(
        &mut self,
        source: impl Source + 'static,
        state: impl SavedOptimizer + 'static,
    ) -> Result<(), PipelineError> {
        self.make(Command::Restore(Arc::new(source), Arc::new(state)))
    }

    /// Returns whether the state of lost ranks is lost as well ([`RecoveryError::StateLost`](crate::RecoveryError::StateLost)),
    /// or a restore has failed partway: steps and evaluations are refused until a [restore](Self::restore).
    pub fn awaits_restore(&self) -> bool {
        matches!(
            self.driver.condition,
            Condition::PartlyRestored | Condition::StateLost
        )
    }
}
