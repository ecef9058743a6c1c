//! The state of a stage's optimizer at one point in time.

use burn::optim::DynState;
use tinderbox_deferred::ParameterPath;
use tinderbox_fake::ExecutionError;

use super::saved::{SavedState, StatePart};
use super::state::{OptimizerState, PieceState};
use crate::runtime::pieces::Piece;

/// The state of a stage's optimizer at one point in time.
#[derive(Clone, Debug)]
pub struct OptimizerSnapshot {
    optimizer: Option<OptimizerState>,
    pieces: Vec<(ParameterPath, Piece)>,
}

impl OptimizerSnapshot {
    pub(in crate::runtime) fn new(
        optimizer: Option<OptimizerState>,
        pieces: Vec<(ParameterPath, Piece)>,
    ) -> Self {
        Self { optimizer, pieces }
    }

    /// Returns the state, copied to the host; empty without an optimizer.
    ///
    /// # Errors
    ///
    /// When the device fails.
    pub fn to_host(&self) -> Result<SavedState, ExecutionError> {
        let mut saved = SavedState::default();
        for PieceState {
            piece,
            tensors,
            scalars,
            ..
        } in self.of_pieces(|_, _| true)?
        {
            for (name, _) in tensors.iter().filter(|_| !piece.is_whole()) {
                let part = StatePart {
                    shape: piece.shape.clone(),
                    first_row: piece.rows.start,
                };
                saved.parts.insert(name.clone(), part);
            }
            saved.tensors.extend(tensors);
            if piece.rows.start == 0 {
                saved.scalars.extend(scalars);
            }
        }
        Ok(saved)
    }

    /// Returns the state of each piece that has one, and that is selected, copied to the host.
    pub(in crate::runtime) fn of_pieces(
        &self,
        is_selected: impl Fn(&ParameterPath, &Piece) -> bool,
    ) -> Result<Vec<PieceState<'_>>, ExecutionError> {
        match &self.optimizer {
            Some(optimizer) => optimizer.save(&self.pieces, is_selected),
            None => Ok(Vec::new()),
        }
    }

    /// Returns the state of each piece that has one, as it is.
    pub(in crate::runtime) fn states(
        &self,
    ) -> impl Iterator<Item = (&ParameterPath, &Piece, &DynState)> {
        let states = self.optimizer.iter().flat_map(OptimizerState::states);
        let pieces = self.pieces.iter().zip(states);
        pieces.filter_map(|((path, piece), state)| Some((path, piece, state.as_ref()?)))
    }
}
