//! The parameters that a stage holds: its own, and copies of parameters of other stages.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use burn::tensor::{DType, Device};
use tinderbox_deferred::{ParameterTable, PartialModule, Source};
use tinderbox_fake::DynTensor;

use crate::ActionResult;
use crate::runtime::pieces::PieceValues;
use crate::sum::TreeSum;

/// The container and the index of a parameter of the stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Place {
    Owned(usize),
    Copy(usize),
}

/// The values of the parameters of a stage.
#[derive(derive_more::Debug, Default)]
pub(crate) struct Held {
    pub(super) owned: PartialModule,
    pub(super) copies: PartialModule,
    /// The places of the parameters, by position in the table.
    pub(super) places: BTreeMap<usize, Place>,
    /// Parameters in the dtype in which programs read them, if it is not their own dtype, from the first
    /// program that reads one to the next update.
    pub(super) cast: HashMap<Place, DynTensor>,
    /// New values of running states, by position in the table, until the update of the step.
    pub(super) updated_states: BTreeMap<usize, DynTensor>,
    /// The parameters of a streamed stage while it runs, by position in the table. Such a stage holds no others.
    pub(super) streamed: HashMap<usize, DynTensor>,
    /// The source of rows of its other parameters.
    #[debug(skip)]
    pub(super) rows: Option<Arc<dyn Source>>,
}

impl Held {
    pub(super) fn new(table: &ParameterTable, owned: PartialModule, copies: PartialModule) -> Self {
        let places = table.iter().enumerate();
        let places = places.filter_map(|(position, parameter)| {
            let own = owned.position(&parameter.path).map(Place::Owned);
            let copy = || copies.position(&parameter.path).map(Place::Copy);
            Some((position, own.or_else(copy)?))
        });
        Self {
            places: places.collect(),
            owned,
            copies,
            ..Self::default()
        }
    }

    /// The positions in the table of owned parameters, with their indices.
    pub(super) fn owned_places(&self) -> impl Iterator<Item = (usize, usize)> {
        self.places.iter().filter_map(|(at, place)| match place {
            Place::Owned(index) => Some((*at, *index)),
            Place::Copy(_) => None,
        })
    }

    /// The place of a parameter.
    pub(super) fn place(&self, position: usize) -> Place {
        let place = self.places.get(&position).copied();
        place.expect("certified programs and lists read parameters that the stage holds")
    }

    fn value(&self, place: Place) -> DynTensor {
        match place {
            Place::Owned(index) => self.owned.value(index),
            Place::Copy(index) => self.copies.value(index),
        }
    }

    /// The value of the parameter at a position of the table, in its own dtype.
    pub(super) fn value_at(&self, position: usize) -> DynTensor {
        self.value(self.place(position))
    }

    /// All values by position in the table, in its order.
    pub(crate) fn values(&self) -> impl Iterator<Item = (usize, DynTensor)> {
        let places = self.places.iter();
        places.map(|(position, place)| (*position, self.value(*place)))
    }

    /// The value of the parameter at a position of the table, in the dtype in which programs read it.
    pub(super) fn read(&mut self, position: usize, dtype: DType) -> DynTensor {
        if let Some(state) = self.updated_states.get(&position) {
            return state.clone().cast_float(dtype);
        }
        if let Some(value) = self.streamed.get(&position) {
            // It was read in the dtype of the program, unless programs differ.
            return value.clone().cast_float(dtype);
        }
        let place = self.place(position);
        if let Some(cast) = self.cast.get(&place).filter(|cast| cast.dtype() == dtype) {
            return cast.clone();
        }
        let value = self.value(place);
        if value.dtype() == dtype {
            return value;
        }
        let cast = value.cast_float(dtype);
        self.cast.insert(place, cast.clone());
        cast
    }

    /// Sets the value of a running state that the forward of a micro-batch computed.
    pub(crate) fn update_state(&mut self, position: usize, value: DynTensor) {
        // A value that depends on the batch alone has the dtype of the forward.
        let dtype = match self.streamed.get(&position) {
            Some(state) => state.dtype(),
            None => self.value_at(position).dtype(),
        };
        let value = value.cast_float(dtype);
        self.updated_states.insert(position, value);
    }

    /// Replaces the value of a parameter that the stage holds.
    pub(super) fn replace(&mut self, place: Place, value: DynTensor) -> ActionResult {
        match place {
            Place::Owned(index) => self.owned.replace(index, value)?,
            Place::Copy(index) => self.copies.replace(index, value)?,
        }
        self.cast.remove(&place);
        Ok(())
    }

    /// Replaces the value of a parameter, if the stage holds it.
    pub(super) fn set(&mut self, at: usize, value: DynTensor, device: &Device) -> ActionResult {
        match self.places.get(&at).copied() {
            Some(place) => self.replace(place, value.to_device(device)?),
            None => Ok(()),
        }
    }
}

/// The digests of the values of a stage after a step.
#[derive(Debug)]
pub(crate) struct Recorded {
    /// The digests of the parameters that it holds, with their positions in the table.
    pub(crate) parameters: Vec<(usize, u64)>,
    /// The digest of the optimizer's state.
    pub(crate) state: u64,
}

/// The gradients of a stage.
#[derive(Debug)]
pub(crate) struct Gradients {
    /// The owned parameters that do not train now.
    pub(super) frozen: BTreeSet<usize>,
    /// The sums of the gradients of this replica's micro-batches, by owned parameter.
    pub(super) sums: Vec<TreeSum<DynTensor>>,
    /// The complete gradients of the pieces that the stage updates.
    pub(crate) complete: PieceValues,
    /// New values of its pieces that are not whole parameters, until all of them exist.
    pub(super) updated_rows: PieceValues,
    /// Gradients of its pieces in the last step, if the settings keep them; they need additional memory of their
    /// size.
    pub(super) kept: Option<PieceValues>,
}

impl Gradients {
    /// Creates the state without gradients, for these numbers of parameters and pieces.
    pub(super) fn new(parameters: usize, pieces: usize, keeps: bool) -> Self {
        Self {
            frozen: BTreeSet::new(),
            sums: vec![TreeSum::default(); parameters],
            complete: vec![None; pieces],
            updated_rows: vec![None; pieces],
            kept: keeps.then(|| vec![None; pieces]),
        }
    }

    /// Drops the gradients of an unfinished step.
    pub(super) fn clear(&mut self) {
        self.sums.fill_with(TreeSum::default);
        self.complete.fill(None);
        self.updated_rows.fill(None);
    }

    /// The bytes of all values that it holds for an update.
    pub(crate) fn bytes(&self) -> u64 {
        let sums = self.sums.iter().flat_map(TreeSum::held);
        let held = sums.chain(self.complete.iter().flatten());
        held.map(DynTensor::bytes).sum()
    }
}
