//! Replaces the parameters and the state of the optimizer of a stage by saved ones.

use tinderbox_deferred::{ParameterPath, Reload, Source};

use super::setup::RankSetup;
use super::stage::Stage;
use crate::RestoreError;
use crate::runtime::optimizer::SavedOptimizer;

/// For which parameters of a rank a saved state of optimizers has states.
#[derive(Debug, Default)]
pub(crate) struct StatesFound {
    /// Whether there is one.
    pub(crate) is_any: bool,
    /// The parameters without.
    pub(crate) without: Vec<ParameterPath>,
}

impl Stage {
    /// Checks that saved values fit, and returns which states were found. Reads no values and changes nothing.
    pub(crate) fn check_restore(
        &self,
        source: &dyn Source,
        state: &dyn SavedOptimizer,
    ) -> Result<StatesFound, RestoreError> {
        let mut found = StatesFound::default();
        let RankSetup { table, device, .. } = &*self.setup;
        for module in [&self.held.owned, &self.held.copies] {
            let reload = Reload::new(table, module, device);
            reload.check(table, source, self.setup.settings.memory)?;
        }
        if let Some(optimizer) = &self.optimizer {
            for (position, piece) in self.own_pieces().iter().enumerate() {
                let path = self.held.owned.path(piece.place);
                let parameter = (position, path, &*piece.shape);
                let fields = state.fields(path);
                optimizer.check(parameter, &fields, device)?;
                match fields.is_empty() && state.state(path).is_none() {
                    true => found.without.push(path.clone()),
                    false => found.is_any = true,
                }
            }
        }
        Ok(found)
    }

    /// Replaces parameters and optimizer state, one after the other. After an error, some are new and
    /// others old.
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
        self.restore_optimizer(state)
    }

    /// Replaces the state of the optimizer.
    pub(crate) fn restore_optimizer(
        &mut self,
        state: &dyn SavedOptimizer,
    ) -> Result<(), RestoreError> {
        let setup = &*self.setup;
        let Some(optimizer) = &mut self.optimizer else {
            return Ok(());
        };
        let pieces = self.pieces.of(setup.replica).iter();
        let parameters = pieces.map(|piece| (self.held.owned.path(piece.place), piece));
        let parameters: Vec<_> = parameters.collect();
        optimizer.restore(&parameters, state, &setup.device, &*setup.progress)
    }
}
