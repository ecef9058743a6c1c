//! The carried tensors of a batch: each stage that reads one replaces it by its new value.

use super::refused::other_value;
use super::run::ListRun;
use crate::CertifyError;
use crate::schedule::{MicroBatchIndex, StageIndex, Task};

impl ListRun<'_> {
    /// Fails if a program reads a carried tensor that its stage does not replace, or has replaced.
    pub(super) fn read_carried(&self, task: Task, position: usize) -> Result<(), CertifyError> {
        let k = task.micro_batch.index();
        if !self.replica.micro_batches[k].carried.contains(&position) {
            return Ok(());
        }
        let tensor = format!("tensor {position} of the batch");
        let programs = self.programs(task.stage, task.micro_batch);
        let phase = programs.phase(task.compute);
        if !phase.is_some_and(|phase| phase.carried.contains(&position)) {
            let expected = format!("the new value of {tensor} from the stage that reads it");
            return Err(self.expected(&expected, "no new value"));
        }
        match self.carried.contains(&(task.stage, k, position)) {
            false => Ok(()),
            true => Err(self.expected(&tensor, "its new value")),
        }
    }

    /// Replaces a carried tensor.
    pub(super) fn replace_carried(
        &mut self,
        task: Task,
        position: usize,
    ) -> Result<(), CertifyError> {
        let k = task.micro_batch.index();
        match self.carried.insert((task.stage, k, position)) {
            true => Ok(()),
            false => {
                let expected = format!("one new value of tensor {position} of the batch");
                Err(self.expected(&expected, "a second one"))
            }
        }
    }

    /// Fails if no stage has replaced a carried tensor.
    pub(super) fn end_carried(&self) -> Result<(), CertifyError> {
        for (k, programs) in self.replica.micro_batches.iter().enumerate() {
            for position in &programs.carried {
                let mut stages = (0..self.schedule().stages).map(StageIndex::new);
                if !stages.any(|stage| self.carried.contains(&(stage, k, *position))) {
                    let micro_batch = Some(MicroBatchIndex::new(k));
                    let site = self.end_of(StageIndex::new(0), micro_batch);
                    let expected = format!("a new value of tensor {position} of the batch");
                    return Err(other_value(site, &expected, "none".into()));
                }
            }
        }
        Ok(())
    }
}
