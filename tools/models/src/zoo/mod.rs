//! Models as Burn's users write them, in small sizes, with batches, and their comparison with plain Burn.

#![allow(
    missing_docs,
    missing_debug_implementations,
    reason = "the models have the documentation that a user would write"
)]

pub mod check;
mod entry;
pub mod gan;
pub mod images;
mod list;
mod other;
mod patches;
mod recurrent;
mod texts;

pub use entry::{Entry, SAMPLES, Visit, cross_entropy};
pub use list::{NAMES, visit};
