//! The values of one stage and micro-batch, each with the number of times that it is still read.

use std::collections::HashMap;
use std::fmt;

use tinderbox_fake::ValueId;

use crate::schedule::MicroBatchIndex;

/// A value of a micro-batch. The certificate of its programs says what it is computed by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Made {
    pub(super) value: ValueId,
    pub(super) micro_batch: MicroBatchIndex,
}

impl fmt::Display for Made {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of micro-batch {}", self.value, self.micro_batch)
    }
}

/// What a stage keeps of a micro-batch.
#[derive(Debug, Default)]
pub(super) struct Store {
    values: HashMap<ValueId, usize>,
}

impl Store {
    /// Keeps a value for so many uses; nothing where there are none. Returns whether it was not kept already.
    pub(super) fn put(&mut self, value: ValueId, uses: usize) -> bool {
        uses == 0 || self.values.insert(value, uses).is_none()
    }

    /// Uses a value once. Returns whether it was there.
    pub(super) fn take(&mut self, value: ValueId) -> bool {
        match self.values.get_mut(&value) {
            None => false,
            Some(1) => self.values.remove(&value).is_some(),
            Some(uses) => {
                *uses -= 1;
                true
            }
        }
    }

    /// The lowest value that is still kept, with its uses.
    pub(super) fn left(&self) -> Option<(ValueId, usize)> {
        let values = self.values.iter().map(|(value, uses)| (*value, *uses));
        values.min()
    }
}
