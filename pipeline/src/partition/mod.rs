//! Where to cut a model into stages.

mod chain;
mod manual;

pub use chain::Chain;
pub use manual::Cut;
pub(crate) use manual::manual;
