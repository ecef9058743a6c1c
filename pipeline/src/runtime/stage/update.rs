//! The gradients of a stage, from the gradients of a micro-batch to the update, and the restore of the values that an update
//! changes.

use std::collections::BTreeMap;

use tinderbox_deferred::{ParameterPath, Reload, Source};
use tinderbox_fake::{DynTensor, typed_shape};

use super::held::Place;
use super::stage::{RankSetup, Stage};
use crate::runtime::clip::{GradientChange, each, scaled};
use crate::runtime::learning_rates::StepRates;
use crate::runtime::optimizer::{SavedOptimizer, State, restore_states};
use crate::runtime::pieces::PieceValues;
use crate::runtime::settings::GradientHook;
use crate::{ActionError, ActionResult, LinkError, RestoreError};

impl Stage {
    /// Adds the gradient of a micro-batch of a group, in the dtype of the parameter.
    pub(crate) fn accumulate(&mut self, position: usize, group: usize, gradient: DynTensor) {
        if let Some(Place::Owned(place)) = self.held.places.get(&position).copied()
            && !self.gradients.frozen.contains(&place)
        {
            let gradient = gradient.cast_float(self.held.owned.dtype(place));
            self.gradients.sums[place].add(group, gradient, |sum, gradient| sum + gradient);
        }
    }

    /// Completes the gradients of this replica's micro-batches, and returns the gradients of the pieces of each replica.
    pub(crate) fn complete(&mut self) -> Vec<PieceValues> {
        let sums = self.gradients.sums.iter_mut();
        let complete: PieceValues = sums.map(|sum| sum.finish(|a, b| a + b)).collect();
        let of_replica = |replica| {
            let pieces = self.pieces.of(replica).iter();
            let parts = pieces.map(|piece| Some(piece.of(complete[piece.place].clone()?)));
            parts.collect()
        };
        (0..self.pieces.replicas()).map(of_replica).collect()
    }

    /// Sets the gradients of the pieces that the stage updates, from a first piece on.
    pub(crate) fn set_gradients(&mut self, first: usize, gradients: PieceValues) {
        for (place, gradient) in self.gradients.complete[first..].iter_mut().zip(gradients) {
            *place = gradient;
        }
    }

    /// Ends a step without an update: running states keep the values that they had before the step.
    fn drop_gradients(&mut self) {
        self.clear_gradients();
        let kept = self.gradients.kept.iter_mut();
        kept.for_each(|kept| kept.fill(None));
    }

    /// Drops gradients and values of running states of an unfinished step.
    pub(super) fn clear_gradients(&mut self) {
        self.gradients.clear();
        self.held.updated_states.clear();
    }

    /// Changes the gradient of every piece that has one, clips it and runs its optimizer, until a rank fails. Replaces the
    /// running states that forwards have updated. Returns the new value of each updated piece. A skipped step updates
    /// nothing.
    pub(crate) fn update(
        &mut self,
        rates: &StepRates,
        change: GradientChange,
    ) -> ActionResult<PieceValues> {
        let pieces = self.own_pieces().len();
        if change == GradientChange::Skip {
            self.drop_gradients();
            return Ok(vec![None; pieces]);
        }
        self.recorded = None;
        let updated = (0..pieces).map(|at| self.update_piece(at, rates, change));
        let updated = updated.collect::<Result<_, _>>()?;
        let device = &self.setup.device;
        for (position, value) in std::mem::take(&mut self.held.updated_states) {
            self.held.set(position, value, device)?;
        }
        Ok(updated)
    }

    /// Updates one piece, and returns its new value if other replicas need it.
    fn update_piece(
        &mut self,
        at: usize,
        rates: &StepRates,
        change: GradientChange,
    ) -> ActionResult<Option<DynTensor>> {
        let settings = &self.setup.settings;
        let piece = &self.pieces.of(self.setup.replica)[at];
        let path = self.held.owned.path(piece.place);
        let optimizer = self.optimizers.get(at);
        let clipping = optimizer.and_then(|of| of.rule.clipping.as_ref());
        let changed = |mut gradient| {
            if self.setup.abort.is_triggered() {
                return Err(ActionError::from(LinkError::Aborted));
            }
            if let GradientChange::Scale(factor) = change {
                gradient = scaled(gradient, factor);
            }
            for config in settings.each().into_iter().chain(clipping) {
                gradient = each(config, gradient)?;
            }
            match &settings.gradient_hook {
                Some(hook) => hooked(&**hook, path, gradient),
                None => Ok(gradient),
            }
        };
        let gradient = self.gradients.complete[at].take();
        let gradient = gradient.map(changed).transpose()?;
        if let Some(kept) = &mut self.gradients.kept {
            kept[at].clone_from(&gradient);
        }
        let Some(optimizer) = self.optimizers.get_mut(at) else {
            return Ok(None);
        };
        let value = piece.of(self.held.owned.value(piece.place));
        let Some(gradient) = gradient else {
            if let Some(decay) = settings.average_decay {
                optimizer.average_unchanged(value, decay);
            }
            return Ok(None);
        };
        let value = optimizer.step(rates.of(path), value, gradient);
        let place = Place::Owned(piece.place);
        match piece.is_whole() {
            true => self.held.replace(place, value.clone())?,
            false => self.gradients.updated_rows[at] = Some(value.clone()),
        }
        // Without replicas no other rank needs the value, and a second handle would prevent work in place.
        Ok((self.pieces.replicas() > 1).then_some(value))
    }

