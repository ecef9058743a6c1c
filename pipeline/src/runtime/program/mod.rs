//! The programs of all stages for one batch shape, with what the runtime knows of them.

mod bytes;
mod carried;
mod count;
mod cut_program;
mod indices;

pub(crate) use bytes::CutBytes;
pub(crate) use carried::{CarriedTensors, CarriedValues, RoundCarry};
pub(crate) use count::count_of;
pub(crate) use cut_program::CutProgram;
pub(crate) use indices::{IndexPlaces, module, named};
