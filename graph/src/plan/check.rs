//! Checks whether a plan is for a model.

use tinderbox_deferred::ParameterTable;

use super::{Plan, build, text};
use crate::PlanError;
use crate::batch::Batch;
use crate::cut::Layout;
use crate::trace::{JointGraph, Trace};

impl Plan {
    /// Checks that the plan is for a model with these parameters.
    ///
    /// # Errors
    ///
    /// [`PlanError`] with the parameters that differ, or the one that is not owned exactly once.
    pub fn check_model(&self, table: &ParameterTable) -> Result<(), PlanError> {
        self.layout(table).map(drop)
    }

    /// Checks that the plan is for this forward, if it was created for the same kind of batch.
    ///
    /// # Errors
    ///
    /// [`PlanError::OtherForward`] with the first operation that differs.
    pub fn check_program(&self, joint: &JointGraph) -> Result<(), PlanError> {
        let file = &self.file;
        if joint.key().to_string() != file.program || build::graph_digest(joint) == file.graph {
            return Ok(());
        }
        let found = text::forward(joint);
        let longest = found.len().max(file.forward.len());
        let differs = |at: &usize| found.get(*at) != file.forward.get(*at);
        let position = (0..longest).find(differs).unwrap_or(longest);
        Err(PlanError::OtherForward {
            position,
            expected: file.forward.get(position).cloned(),
            found: found.get(position).cloned(),
        })
    }

    /// Checks that the plan is for the forward of a trace, if it was created for batches like its example, with any number of
    /// samples.
    pub fn check_trace<B: Batch>(&self, trace: &Trace<B>) -> Result<(), PlanError> {
        let traced = trace.example_program()?;
        match self.file.samples {
            Some(samples) if traced.key().to_string() != self.file.program => {
                // A batch that can't have so many samples is another one than the planned.
                trace
                    .program_of_samples(samples)
                    .map_or(Ok(()), |program| self.check_program(&program))
            }
            _ => self.check_program(&traced),
        }
    }

    pub fn layout(&self, table: &ParameterTable) -> Result<Layout, PlanError> {
        let found = build::plan_parameters(table);
        self.file.check_parameters(&found)?;
        let mut layout = Layout::of_plan(table, self.stages())?;
        let count = self.file.forward.len();
        let mut stages = vec![None; count];
        for (index, stage) in self.stages().iter().enumerate() {
            for (from, to) in &stage.operations {
                let end = count.min(*to);
                stages[end.min(*from)..end].fill(Some(index));
            }
        }
        // A file without the operations has only the owners of parameters.
        let stages = stages.into_iter().collect::<Option<Vec<usize>>>();
        layout.operations = stages.map(|stages| (self.file.structure.clone(), stages));
        layout.replicas = self.replica_count();
        Ok(layout)
    }
}