    /// Replaces parameters by the values that the other replicas have sent for their pieces, and by its own new rows. Pieces
    /// without a value are unchanged. The entry of this replica is ignored.
    pub(crate) fn gather(&mut self, mut given: Vec<PieceValues>) -> ActionResult {
        self.recorded = None;
        let own = self.setup.replica;
        let mut rows: BTreeMap<usize, Vec<DynTensor>> = BTreeMap::new();
        given[own] = std::mem::take(&mut self.gradients.updated_rows);
        self.gradients.updated_rows = vec![None; given[own].len()];
        for (replica, values) in given.into_iter().enumerate() {
            let given = self.pieces.of(replica).iter().zip(values);
            for (piece, value) in given.filter_map(|(piece, value)| Some((piece, value?))) {
                let value = value.to_device(&self.setup.device)?;
                match piece.is_whole() {
                    true => self.held.replace(Place::Owned(piece.place), value)?,
                    false => rows.entry(piece.place).or_default().push(value),
                }
            }
        }
        for (place, parts) in rows {
            self.held
                .replace(Place::Owned(place), DynTensor::joined(parts))?;
        }
        Ok(())
    }

    /// Checks that saved values fit, and adds the states that were found to `found`. Reads no values and changes nothing.
    pub(crate) fn check_restore(
        &self,
        source: &dyn Source,
        state: &dyn SavedOptimizer,
        found: &mut StatesFound,
    ) -> Result<(), RestoreError> {
        let RankSetup { table, device, .. } = &*self.setup;
        for module in [&self.held.owned, &self.held.copies] {
            let reload = Reload::new(table, module, device);
            reload.check(table, source, self.setup.settings.memory_check)?;
        }
        for optimizer in &self.optimizers {
            let (path, shape) = (&optimizer.path, &optimizer.piece.shape);
            let fields = state.fields(path);
            optimizer.rule.check(path, shape, &fields, device)?;
            match fields.is_empty() {
                true => found.without.push(path.clone()),
                false => found.is_any = true,
            }
        }
        Ok(())
    }

    /// Replaces parameters and optimizer state, one after the other. After an error, some are new and
    /// others are old.
    pub(crate) fn restore(
        &mut self,
        source: &dyn Source,
        state: &dyn SavedOptimizer,
    ) -> Result<(), RestoreError> {
        self.held.cast.clear();
        self.recorded = None;
        self.drop_gradients();
        let setup = &*self.setup;
        for module in [&mut self.held.owned, &mut self.held.copies] {
            let reload = Reload::new(&setup.table, module, &setup.device);
            reload.run(module, source, &*setup.progress)?;
        }
        restore_states(&mut self.optimizers, state, &setup.device, &*setup.progress)
    }

    /// Replaces the state of the optimizer of each parameter.
    pub(crate) fn set_states(
        &mut self,
        mut state: impl FnMut(&ParameterPath) -> Option<State>,
    ) -> Result<(), RestoreError> {
        for optimizer in &mut self.optimizers {
            let state = state(&optimizer.path).unwrap_or(State::None);
            optimizer.set_state(state, &self.setup.device)?;
            self.setup.progress.report();
        }
        Ok(())
    }
}

/// Calls a hook with a gradient, and checks the dtype and shape of its result.
fn hooked(hook: &GradientHook, path: &ParameterPath, given: DynTensor) -> ActionResult<DynTensor> {
    let text = |tensor: &DynTensor| typed_shape(tensor.dtype(), &tensor.shape());
    let expected = text(&given);
    let changed = hook(path, given);
    let found = text(&changed);
    match found == expected {
        true => Ok(changed),
        false => Err(ActionError::Gradient {
            path: path.clone(),
            expected,
            found,
        }),
    }
}

/// The parameters of a rank with and without a saved state of the optimizer.
#[derive(Debug, Default)]
pub(crate) struct StatesFound {
    /// Whether any parameter has a state.
    pub(crate) is_any: bool,
    /// The parameters without a state.
    pub(crate) without: Vec<ParameterPath>,
}
