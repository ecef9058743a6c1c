//! Runs a plan: ranks, the links between them, and the handle that drives them.

mod builder;
mod clip;
mod crew;
mod group;
mod link;
mod lists;
mod local;
mod loss_scale;
mod memory;
mod optimizer;
mod output;
mod pipeline;
mod programs;
mod rank;
mod stage;
mod step;
mod store;

pub use builder::PipelineBuilder;
pub use clip::Clipping;
pub use group::{Group, SoloGroup};
pub use link::{Abort, Link, Tag};
pub use lists::ScheduleChoice;
pub use local::{LocalLink, local_links};
pub use loss_scale::LossScale;
pub use optimizer::{OptimizerSnapshot, OptimizerState, SavedState};
pub use output::StepOutput;
pub use pipeline::Pipeline;
pub use rank::{RankEnded, RankSetup, Request, run_rank};
pub use stage::Stage;
