//! The programs of all stages for one batch shape, with the facts that the runtime needs.

mod bytes;
mod carried;
mod count;
mod indices;

pub(crate) use bytes::CutBytes;
pub(crate) use carried::{CarriedTensors, CarriedValues, RoundCarry};
pub(crate) use count::{CutProgram, count_of};
pub(crate) use indices::{IndexPlaces, module, named};
