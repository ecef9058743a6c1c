//! The tensors of a batch whose new values the forward computes for the next call.

use std::collections::BTreeSet;

use tinderbox_fake::{DynTensor, ValueId, typed_shape};

use super::{JointGraph, Role};
use crate::batch::Leaf;
use crate::{CarriedFault, TraceError};

/// The new value of each carried tensor, by its position in the batch.
///
/// # Errors
///
/// The first carried tensor whose new value is missing or has another type; a new value without a carried tensor.
pub(super) fn new_values(
    leaves: &[Leaf],
    carried: &[(usize, String)],
    found: &[(String, DynTensor)],
) -> Result<Vec<(usize, DynTensor)>, TraceError> {
    let mut values = Vec::with_capacity(carried.len());
    for (index, (position, expected)) in carried.iter().enumerate() {
        let leaf = &leaves[*position];
        let refused = |fault| TraceError::Carried {
            name: leaf.name.clone(),
            fault,
        };
        let (name, value) = found
            .get(index)
            .ok_or_else(|| refused(CarriedFault::Missing))?;
        if name != expected {
            let found = name.clone();
            return Err(refused(CarriedFault::Other { found }));
        }
        if value.shape().as_slice() != leaf.shape || value.dtype() != leaf.dtype {
            let old = typed_shape(leaf.dtype, &leaf.shape);
            let new = typed_shape(value.dtype(), &value.shape());
            return Err(refused(CarriedFault::Type { old, new }));
        }
        if !value.is_fake() {
            return Err(refused(CarriedFault::Foreign));
        }
        values.push((*position, value.clone()));
    }
    match found.get(carried.len()) {
        Some((name, _)) => Err(TraceError::NotCarried { name: name.clone() }),
        None => Ok(values),
    }
}

impl JointGraph {
    /// The first and last position of the operations that one stage has to run: for each running state that the
    /// forward updates, and for each carried tensor whose new value depends on a parameter, those that read it and the
    /// one that computes its new value.
    pub fn inseparable(&self) -> impl Iterator<Item = (usize, usize)> {
        let carried = self.touching_carried();
        let carried = carried.filter_map(|(_, at)| Some((*at.first()?, *at.last()?)));
        self.state_ranges().chain(carried)
    }

    /// The positions of the operations that read each carried tensor whose new value depends on a parameter, and of the
    /// one that computes the new value, by the position of the tensor in the batch.
    pub fn touching_carried(&self) -> impl Iterator<Item = (usize, BTreeSet<usize>)> {
        self.carried().iter().filter_map(|(input, value)| {
            let made = self.position_of(*value)?;
            let mut touching = self.readers(self.inputs()[*input].value);
            touching.insert(made);
            Some((*input, touching))
        })
    }

    /// The positions of the operations that read a value, or what every stage computes of it for itself.
    fn readers(&self, value: ValueId) -> BTreeSet<usize> {
        let (graph, forward) = (self.graph(), self.forward());
        let (mut readers, mut seen) = (BTreeSet::new(), BTreeSet::from([value]));
        let mut pending = vec![value];
        while let Some(value) = pending.pop() {
            for user in graph.users(value) {
                readers.extend(forward.position(*user));
                if self.role(*user) == Role::Recomputable {
                    let outputs = graph.node(*user).outputs().iter().copied();
                    pending.extend(outputs.filter(|output| seen.insert(*output)));
                }
            }
        }
        readers
    }
}
