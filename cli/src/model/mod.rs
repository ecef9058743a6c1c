//! `tinderbox model`: initializes, converts and estimates models without their code.

mod estimate;
mod save;

pub(crate) use estimate::{EstimateFlags, estimate};
pub(crate) use save::{ConvertFlags, InitFlags, convert, init};
