//! A stage whose parameters are there only while it runs.

use std::sync::Arc;

use burn::tensor::DType;
use tinderbox_deferred::{PartialModule, ProgramInput, Request};

use super::held::Place;
use super::setup::RankSetup;
use super::stage::Stage;
use crate::ActionError;
use crate::runtime::streamed::{ParameterRows, State, States, StreamedSetup, Values};
use crate::schedule::StageIndex;

impl Stage {
    /// A stage without parameters, which get them while it runs ([`attach`](Self::attach)).
    pub(crate) fn streamed(index: StageIndex, setup: &Arc<RankSetup>) -> Self {
        let none = PartialModule::default;
        Self::with(index, setup, none(), none())
    }

    /// What it knows of how it gets its values.
    pub(crate) fn streamed_setup(&self) -> Option<Arc<StreamedSetup>> {
        self.setup.streamed.clone()
    }

    /// Gives it its values until [`detach`](Self::detach). In a training step it owns its parameters, with the states of their
    /// optimizer if it updates them; else it only reads them.
    pub(crate) fn attach(&mut self, values: Values, is_training: bool) -> Result<(), ActionError> {
        let Values {
            mut parameters,
            states,
            rows,
            ..
        } = values;
        let setup = self.setup.clone();
        let table = setup.table.iter().as_slice();
        let path = |position: &usize| &table[*position].path;
        if is_training {
            // In the order of the table, as in a stage that keeps them.
            let mut owned = setup.layout.owned(self.index()).to_vec();
            owned.sort_unstable();
            let owned = owned.iter().filter_map(|position| {
                let value = parameters.remove(position)?;
                Some((path(position).clone(), value))
            });
            let owned = PartialModule::new(owned.collect::<Vec<_>>())?;
            match self.held.places.is_empty() {
                true => self.own(owned),
                false => self.held.owned = owned,
            }
        }
        self.held.rows = rows;
        self.held.streamed = parameters;
        if !states.is_empty() {
            let states = states.into_iter();
            let states = States::new(states.map(|(at, state)| (path(&at).clone(), state)));
            self.restore_optimizer(&states)
                .map_err(|source| ActionError::State { source })?;
        }
        Ok(())
    }

    /// Takes parameters that it has not had before.
    fn own(&mut self, owned: PartialModule) {
        let with = Self::with(self.index(), &self.setup, owned, PartialModule::default());
        let loaded = std::mem::take(&mut self.loaded);
        let carried = std::mem::take(&mut self.carried);
        *self = Self {
            loaded,
            carried,
            ..with
        };
    }

    /// Takes its values.
    pub(crate) fn detach(&mut self) -> Values {
        let mut values = Values {
            parameters: std::mem::take(&mut self.held.streamed),
            ..Values::default()
        };
        self.held.cast.clear();
        self.held.rows = None;
        for loaded in self.loaded.values_mut() {
            loaded.drop_constants();
        }
        let owned = std::mem::take(&mut self.held.owned);
        if owned.is_empty() {
            return values;
        }
        for (position, place) in &self.held.places {
            let Place::Owned(index) = place else {
                continue;
            };
            values.parameters.insert(*position, owned.value(*index));
            let mut pieces = self.pieces.of(self.setup.replica).iter();
            let piece = pieces.position(|piece| piece.place == *index);
            let state = piece.and_then(|piece| self.optimizer.as_mut()?.take(piece));
            values
                .states
                .insert(*position, state.map_or(State::None, State::Kept));
        }
        values
    }

    /// The rows of a parameter, if the stage has not the whole of it.
    pub(crate) fn rows(&self, position: usize, dtype: DType) -> Option<ProgramInput> {
        let source = self.held.rows.as_ref()?;
        if self.held.streamed.contains_key(&position) {
            return None;
        }
        let parameter = &self.setup.table.iter().as_slice()[position];
        let whole = Request {
            dtype,
            ..Request::of(&self.setup.table, parameter, &self.setup.device)
        };
        let rows = ParameterRows::new(source.clone(), whole, self.setup.progress.clone());
        Some(ProgramInput::Rows(Arc::new(rows)))
    }
}
