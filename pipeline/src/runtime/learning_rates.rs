//! The learning rates of steps.

use std::collections::BTreeMap;

use burn::module::ParamId;
use burn::optim::lr_scheduler::module_lr_scheduler::ModuleLearningRate;
use tinderbox_deferred::{ParameterPath, ParameterTable};

/// The learning rates of a step.
#[derive(Clone, Debug, PartialEq)]
pub struct StepRates {
    /// The rate of all parameters that no group has.
    pub base: f64,
    /// The rates of the parameters that have another one, by path.
    pub others: BTreeMap<ParameterPath, f64>,
}

impl StepRates {
    /// The rates of the parameters of a model.
    pub(crate) fn new(rates: &ModuleLearningRate, table: &ParameterTable) -> Self {
        let base = rates.base();
        // Ids are random per construction, so groups match by path.
        let rate = |path: &str| rates.lr_from_param(ParamId::new(), Some(path));
        let paths = table.distinct().map(|parameter| &parameter.path);
        let all = paths.map(|path| (path, rate(path.as_str())));
        let others = all.filter(|(_, rate)| *rate != base);
        let others = others.map(|(path, rate)| (path.clone(), rate)).collect();
        Self { base, others }
    }

    /// The rate of a parameter.
    pub(crate) fn of(&self, path: &ParameterPath) -> f64 {
        self.others.get(path).copied().unwrap_or(self.base)
    }
}
