//! What a stage gets that holds its parameters only while it runs, and where they come from.

mod setup;
mod store;
mod values;

pub(crate) use setup::{StreamedOptions, StreamedSetup, Trained};
pub(crate) use store::Stored;
pub use store::{StageStore, StreamedTraining, UpdatedStage};
pub(crate) use values::{Activation, Item, ParameterRows, RowSource, State, States, Value, Values};
