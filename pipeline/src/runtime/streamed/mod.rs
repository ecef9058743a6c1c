//! What a stage gets that holds its parameters only while it runs, and where they come from.

mod setup;
mod values;

pub use setup::OnDemand;
pub(crate) use setup::StreamedSetup;
pub(crate) use values::{
    Activation, Item, ParameterRows, StageValues, State, States, Stored, request_as,
};
pub use values::{StageStore, StreamedTraining, UpdatedStage};
