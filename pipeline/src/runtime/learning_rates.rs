//! The learning rates of steps.

use std::collections::BTreeMap;
use std::fmt;

use burn::module::ParamId;
use burn::optim::lr_scheduler::module_lr_scheduler::ModuleLearningRate;
use tinderbox_deferred::{ParameterPath, ParameterTable};

/// The learning rate of each parameter.
#[derive(Clone)]
pub(super) struct LearningRates(pub(super) ModuleLearningRate);

impl LearningRates {
    pub(super) fn of(&self, path: &ParameterPath) -> f64 {
        // Ids are random per construction, so groups match by path.
        self.0.lr_from_param(ParamId::new(), Some(path.as_str()))
    }

    /// Returns them as they are saved.
    pub(super) fn of_step(&self, table: &ParameterTable) -> StepRates {
        let base = self.0.base();
        let paths = table.distinct().map(|p| &p.path);
        let others = paths.filter(|path| self.of(path) != base);
        StepRates {
            base,
            others: others.map(|path| (path.clone(), self.of(path))).collect(),
        }
    }
}

impl fmt::Debug for LearningRates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("LearningRates")
            .field(&self.0.base())
            .finish()
    }
}

/// The learning rates of a step.
#[derive(Clone, Debug, PartialEq)]
pub struct StepRates {
    /// The rate of all parameters that no group has.
    pub base: f64,
    /// The rates of the parameters that have another one, by path.
    pub others: BTreeMap<ParameterPath, f64>,
}

/// The learning rates of the last step.
#[derive(Clone, Debug)]
pub(super) enum LastRates {
    /// As a step of this process got them.
    Given(LearningRates),
    /// As a checkpoint has them.
    Saved(StepRates),
}
