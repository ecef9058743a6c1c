//! Where to cut a model into stages.

mod balance;
mod chain;
mod manual;

pub(crate) use balance::balance;
pub use chain::{Chain, Unit};
pub use manual::Cut;
pub(crate) use manual::manual;
