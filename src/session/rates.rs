//! The learning rates of the steps.

use std::any::type_name;

use burn::optim::lr_scheduler::module_lr_scheduler::{ModuleLearningRate, ModuleLrScheduler};
use tinderbox_pipeline::{Pipeline, PipelineError, StepOutput};

/// Runs a training step with the learning rate of this step; returns the base rate too.
pub(super) type RatedStep<'a, M, B> =
    Box<dyn FnMut(&mut Pipeline<M, B>, B) -> Result<(f64, StepOutput), PipelineError> + 'a>;

/// A scheduler with the number of its steps, because a scheduler has no position.
pub(super) struct Scheduler {
    initial: ModuleLrScheduler,
    current: ModuleLrScheduler,
    steps: u64,
    /// Whether it may have groups of parameters: a pipeline reports groups that match nothing.
    pub(super) may_have_groups: bool,
}

impl Scheduler {
    pub(super) fn new<S: Into<ModuleLrScheduler>>(scheduler: S) -> Self {
        let initial = scheduler.into();
        Self {
            current: initial.clone(),
            initial,
            steps: 0,
            may_have_groups: type_name::<S>() == type_name::<ModuleLrScheduler>(),
        }
    }

    /// Returns the rates of the step after this number of steps.
    pub(super) fn after(&mut self, steps: u64) -> ModuleLearningRate {
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
        let mut scheduler = Scheduler::new(linear());
        for step in [3, 4, 7, 2, 0, 1, 7] {
            assert_eq!(scheduler.after(step).base(), expected[step as usize]);
        }
        // A number has no groups that could match nothing.
        assert!(scheduler.may_have_groups && !Scheduler::new(1e-3).may_have_groups);
    }
}
