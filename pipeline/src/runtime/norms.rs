//! What is done to the gradients of all stages, by the norms of all of them.

use std::collections::btree_map::Entry;

use super::clip::{Change, Clipping, Norms};
use super::rank::Rank;
use super::step::{Round, RoundState};
use crate::ActionError;
use crate::schedule::StageIndex;

impl Rank {
    /// What is done to the gradients of all stages before the update; worked out once for a round.
    pub(super) fn change(
        &mut self,
        round: &Round,
        state: &mut RoundState,
    ) -> Result<Change, ActionError> {
        if let Some(change) = state.change {
            return Ok(change);
        }
        let max = match round.clipping {
            Some(Clipping::GlobalNorm(max)) => Some(max),
            Some(Clipping::Each(_)) | None => None,
        };
        let change = match (max, round.loss_scale) {
            (None, None) if !round.stop_on_non_finite => Change::Keep,
            (max, scale) => {
                let squares = self.squared_norms(round, state)?;
                // A factor that is a power of two changes no digit of the norm.
                let norm = squares.iter().sum::<f64>().sqrt() / scale.unwrap_or(1.0);
                state.report.gradient_norm = Some(norm);
                let loss_is_finite = state.norms.values().all(|norms| norms.loss_is_finite);
                // A loss scale has steps skipped whose gradients overflow.
                let is_finite = loss_is_finite && (norm.is_finite() || scale.is_some());
                if round.stop_on_non_finite && !is_finite {
                    let of = squares.iter().enumerate().filter(|(_, s)| !s.is_finite());
                    state.report.stopped = Some(of.map(|(position, _)| position).collect());
                    Change::Skip
                } else {
                    Change::of(norm, max, scale)
                }
            }
        };
        Ok(*state.change.insert(change))
    }

    /// The squared norms of the gradients of all stages, which have all sent theirs, in the order of the table.
    fn squared_norms(
        &mut self,
        round: &Round,
        state: &mut RoundState,
    ) -> Result<Vec<f64>, ActionError> {
        for index in self.stage_indices() {
            self.norms_of(index, round, state)?;
        }
        let squares = self.table_order().iter().map(|(stage, place)| {
            let of_stage = state.norms.get(stage);
            let square = of_stage
                .and_then(|norms| norms.squares.get(*place))
                .copied();
            square.ok_or(ActionError::MissingNorms { stage: *stage })
        });
        squares.collect()
    }

    /// The squared norms of the gradients of a stage of this rank, worked out once.
    pub(super) fn norms_of<'s>(
        &mut self,
        index: StageIndex,
        round: &Round,
        state: &'s mut RoundState,
    ) -> Result<&'s Norms, ActionError> {
        Ok(match state.norms.entry(index) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(place) => {
                // The stage that makes the loss has made all of it before the gradients of its parameters are whole.
                let weighs = |micro_batch: usize| round.micro_batches[micro_batch].weight != 0.0;
                let losses = state.report.losses.iter();
                let losses = losses.filter(|(k, _)| round.stop_on_non_finite && weighs(*k));
                let mut loss_is_finite = true;
                for (_, loss) in losses {
                    loss_is_finite &= loss.to_data()?.iter::<f64>().all(f64::is_finite);
                }
                let sums = self.stage_mut(index)?.square_sums();
                place.insert(Norms {
                    squares: sums.norms(|sums| sums.to_data())?,
                    loss_is_finite,
                })
            }
        })
    }
}
