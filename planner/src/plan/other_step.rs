//! The memory of a plan's stages in another step.

use std::mem;

use tinderbox_schedule::RankIndex;

use crate::predict::{PartitionCosts, RankMemory, StageBytes, predict_costs};
use crate::{PlanFile, PlannerError, Step};

impl PlanFile {
    /// Predicts the memory of each rank in another step of these stages: with another schedule, number of micro-batches, or
    /// optimizer. The micro-batches have the size of the planned one. The stages keep their ranks and replicas, and recompute what the
    /// plan says.
    ///
    /// Cost: a simulation of the step.
    ///
    /// # Errors
    ///
    /// When another schedule does not run the stages where they are; when the lists of a plan without a named schedule can't be
    /// found again within the memory of the ranks. A limit of the ranks that is exceeded otherwise is no error.
    pub fn memory_with(&self, step: &Step) -> Result<Vec<RankMemory>, PlannerError> {
        let step = Step {
            replicas: self.step.replicas,
            ..step.clone()
        };
        let replicas = step.replicas.max(1) as u64;
        let of_rank = |rank: RankIndex| {
            let planned = self.prediction.ranks.get(rank.index());
            let planned = planned.map_or(RankMemory::default(), |rank| rank.memory);
            let trained = planned.gradients / self.step.gradients_held();
            StageBytes {
                parameters: planned.parameters,
                gradients: planned.gradients,
                optimizer: trained.saturating_mul(step.optimizer_states) / replicas,
                transient: 0,
            }
        };
        let map = self.stage_to_rank();
        if step.schedule != self.step.schedule && step.lists(&map).is_none() {
            return Err(PlannerError::OtherPlaces {
                schedule: step.schedule,
                stages: self.stages.len(),
                ranks: self.ranks(),
                micro_batches: step.micro_batches,
            });
        }
        let mut costs = self.costs();
        let mut is_counted = vec![false; self.ranks()];
        let stages = costs.stages.iter_mut().zip(&map).map(|(stage, rank)| {
            // The first stage of a rank stands for what all of them hold.
            let held = match mem::replace(&mut is_counted[rank.index()], true) {
                false => of_rank(*rank),
                true => StageBytes::default(),
            };
            stage.resident_bytes = held.resident();
            StageBytes {
                transient: stage.transient_bytes,
                ..held
            }
        });
        let bytes = stages.collect();
        let dependencies = self.dependencies();
        let costs = PartitionCosts {
            costs,
            dependencies,
            bytes,
        };
        let bound = self.prediction.lower_bound_ns;
        let predicted = predict_costs(&self.machine, &step, &map, costs, bound)?;
        let ranks = predicted.prediction.ranks.into_iter();
        Ok(ranks.map(|rank| rank.memory).collect())
    }
}
