//! Tests that are common to all element types and distributions.

mod boxes;
mod correlation;
mod golden;
mod levels;
mod quality;
mod region;
pub(super) mod scalar;
mod statistics;
mod tails;

use burn::tensor::Distribution;

pub(super) use levels::levels;

use super::{RandomElement, Stream, fill};

/// Returns `count` elements from `first` on; the parameters are valid in every test that uses this.
fn made<T: RandomElement>(
    stream: &Stream,
    distribution: Distribution,
    first: u64,
    count: usize,
) -> Vec<T> {
    let mut out = vec![T::default(); count];
    fill(stream, distribution, first, &mut out).expect("the parameters are valid");
    out
}
