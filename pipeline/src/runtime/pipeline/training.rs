//! Training steps and evaluations.

use std::any::type_name;
use std::ops::Range;
use std::sync::Arc;

use burn::module::Module;
use burn::optim::lr_scheduler::module_lr_scheduler::ModuleLearningRate;

use super::batches::TracedBatches;
use super::pipeline::Pipeline;
use crate::batch::Batch;
use crate::runtime::driver::{Carry, Command, Evaluation, StateDigest, StepOutput};
use crate::runtime::learning_rates::LearningRates;
use crate::{PipelineError, StepError};

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
    /// As [`step`](Self::step); [`BatchError::Share`] when the share has another number of samples,
    /// [`BatchError::ShareElsewhere`] when the share of another process can't be used, and [`BatchError::OtherShare`] when ranks
    /// of one replica have different ones: nothing was run then.
    pub fn step_share(
        &mut self,
        lr: impl Into<ModuleLearningRate>,
        share: B,
        samples: usize,
    ) -> Result<StepOutput, PipelineError> {
        if self.recovery.is_some() && self.driver.settings.replicas > 1 {
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
        let mut output: StepOutput = self.make(step)?;
        output.recovered = self.recovered()[before..].to_vec();
        Ok(output)
    }

    fn traced(&self, batches: Vec<B>) -> Arc<TracedBatches<B>> {
        Arc::new(TracedBatches {
            trace: self.trace.clone(),
            batches,
        })
    }

    /// Returns the rates of a step. If they may have groups, and no parameter has had another rate than the base in a few
    /// steps, warns once: a group that matches nothing has no effect.
    fn watched_rates<L: Into<ModuleLearningRate>>(&mut self, lr: L) -> LearningRates {
        let may_have_groups = type_name::<L>() == type_name::<ModuleLearningRate>();
        let rates = LearningRates(lr.into());
        let Some(steps) = self.driver.state.equal_rates.filter(|_| may_have_groups) else {
            return rates;
        };
        let base = rates.0.base();
        let trained = self.model.parameters().iter().filter(|p| p.trainable);
        let differs = { trained }.any(|p| rates.of(&p.path).to_bits() != base.to_bits());
        // At the begin of a warm-up, all rates may be 0.
        self.driver.state.equal_rates = match (differs, base > 0.0) {
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
