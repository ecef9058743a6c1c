//! Generators: the compute actions of the known schedules, one file per family.

mod breadth_first;
mod dual_pipe_v;
mod interleaved;
mod kind;
mod placement;
#[cfg(test)]
mod tests;
mod v_shape;

pub use breadth_first::forward_only_on;
pub use kind::{ChunkCounts, ScheduleKind, ScheduleKindError};
pub use placement::Placement;
