//! A stage that holds its parameters only while it runs.

use std::sync::Arc;

use burn::tensor::DType;
use tinderbox_deferred::{PartialModule, ProgramInput, Source};

use super::stage::{RankSetup, Stage};
use crate::runtime::optimizer::State;
use crate::runtime::streamed::{ParameterRows, StageValues, request_as};
use crate::schedule::StageIndex;
use crate::{ActionError, ActionResult};

impl Stage {
    /// Creates a stage without parameters, which [`attach`](Self::attach) adds while it runs.
    pub(crate) fn streamed(index: StageIndex, setup: &Arc<RankSetup>) -> Self {
        let none = PartialModule::default;
        Self::with(index, setup, none(), none())
    }

    /// Adds parameters and the optimizer's states of the trained ones, until [`detach`](Self::detach). In a training step the
    /// stage owns its parameters, with the states of their optimizer if it updates them. Otherwise it only reads them, and
    /// reads rows of its other parameters from a source.
    pub(crate) fn attach(
        &mut self,
        values: StageValues,
        rows: Option<Arc<dyn Source>>,
    ) -> ActionResult {
        let setup = self.setup.clone();
        let table = setup.table.iter().as_slice();
        let mut parameters = values.parameters;
        if rows.is_none() {
            // In the order of the table, as in a stage that keeps them.
            let mut owned = setup.layout.owned(self.index()).to_vec();
            owned.sort_unstable();
            let owned = owned.iter().filter_map(|position| {
                Some((table[*position].path.clone(), parameters.remove(position)?))
            });
            let owned = PartialModule::new(owned.collect::<Vec<_>>())?;
            if self.held.places.is_empty() {
                // The stage gets them for the first time.
                let with = Self::with(self.index, &setup, owned, PartialModule::default());
                let loaded = std::mem::take(&mut self.loaded);
                let carried = std::mem::take(&mut self.carried);
                *self = Self {
                    loaded,
                    carried,
                    ..with
                };
            } else {
                self.held.owned = owned;
            }
        }
        self.held.rows = rows;
        self.held.streamed = parameters;
        let mut states = values.states;
        if states.is_empty() {
            return Ok(());
        }
        let set = self.set_states(|path| states.remove(&setup.table.position(path)?));
        set.map_err(|source| ActionError::State { source })
    }

    /// Removes the values of the stage.
    pub(crate) fn detach(&mut self) -> StageValues {
        let mut values = StageValues {
            parameters: std::mem::take(&mut self.held.streamed),
            ..StageValues::default()
        };
        self.held.cast.clear();
        self.held.rows = None;
        for loaded in self.loaded.values_mut() {
            loaded.constants = None;
        }
        let owned = std::mem::take(&mut self.held.owned);
        // Empty while the stage has no values.
        for (position, index) in self.held.owned_places().filter(|_| !owned.is_empty()) {
            values.parameters.insert(position, owned.value(index));
            let mut optimizers = self.optimizers.iter_mut();
            let optimizer = optimizers.find(|of| of.piece.place == index);
            let state = optimizer.and_then(|of| of.state.take());
            let state = state.map_or(State::None, State::Kept);
            values.states.insert(position, state);
        }
        values
    }

    /// The input for the rows of a parameter, if the stage does not hold the whole parameter.
    pub(crate) fn rows(&self, position: usize, dtype: DType) -> Option<ProgramInput> {
        let source = self.held.rows.as_ref()?;
        if self.held.streamed.contains_key(&position) {
            return None;
        }
        let RankSetup { table, device, .. } = &*self.setup;
        Some(ProgramInput::Rows(Arc::new(ParameterRows {
            source: source.clone(),
            whole: request_as(table, position, dtype, device),
            observer: self.setup.progress.clone(),
        })))
    }
}
