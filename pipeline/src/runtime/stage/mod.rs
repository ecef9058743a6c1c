//! One stage on its rank: parameters, gradients, optimizer and programs.

mod held;
#[expect(clippy::module_inception, reason = "the folder is of the type")]
mod stage;
mod streamed;
mod update;

pub(crate) use held::Recorded;
pub use stage::Stage;
pub(crate) use stage::{RankSetup, check_length, set_all, set_trains, stage_of};
pub(crate) use update::StatesFound;
