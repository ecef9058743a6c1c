//! Tests that are common to all element types and distributions.

/// Calls a function for each of some element types, with the name of the type or other arguments.
macro_rules! for_types {
    ($check:ident: $($type:ident)*) => { $($check::<$type>(stringify!($type));)* };
    ($check:ident $arguments:tt: $($type:ident)*) => { $($check::<$type> $arguments;)* };
}

mod boxes;
mod correlation;
pub(super) mod golden;
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
fn made<T: RandomElement>(stream: &Stream, kind: Distribution, first: u64, count: usize) -> Vec<T> {
    let mut out = vec![T::default(); count];
    fill(stream, kind, first, &mut out).expect("the parameters are valid");
    out
}
