//! Values of one micro-batch on one rank, each kept until it was taken for the last time.

use std::collections::HashMap;

use tinderbox_fake::{DynTensor, ValueId};

use crate::ActionError;

/// Values with the number of times that each is still taken.
#[derive(Debug, Default)]
pub(crate) struct ValueStore {
    values: HashMap<ValueId, (DynTensor, usize)>,
}

impl ValueStore {
    /// Keeps a value that is taken `takes` times.
    pub(crate) fn put(&mut self, id: ValueId, value: DynTensor, takes: usize) {
        if takes > 0 {
            self.values.insert(id, (value, takes));
        }
    }

    /// Takes a value, and says whether nobody takes it later; the last taker gets the only handle, so
    /// that its program may work in place.
    pub(crate) fn take(&mut self, id: ValueId) -> Result<(DynTensor, bool), ActionError> {
        let missing = ActionError::MissingValue { value: id };
        let Some((value, left)) = self.values.get_mut(&id) else {
            return Err(missing);
        };
        *left -= 1;
        if *left > 0 {
            return Ok((value.clone(), false));
        }
        self.values
            .remove(&id)
            .map(|(value, _)| (value, true))
            .ok_or(missing)
    }

    /// How many values are kept.
    pub(crate) fn len(&self) -> usize {
        self.values.len()
    }
}
