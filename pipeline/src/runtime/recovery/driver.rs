//! What the driver has besides what is on the ranks.

use std::collections::BTreeSet;

use burn::module::Module;

use crate::PipelineError;
use crate::batch::Batch;
use crate::runtime::learning_rates::LastRates;
use crate::runtime::loss_scale::LossScale;
use crate::runtime::pipeline::Pipeline;
use crate::runtime::stage::Stage;

/// What the driver has at one point in time, the same on all processes.
#[derive(Clone, Debug)]
pub(super) struct Driver {
    pub(super) step: u64,
    pub(super) loss_scale: Option<LossScale>,
    pub(super) is_averaged: bool,
    pub(super) frozen: BTreeSet<usize>,
    pub(super) last_rates: Option<LastRates>,
    pub(super) changes: u64,
}

impl<M: Module + Sync + 'static, B: Batch> Pipeline<M, B> {
    pub(super) fn driver(&self) -> Driver {
        Driver {
            step: self.step,
            loss_scale: self.loss_scale,
            is_averaged: self.is_averaged,
            frozen: self.frozen.clone(),
            last_rates: self.last_rates.clone(),
            changes: self.changes,
        }
    }

    pub(super) fn set_driver(&mut self, driver: Driver) -> Result<(), PipelineError> {
        let frozen: Vec<usize> = driver.frozen.iter().copied().collect();
        self.step = driver.step;
        self.loss_scale = driver.loss_scale;
        self.is_averaged = driver.is_averaged;
        self.changes = driver.changes;
        self.frozen = driver.frozen;
        self.last_rates = driver.last_rates;
        self.crew.call("freeze parameters", move |_, stages| {
            let stages = stages.iter_mut();
            stages.for_each(|stage: &mut Stage| stage.set_trains(&frozen, false));
        })?;
        Ok(())
    }
}
