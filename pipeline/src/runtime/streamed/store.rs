//! Where the parameters and the state of the optimizer are while their stages do not run.

use std::error::Error;
use std::sync::Arc;

use tinderbox_deferred::{ParameterPath, Source};
use tinderbox_fake::DynTensor;

use crate::runtime::optimizer::SavedState;
use crate::runtime::restore::SavedOptimizer;
use crate::schedule::StageIndex;

/// What a stage has after the update of a step: the parameters that the step may have changed, and the state of their optimizer.
#[derive(Debug)]
pub struct UpdatedStage {
    /// The stage.
    pub stage: StageIndex,
    /// Its parameters that are trained, and its running states.
    pub parameters: Vec<(ParameterPath, DynTensor)>,
    /// The state of the optimizer for them.
    pub optimizer: SavedState,
}

/// Keeps the parameters and the state of the optimizer of a model that is trained with less memory than they need, such as in
/// files.
///
/// A step reads the values of the last committed step, gives new ones stage by stage, and commits them.
pub trait StageStore: Send + Sync {
    /// Returns the number of committed steps.
    fn step(&self) -> u64;

    /// Returns a source of the parameters of the last committed step, or before the first one, of those that training begins with.
    fn source(&self) -> Arc<dyn Source>;

    /// Returns the optimizer's state of the last committed step; `None` before the first one.
    fn optimizer(&self) -> Option<Arc<dyn SavedOptimizer>>;

    /// Writes what a stage has after a step, which is not committed yet. Each stage that has something to train calls it once in
    /// a step. It may return before that is written, but not before what was given earlier is: the values of one stage are counted
    /// while the next one runs.
    ///
    /// # Errors
    ///
    /// When the values can't be written: the step fails, and the last committed one stays.
    fn write(&self, step: u64, updated: UpdatedStage) -> Result<(), Box<dyn Error + Send + Sync>>;

    /// Makes the values of a step the current ones, all at once.
    ///
    /// # Errors
    ///
    /// When that fails; the last committed step stays.
    fn commit(&self, step: u64) -> Result<(), Box<dyn Error + Send + Sync>>;
}
