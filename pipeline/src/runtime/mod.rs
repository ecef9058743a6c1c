//! Runs a plan: ranks, the links between them, and the handle that drives them.

mod builder;
mod crew;
mod group;
mod link;
mod local;
mod optimizer;
mod pipeline;
mod rank;
mod stage;
mod step;
mod store;

pub use builder::{PipelineBuilder, ScheduleKind};
pub use group::{Group, SoloGroup};
pub use link::{Abort, Link, Tag};
pub use local::{LocalLink, local_links};
pub use optimizer::{OptimizerSnapshot, OptimizerState, SavedState};
pub use pipeline::{Pipeline, StepOutput};
pub use rank::{RankEnded, RankSetup, Request, run_rank};
pub use stage::Stage;
