//! Micro-batches by Burn's own `narrow`, for references: independent of the pipeline's own split.

use burn::tensor::{Tensor, kind::Basic};
use tinderbox::{Along, Whole};

/// A batch that a reference divides.
pub trait Split: Clone {
    /// Returns the number of samples; `None` if the batch is not divided.
    fn samples(&self) -> Option<usize>;

    /// Returns `count` samples from index `start` on.
    fn rows(&self, start: usize, count: usize) -> Self;
}

/// Divides a batch into micro-batches of nearly equal size, the larger ones first, and returns each with its number of samples.
pub fn split<B: Split>(batch: &B, count: usize) -> Vec<(B, usize)> {
    let samples = batch.samples().expect("a batch has samples");
    let mut start = 0;
    let mut parts = Vec::new();
    for left in (1..=count).rev() {
        let size = (samples - start).div_ceil(left);
        parts.push((batch.rows(start, size), size));
        start += size;
    }
    parts
}

impl<const D: usize, K: Basic> Split for Tensor<D, K> {
    fn samples(&self) -> Option<usize> {
        Some(self.dims()[0])
    }

    fn rows(&self, start: usize, count: usize) -> Self {
        self.clone().narrow(0, start, count)
    }
}

impl<B: Clone> Split for Whole<B> {
    fn samples(&self) -> Option<usize> {
        None
    }

    fn rows(&self, _: usize, _: usize) -> Self {
        self.clone()
    }
}

impl<const AXIS: usize, const D: usize, K: Basic> Split for Along<AXIS, Tensor<D, K>> {
    fn samples(&self) -> Option<usize> {
        Some(self.0.dims()[AXIS])
    }

    fn rows(&self, start: usize, count: usize) -> Self {
        Self(self.0.clone().narrow(AXIS, start, count))
    }
}

impl<B: Split> Split for Option<B> {
    fn samples(&self) -> Option<usize> {
        self.as_ref().and_then(B::samples)
    }

    fn rows(&self, start: usize, count: usize) -> Self {
        self.as_ref().map(|batch| batch.rows(start, count))
    }
}

impl<B: Split> Split for Vec<B> {
    fn samples(&self) -> Option<usize> {
        self.iter().find_map(B::samples)
    }

    fn rows(&self, start: usize, count: usize) -> Self {
        self.iter().map(|batch| batch.rows(start, count)).collect()
    }
}

impl<B: Split, const N: usize> Split for [B; N] {
    fn samples(&self) -> Option<usize> {
        self.iter().find_map(B::samples)
    }

    fn rows(&self, start: usize, count: usize) -> Self {
        self.clone().map(|batch| batch.rows(start, count))
    }
}

/// Implements [`Split`] for tuples.
macro_rules! fields {
    ($($name:ident $field:tt),+) => {
        impl<$($name: Split),+> Split for ($($name,)+) {
            fn samples(&self) -> Option<usize> {
                None$(.or_else(|| self.$field.samples()))+
            }

            fn rows(&self, start: usize, count: usize) -> Self {
                ($(self.$field.rows(start, count),)+)
            }
        }
    };
}

fields!(A 0);
fields!(A 0, B 1);
fields!(A 0, B 1, C 2);
fields!(A 0, B 1, C 2, D 3);
fields!(A 0, B 1, C 2, D 3, E 4);
fields!(A 0, B 1, C 2, D 3, E 4, F 5);
