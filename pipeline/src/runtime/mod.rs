//! Runs a plan: ranks, the links between them, and the handle that drives them.
//!
//! A [`Pipeline`] is the handle of a user, and passes each call to its driver. The driver sends the work to the ranks, and
//! combines their reports. Each rank has a list of actions, which the interpreter runs in order.
//!
//! The modules are in order: a module uses only modules before it.
//!
//! ```text
//! points caught wire digest loss_scale learning_rates clip pieces optimizer settings  values and their updates
//! program round link progress streamed stage                                          the state of a rank
//! interpreter pass execute                                                            the execution of a rank's list
//! arrivals snapshots ranks                                                            all kinds of ranks
//! cores capacity driver                                                               the driver of the ranks
//! recovery pipeline                                                                   the handles that users hold
//! ```

mod arrivals;
mod capacity;
mod caught;
mod clip;
mod cores;
mod digest;
mod driver;
mod execute;
mod interpreter;
mod learning_rates;
mod link;
mod loss_scale;
mod optimizer;
mod pass;
mod pieces;
mod pipeline;
mod points;
mod program;
mod progress;
mod ranks;
mod recovery;
mod round;
mod settings;
mod snapshots;
mod stage;
mod streamed;
#[cfg(test)]
mod tests;
mod wire;

pub(crate) use arrivals::Arrivals;
pub use clip::Clipping;
pub use driver::{Carry, Evaluation, Recovered, Repaired, StateDigest, StepOutput};
pub use learning_rates::StepRates;
#[cfg(any(test, feature = "testing"))]
pub(crate) use link::{Abort, local_links};
pub use link::{Link, LinkMessage, LocalLink, Tag};
pub use loss_scale::LossScale;
pub use optimizer::{
    AnyPrecisionAdamW, AnyPrecisionState, MomentDType, OptimizerConfig, OptimizerSnapshot,
    SavedOptimizer, SavedState, StateFields, StatePart, StateTensor,
};
pub use pipeline::{
    Pipeline, PipelineBuilder, ProgramDigest, ReplayComparison, ReplayDifference,
    ReplayedOperation, ReplayedProgram, Resident, StepReplay, Streamed, StreamedBuilder,
};
#[cfg(any(test, feature = "testing"))]
pub use points::Point;
#[cfg(feature = "testing")]
pub use points::at_points;
pub use recovery::Recovery;
pub use settings::OutputsOn;
pub use stage::Stage;
pub use streamed::{OnDemand, StageStore, StreamedTraining, UpdatedStage};
