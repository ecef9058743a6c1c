//! The learning rates of steps.

use std::collections::BTreeMap;

use burn::module::ParamId;
use burn::optim::lr_scheduler::module_lr_scheduler::ModuleLearningRate;
use tinderbox_deferred::ParameterPath;

/// The learning rate of each parameter.
#[derive(Clone, derive_more::Debug)]
#[debug("LearningRates({:?})", _0.base())]
pub(crate) struct LearningRates(pub(crate) ModuleLearningRate);

impl LearningRates {
    pub(crate) fn of(&self, path: &ParameterPath) -> f64 {
        // Ids are random per construction, so groups match by path.
        self.0.lr_from_param(ParamId::new(), Some(path.as_str()))
    }

    /// Returns the rates of some parameters, to save them.
    pub(crate) fn of_all<'a>(&self, paths: impl Iterator<Item = &'a ParameterPath>) -> StepRates {
        let base = self.0.base();
        let rates = paths.map(|path| (path, self.of(path)));
        let others = rates.filter(|(_, rate)| *rate != base);
        StepRates {
            base,
            others: others.map(|(path, rate)| (path.clone(), rate)).collect(),
        }
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
pub(crate) enum LastRates {
    /// As a step of this process got them.
    Given(LearningRates),
    /// As a checkpoint has them.
    Saved(StepRates),
}
