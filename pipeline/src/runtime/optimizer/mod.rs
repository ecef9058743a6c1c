//! Optimizers, one parameter at a time, and their states.

mod any_precision;
mod average;
mod groups;
mod probe;
mod saved;
mod state;

pub use any_precision::{AnyPrecisionAdamW, AnyPrecisionState, MomentDType};
pub use groups::OptimizerConfig;
pub(super) use groups::{Optimizers, Rule, check_group, contains};
pub(super) use probe::{bytes_per_element, works_by_row};
pub use saved::{SavedOptimizer, SavedState, StateFields, StatePart, StateTensor};
pub use state::OptimizerSnapshot;
pub(super) use state::{PieceOptimizer, State, restore_states};
