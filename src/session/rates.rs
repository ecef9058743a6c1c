//! The learning rates of the steps.

use std::any::type_name;

use burn::module::Module;
use burn::optim::lr_scheduler::module_lr_scheduler::{ModuleLearningRate, ModuleLrScheduler};
use tinderbox_pipeline::{Batch, Pipeline, PipelineError, StepOutput};

/// Runs a training step with the learning rate of this step; returns the base rate too.
pub(super) type RatedStep<'a, M, B> =
    Box<dyn FnMut(&mut Pipeline<M, B>, B) -> Result<(f64, StepOutput), PipelineError> + 'a>;

/// The learning rates of a scheduler of Burn, with or without groups of parameters, or of a number. A scheduler has no
/// position: this type advances it to a step, so that a resumed run has the rates of an uninterrupted run.
///
/// A session has [`scheduler`](super::SessionBuilder::scheduler). In a loop of your own:
///
/// ```no_run
/// # use burn::module::Module;
/// # use burn::optim::lr_scheduler::cosine::CosineAnnealingLrSchedulerConfig;
/// # use tinderbox::{Batch, Pipeline};
/// use tinderbox::session::LearningRates;
///
/// # fn train<M: Module + Sync + 'static, B: Batch>(
/// #     mut pipeline: Pipeline<M, B>,
/// #     pairs: impl Iterator<Item = [B; 2]>,
/// # ) -> Result<(), Box<dyn std::error::Error>> {
/// let mut rates = LearningRates::new(CosineAnnealingLrSchedulerConfig::new(1e-3, 1000).init()?);
/// for batches in pairs {
///     let steps = pipeline.steps();
///     rates.step(&mut pipeline, steps, batches)?; // one step over two batches
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, derive_more::Debug)]
#[debug("LearningRates {{ steps: {steps}, .. }}")]
pub struct LearningRates {
    initial: ModuleLrScheduler,
    current: ModuleLrScheduler,
    steps: u64,
    /// Whether there may be groups of parameters: a pipeline reports groups that match nothing.
    may_have_groups: bool,
}

impl LearningRates {
    /// Creates the rates of the scheduler of a new run.
    pub fn new<S: Into<ModuleLrScheduler>>(scheduler: S) -> Self {
        let initial = scheduler.into();
        Self {
            current: initial.clone(),
            initial,
            steps: 0,
            may_have_groups: type_name::<S>() == type_name::<ModuleLrScheduler>(),
        }
    }

    /// Runs a training step over one or several batches, with the rates of the step after `steps` steps of the run. Returns
    /// these rates too. Cost, in addition to the step: the missing steps of the scheduler, which begins again if `steps` is
    /// smaller than before.
    ///
    /// # Errors
    ///
    /// See [`Pipeline::step_accumulated`].
    pub fn step<M: Module + Sync + 'static, B: Batch>(
        &mut self,
        pipeline: &mut Pipeline<M, B>,
        steps: u64,
        batches: impl IntoIterator<Item = B>,
    ) -> Result<(ModuleLearningRate, StepOutput), PipelineError> {
        let rates = self.after(steps);
        let output = match self.may_have_groups {
            true => pipeline.step_accumulated(rates.clone(), batches)?,
            false => pipeline.step_accumulated(rates.base(), batches)?,
        };
        Ok((rates, output))
    }

    /// Returns the rates of the step after this number of steps.
    fn after(&mut self, steps: u64) -> ModuleLearningRate {
        if steps < self.steps {
            self.current = self.initial.clone();
            self.steps = 0;
        }
        for _ in self.steps..steps {
            self.current.step();
        }
        self.steps = steps + 1;
        self.current.step()
    }
}

#[cfg(test)]
mod tests {
    use burn::optim::lr_scheduler::linear::LinearLrSchedulerConfig;

    use super::*;

    /// A run that resumes or goes back to a checkpoint has the rates of an uninterrupted run.
    #[test]
    fn a_scheduler_has_the_rate_of_any_step() {
        let linear = || LinearLrSchedulerConfig::new(1.0, 0.0, 8).init().unwrap();
        let mut in_order = linear();
        let expected: Vec<f64> = (0..8).map(|_| in_order.step().base()).collect();
        let mut rates = LearningRates::new(linear());
        for step in [3, 4, 7, 2, 0, 1, 7] {
            assert_eq!(rates.after(step).base(), expected[step as usize]);
        }
        // A number has no groups that could match nothing.
        assert!(rates.may_have_groups && !LearningRates::new(1e-3).may_have_groups);
    }
}
