//! The gradients of a stage, from the gradients of a micro-batch to the update.

use std::collections::BTreeMap;

use tinderbox_deferred::ParameterPath;
use tinderbox_fake::{DynTensor, dtype_name};

use super::{Place, Stage};
use crate::ActionError;
use crate::runtime::clip::{SquareSums, each};
use crate::runtime::learning_rates::LearningRates;
use crate::runtime::settings::GradientHook;
use crate::sum::TreeSum;

impl Stage {
    /// Adds the gradient of a micro-batch of a group, in the dtype of the parameter.
    pub(in crate::runtime) fn accumulate(
        &mut self,
        position: usize,
        group: usize,
        gradient: DynTensor,
    ) {
        if let Some(Place::Owned(place)) = self.places.get(&position).copied()
            && !self.frozen.contains(&place)
        {
            let gradient = gradient.cast_float(self.owned.value(place).dtype());
            self.sums[place].add(group, gradient, |sum, gradient| sum + gradient);
        }
    }

    /// Completes the gradients of this replica's micro-batches, and returns the gradients of the pieces of each replica.
    pub(in crate::runtime) fn complete(&mut self) -> Vec<Vec<Option<DynTensor>>> {
        let sums = self.sums.iter_mut();
        let complete: Vec<Option<DynTensor>> = sums.map(|sum| sum.finish(|a, b| a + b)).collect();
        let of_replica = |replica| {
            let pieces = self.pieces.of(replica).iter();
            let parts = pieces.map(|piece| Some(piece.of(complete[piece.place].clone()?)));
            parts.collect()
        };
        (0..self.pieces.replicas()).map(of_replica).collect()
    }

    /// Sets the gradients of the pieces that it updates, from a first piece on.
    pub(in crate::runtime) fn set_gradients(
        &mut self,
        first: usize,
        gradients: impl IntoIterator<Item = Option<DynTensor>>,
    ) {
        let places = self.gradients[first..].iter_mut();
        places
            .zip(gradients)
            .for_each(|(place, gradient)| *place = gradient);
    }

    /// The gradients of the pieces that it updates.
    pub(in crate::runtime) fn own_gradients(&self) -> &[Option<DynTensor>] {
        &self.gradients
    }

    /// Ends a step without an update: running states keep their values from before it.
    pub(in crate::runtime) fn drop_gradients(&mut self) {
        self.clear_gradients();
        self.kept_gradients
            .iter_mut()
            .for_each(|kept| kept.fill(None));
    }

    /// Drops gradients and values of running states of an unfinished step.
    pub(in crate::runtime) fn clear_gradients(&mut self) {
        self.sums.fill_with(TreeSum::default);
        self.gradients.fill(None);
        self.updated_rows.fill(None);
        self.updated_states.clear();
    }

    /// The squares of the gradients of the pieces that it updates.
    pub(in crate::runtime) fn square_sums(&self) -> SquareSums {
        SquareSums::of(&self.gradients)
    }

    /// The bytes of the gradients that it holds.
    pub(in crate::runtime) fn gradient_bytes(&self) -> u64 {
        let sums = self.sums.iter().flat_map(TreeSum::held);
        let held = sums.chain(self.gradients.iter().flatten());
        held.map(DynTensor::bytes).sum()
    }

    /// Runs the optimizer on every piece that has a gradient, each clipped by `clip`, and replaces the running
    /// states that forwards have updated. Returns the new value of each piece that it has updated.
    pub(in crate::runtime) fn update(
        &mut self,
        lr: &LearningRates,
        mut clip: impl FnMut(DynTensor) -> Result<DynTensor, ActionError>,
    ) -> Result<Vec<Option<DynTensor>>, ActionError> {
        self.recorded = None;
        let setup = self.setup.clone();
        let hook = setup.settings.gradient_hook.as_deref();
        let mut updated = Vec::new();
        for (at, piece) in self.pieces.of(setup.replica).iter().enumerate() {
            let place = piece.place;
            let mut gradient = self.gradients[at].take().map(&mut clip).transpose()?;
            let of_optimizer = self.optimizer.as_ref().and_then(|o| o.clipping(at));
            if let Some(config) = of_optimizer {
                gradient = gradient
                    .map(|gradient| each(config, gradient))
                    .transpose()?;
            }
            if let Some(hook) = hook {
                let path = self.owned.path(place);
                gradient = gradient
                    .map(|gradient| hooked(hook, path, gradient))
                    .transpose()?;
            }
            if let Some(kept) = &mut self.kept_gradients {
                kept[at] = gradient.clone();
            }
            let Some(optimizer) = &mut self.optimizer else {
                updated.push(None);
                continue;
            };
            let value = piece.of(self.owned.value(place));
            let Some(gradient) = gradient else {
                if let Some(decay) = setup.settings.average_decay {
                    optimizer.average_unchanged(at, value, decay);
                }
                updated.push(None);
                continue;
            };
            let rate = lr.of(self.owned.path(place));
            let value = optimizer.step(at, rate, value, gradient);
            match piece.is_whole() {
                true => {
                    self.owned.replace(place, value.clone())?;
                    self.cast.remove(&Place::Owned(place));
                }
                false => self.updated_rows[at] = Some(value.clone()),
            }
            // Without replicas nobody else needs the value, and a second handle would prevent work in place.
            updated.push((self.pieces.replicas() > 1).then_some(value));
        }
        for (position, value) in std::mem::take(&mut self.updated_states) {
            self.set(position, value)?;
        }
        Ok(updated)
    }

    /// Replaces parameters by the values that the other replicas have given for their pieces, and by its own new rows; pieces
    /// without a value are unchanged. The entry of this replica is ignored.
    pub(in crate::runtime) fn gather(
        &mut self,
        mut given: Vec<Vec<Option<DynTensor>>>,
    ) -> Result<(), ActionError> {
        self.recorded = None;
        let own = self.setup.replica;
        let mut rows: BTreeMap<usize, Vec<DynTensor>> = BTreeMap::new();
        given[own] = std::mem::take(&mut self.updated_rows);
        self.updated_rows = vec![None; given[own].len()];
        for (replica, values) in given.into_iter().enumerate() {
            for (piece, value) in self.pieces.of(replica).iter().zip(values) {
                let Some(value) = value else {
                    continue;
                };
                let value = value.to_device(&self.setup.device)?;
                match piece.is_whole() {
                    true => {
                        self.owned.replace(piece.place, value)?;
                        self.cast.remove(&Place::Owned(piece.place));
                    }
                    false => rows.entry(piece.place).or_default().push(value),
                }
            }
        }
        for (place, parts) in rows {
            self.owned.replace(place, DynTensor::joined(parts))?;
            self.cast.remove(&Place::Owned(place));
        }
        Ok(())
    }
}

/// What a hook makes of a gradient.
fn hooked(
    hook: &GradientHook,
    path: &ParameterPath,
    gradient: DynTensor,
) -> Result<DynTensor, ActionError> {
    let text = |tensor: &DynTensor| {
        format!(
            "{}{:?}",
            dtype_name(tensor.dtype()),
            tensor.shape().as_slice()
        )
    };
    let expected = text(&gradient);
    let changed = hook(path, gradient);
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
