//! The prediction of a pass from a plan alone.

use super::{StreamItem, StreamPlan, StreamPrediction, StreamVisit};
use crate::{DiskRate, PlanFile, PlanStage, StreamError};

impl PlanFile {
    /// Predicts a pass over the model, streamed with this plan within so many bytes for parameters and activations, at the rate of
    /// its machine's [disk](crate::Machine::disk): a disk that was not measured takes no time.
    ///
    /// Parameters stay as whole stages, and one of several stages counts for each of them; of a table of which few rows are read, all
    /// bytes count. So a model that is started reads less.
    ///
    /// # Errors
    ///
    /// When the limit is too low for a stage: the error has the least one.
    pub fn streamed(&self, values_bytes: u64) -> Result<StreamPrediction, StreamError> {
        let items = self.stages.iter().map(PlanStage::held_bytes);
        let items = items.map(|bytes| StreamItem {
            bytes,
            ..StreamItem::default()
        });
        let micro_batches = self.step.micro_batches.max(1) as u64;
        let visits = self.stages.iter().enumerate().map(|(index, stage)| {
            let values = [&stage.live_in, &stage.live_out, &stage.bypassing];
            let values = values.into_iter().flatten().map(|value| value.bytes);
            let kept = values.sum::<u64>().saturating_mul(micro_batches);
            StreamVisit {
                items: vec![index],
                other_bytes: kept.saturating_add(stage.costs.transient_bytes),
                compute_ns: 0,
            }
        });
        let plan = StreamPlan::new(items.collect(), visits.collect(), values_bytes)?;
        let disk = self.machine.disk.unwrap_or(DiskRate::new(u64::MAX));
        let forward = |stage: usize| self.stages[stage].costs.forward;
        let plan = plan.with_times(disk, |stage| forward(stage).saturating_mul(micro_batches));
        Ok(plan.predict())
    }
}
