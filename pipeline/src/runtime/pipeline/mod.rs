//! The handle of a pipeline, with the types of its model and batches: its settings, its calls, and their repetition after a
//! loss.

mod builder;
#[expect(clippy::module_inception, reason = "the folder is of the type")]
mod pipeline;
mod repeat;
mod replay;
mod start;
mod streamed;
mod training;

pub use builder::{PipelineBuilder, Resident};
pub use pipeline::Pipeline;
pub use replay::{
    ProgramDigest, ReplayComparison, ReplayDifference, ReplayedOperation, ReplayedProgram,
    StepReplay,
};
pub use streamed::{Streamed, StreamedBuilder};
