//! `tinderbox model`: initializes, converts and estimates models without their code.

mod estimate;
mod flags;
mod given;
mod planned;
mod save;

pub(crate) use estimate::estimate;
pub(crate) use flags::EstimateFlags;
pub(crate) use save::{ConvertFlags, InitFlags, convert, init};
