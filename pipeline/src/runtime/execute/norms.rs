//! The change of all gradients by their norm.

use super::on_rank::OnRank;
use crate::ActionError;
use crate::runtime::clip::{Change, Clipping, Norms};
use crate::schedule::StageIndex;

impl OnRank<'_> {
    /// Returns the change of the gradients of all stages before the update; computed once per round.
    pub(super) fn change(&mut self) -> Result<Change, ActionError> {
        if let Some(change) = self.change {
            return Ok(change);
        }
        let settings = &self.rank.setup.settings;
        let stops = settings.stop_on_non_finite;
        let max = match settings.clipping {
            Some(Clipping::GlobalNorm(max)) => Some(max),
            Some(Clipping::Each(_)) | None => None,
        };
        let change = match (max, self.round.loss_scale) {
            (None, None) if !stops => Change::Keep,
            (max, scale) => {
                let squares = self.squared_norms()?;
                // A loss scale is a power of two, so the division is exact.
                let norm = squares.iter().sum::<f64>().sqrt() / scale.unwrap_or(1.0);
                self.report.gradient_norm = Some(norm);
                let loss_is_finite = self.norms.values().all(|norms| norms.loss_is_finite);
                // With a loss scale, steps whose gradients overflow are skipped.
                let is_finite = loss_is_finite && (norm.is_finite() || scale.is_some());
                if stops && !is_finite {
                    let of = squares.iter().enumerate().filter(|(_, s)| !s.is_finite());
                    self.report.stopped = Some(of.map(|(position, _)| position).collect());
                    Change::Skip
                } else {
                    Change::of(norm, max, scale)
                }
            }
        };
        Ok(*self.change.insert(change))
    }

    /// The squared norms of the gradients of all stages, which were all received, in the order of the
    /// table.
    fn squared_norms(&mut self) -> Result<Vec<f64>, ActionError> {
        for index in self.rank.stage_indices() {
            self.norms_of(index)?;
        }
        let squares = self
            .rank
            .setup
            .layout
            .norm_order
            .iter()
            .map(|(stage, place)| {
                let of_stage = self.norms.get(stage);
                let square = of_stage.and_then(|norms| norms.squares.get(*place));
                *square.expect("certified lists update after the norms of all stages are known")
            });
        Ok(squares.collect())
    }

    /// The squared norms of the gradients of a stage of this rank, computed once.
    pub(super) fn norms_of(&mut self, index: StageIndex) -> Result<&Norms, ActionError> {
        if !self.norms.contains_key(&index) {
            let norms = self.norms_of_all(index)?;
            self.norms.insert(index, norms);
        }
        Ok(&self.norms[&index])
    }

    /// Whether the losses that this rank has computed are finite, if that is checked. The stage that computes a loss has
    /// finished it before the gradients of its parameters are complete.
    pub(super) fn loss_is_finite(&self) -> Result<bool, ActionError> {
        let stops = self.rank.setup.settings.stop_on_non_finite;
        let weighs = |k: usize| self.round.micro_batch(k).weight != 0.0;
        let losses = self.unread.losses.iter();
        let mut is_finite = true;
        for (_, loss) in losses.filter(|(k, _)| stops && weighs(*k)) {
            is_finite &= loss.to_data()?.iter::<f64>().all(f64::is_finite);
        }
        Ok(is_finite)
    }
}
