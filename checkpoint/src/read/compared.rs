//! The parts of tensors that were compared.

use std::sync::{Mutex, MutexGuard, PoisonError};

use burn::tensor::DType;
use tinderbox_fake::Region;

use super::plan::Wanted;

/// The most comparisons that are remembered.
const MAX_COMPARED: usize = 1024;

/// Two parts of tensors that are compared.
#[derive(Debug, PartialEq)]
pub(super) struct Pair {
    names: [String; 2],
    regions: [Region; 2],
    transposed: [bool; 2],
    dtype: DType,
}

impl Pair {
    pub(super) fn of(first: &Wanted<'_>, other: &Wanted<'_>) -> Self {
        Self {
            names: [first, other].map(|wanted| wanted.tensor.name.clone()),
            regions: [first, other].map(|wanted| wanted.region.clone()),
            transposed: [first, other].map(|wanted| wanted.transposed),
            dtype: first.dtype,
        }
    }
}

/// The parts that were equal, of a model that is loaded again and again.
#[derive(Debug, Default)]
pub(super) struct Compared(Mutex<Vec<Pair>>);

impl Compared {
    fn lock(&self) -> MutexGuard<'_, Vec<Pair>> {
        // It is whole after a panic.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn contains(&self, pair: &Pair) -> bool {
        self.lock().contains(pair)
    }

    pub(super) fn insert(&self, pair: Pair) {
        let mut compared = self.lock();
        if compared.len() < MAX_COMPARED {
            compared.push(pair);
        }
    }
}
