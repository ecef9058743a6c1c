//! Runs a plan: ranks, the links between them, and the handle that drives them.

mod builder;
mod carry;
mod changed;
mod clip;
mod cores;
mod crew;
mod digest;
mod facts;
mod indices;
mod learning_rates;
mod link;
mod local;
mod loss_scale;
mod memory;
mod norms;
mod optimizer;
mod output;
mod parameters;
mod pieces;
mod pipeline;
mod prepared;
mod programs;
mod progress;
mod rank;
mod recovery;
mod remote;
mod replay;
mod replicas;
mod restore;
mod round;
mod run_settings;
mod settings;
mod share;
mod stage;
mod step;
mod streamed;
mod training;
mod weights;
mod wire;

pub use builder::PipelineBuilder;
pub use carry::Carry;
pub use changed::Repaired;
pub use clip::Clipping;
pub use digest::StateDigest;
pub use learning_rates::StepRates;
#[cfg(any(test, feature = "testing"))]
pub(crate) use link::Abort;
pub use link::{Link, LinkMessage, Tag};
pub use local::LocalLink;
#[cfg(any(test, feature = "testing"))]
pub(crate) use local::local_links;
pub use loss_scale::LossScale;
pub use optimizer::{
    AnyPrecisionAdamW, AnyPrecisionState, MomentDType, OptimizerConfig, OptimizerSnapshot,
    SavedState, StatePart,
};
pub use output::{Evaluation, OutputsOn, StepOutput};
pub use pipeline::Pipeline;
pub use programs::certification_time;
pub use recovery::{Recovered, Recovery};
pub use replay::{
    ProgramDigest, ReplayComparison, ReplayDifference, ReplayedOperation, ReplayedProgram,
    StepReplay,
};
pub use restore::{SavedOptimizer, StateFields, StateTensor};
pub use stage::Stage;
pub use streamed::{StageStore, Streamed, StreamedBuilder, StreamedTraining, UpdatedStage};
