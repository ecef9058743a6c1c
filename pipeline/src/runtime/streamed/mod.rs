//! What a stage gets that holds its parameters only while it runs, and where they come from.

mod rows;
mod setup;
mod store;
mod values;

pub(crate) use rows::{ParameterRows, RowSource};
pub(crate) use setup::{StreamedOptions, StreamedSetup, Trained};
pub(crate) use store::Stored;
pub use store::{StageStore, StreamedTraining, UpdatedStage};
pub(crate) use values::{Activation, Item, State, States, Value, Values};
