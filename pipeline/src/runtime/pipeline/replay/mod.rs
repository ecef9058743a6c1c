//! Runs the programs of a training step again, alone, and compares replays.

mod digest;
mod step_replay;

pub use digest::{ProgramDigest, ReplayComparison, ReplayDifference, ReplayedOperation};
pub use step_replay::{ReplayedProgram, StepReplay};
