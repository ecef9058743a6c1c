//! A stage whose parameters are there only while it runs.

use std::collections::HashMap;
use std::sync::Arc;

use burn::tensor::DType;
use parking_lot::Mutex;
use tinderbox_deferred::{ParameterPath, PartialModule, ProgramInput, Source};

use super::stage::{RankSetup, Stage};
use crate::ActionError;
use crate::runtime::streamed::{ParameterRows, StageValues, State, States, request_as};
use crate::schedule::StageIndex;

impl Stage {
    /// A stage without parameters, which get them while it runs ([`attach`](Self::attach)).
    pub(crate) fn streamed(index: StageIndex, setup: &Arc<RankSetup>) -> Self {
        let none = PartialModule::default;
        Self::with(index, setup, none(), none())
    }

    /// Gives it parameters, and the optimizer's states of those that are trained, until [`detach`](Self::detach). In a training
    /// step it owns its parameters, with the states of their optimizer if it updates them; else it only reads them, and rows of
    /// its other parameters from a source.
    pub(crate) fn attach(
        &mut self,
        values: StageValues,
        rows: Option<Arc<dyn Source>>,
    ) -> Result<(), ActionError> {
        let setup = self.setup.clone();
        let table = setup.table.iter().as_slice();
        let mut parameters = values.parameters;
        if rows.is_none() {
            // In the order of the table, as in a stage that keeps them.
            let mut owned = setup.layout.owned(self.index()).to_vec();
            owned.sort_unstable();
            let owned = owned.iter().filter_map(|position| {
                let value = parameters.remove(position)?;
                Some((table[*position].path.clone(), value))
            });
            let owned = PartialModule::new(owned.collect::<Vec<_>>())?;
            if self.held.places.is_empty() {
                // It has not had them before.
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
        if !values.states.is_empty() {
            let states = values.states.into_iter();
            let states = states.map(|(at, state)| (table[at].path.clone(), state));
            let states: HashMap<ParameterPath, State> = states.collect();
            let restored = self.restore_optimizer(&States(Mutex::new(states)));
            restored.map_err(|source| ActionError::State { source })?;
        }
        Ok(())
    }

    /// Takes its values.
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
        // None while it has no values.
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

    /// The rows of a parameter, if the stage has not the whole of it.
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
