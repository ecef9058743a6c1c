//! The values of stages and micro-batches, each kept until its last use.

use std::collections::HashMap;

use tinderbox_fake::ValueId;

use crate::schedule::{MicroBatchIndex, StageIndex};

/// The stage and the micro-batch of a value.
pub type Location = (StageIndex, MicroBatchIndex);

/// The stages that keep a value of a micro-batch, each with the number of its remaining uses.
pub type Holders = Vec<(StageIndex, usize)>;

/// Values, each with the number of its remaining uses.
#[derive(Debug)]
pub struct Kept<V> {
    values: HashMap<(Location, ValueId), (V, usize)>,
}

impl<V> Default for Kept<V> {
    fn default() -> Self {
        Self {
            values: HashMap::new(),
        }
    }
}

impl<V: Clone> Kept<V> {
    /// Keeps a value for a number of uses; drops it if that is 0. Returns false if it was kept already.
    pub fn put(&mut self, at: Location, id: ValueId, value: V, uses: usize) -> bool {
        uses == 0 || self.values.insert((at, id), (value, uses)).is_none()
    }

    /// Uses a value once. Returns it, and whether this was its last use; `None` if it is not kept. After its last use
    /// the caller has the only handle, so its program may work in place.
    pub fn consume(&mut self, at: Location, id: ValueId) -> Option<(V, bool)> {
        let (value, uses) = self.values.get_mut(&(at, id))?;
        if *uses > 1 {
            *uses -= 1;
            return Some((value.clone(), false));
        }
        let (value, _) = self.values.remove(&(at, id))?;
        Some((value, true))
    }

    /// Keeps a value of a micro-batch for the stages that use it.
    pub fn put_all(&mut self, k: MicroBatchIndex, id: ValueId, value: &V, holders: Holders) {
        for (stage, uses) in holders {
            self.put((stage, k), id, value.clone(), uses);
        }
    }

    /// Removes a value of a micro-batch from all of some stages. Returns it with its holders; `None` if no stage keeps it.
    pub fn remove_all(
        &mut self,
        k: MicroBatchIndex,
        id: ValueId,
        stages: impl Iterator<Item = StageIndex>,
    ) -> Option<(V, Holders)> {
        let mut removed = None;
        let mut holders = Holders::new();
        for stage in stages {
            if let Some((value, uses)) = self.values.remove(&((stage, k), id)) {
                removed = Some(value);
                holders.push((stage, uses));
            }
        }
        Some((removed?, holders))
    }

    /// Drops the values of a stage and micro-batch.
    pub fn forget(&mut self, at: Location) {
        self.values.retain(|(location, _), _| *location != at);
    }

    /// The first value that is still kept, with the number of its remaining uses.
    pub fn left(&self) -> Option<((Location, ValueId), usize)> {
        let left = self.values.iter().map(|(key, (_, uses))| (*key, *uses));
        left.min()
    }
}
