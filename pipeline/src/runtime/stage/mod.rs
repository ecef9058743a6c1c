//! One stage on its rank: parameters, gradients, optimizer and programs.

mod held;

mod setup;
#[expect(clippy::module_inception, reason = "the folder is of the type")]
mod stage;
mod streamed;
mod update;

pub(crate) use held::Recorded;
pub(crate) use setup::RankSetup;
pub use stage::Stage;
pub(crate) use stage::{check_length, set_all, set_trains};
pub(crate) use update::StatesFound;
