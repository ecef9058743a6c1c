//! Every type in a signature of the facade has a name in it: this compiles, or it does not.

#![allow(dead_code, reason = "what is checked is that the names exist")]

use tinderbox::checkpoint::{ErrorClass, SaveTensor};
use tinderbox::deferred::{Mismatch, Mismatches, OrElse, Origin};
use tinderbox::error::{
    ActionError, BatchError, CertifyError, FakeError, FormatError, LayoutError, LinkError,
    RecipeError, RegionError,
};
use tinderbox::fake::{Graph, Recording, TensorKind};
use tinderbox::pipeline::{
    BlockProfile, CertifySite, Division, Leaf, LeafName, Link, LocalLink, LossOver, NotHeld,
    OptimizerSnapshot, Tag,
};
use tinderbox::planner::{PlanStage, RankModel};
use tinderbox::{Partitioner, Plan};

/// Errors that users match on, and what they contain.
struct Errors {
    action: ActionError,
    batch: BatchError,
    certify: (CertifyError, CertifySite),
    fake: FakeError,
    format: FormatError,
    layout: LayoutError,
    link: LinkError,
    mismatches: (Mismatch, Mismatches),
    not_held: NotHeld,
    recipe: RecipeError,
    region: RegionError,
    class: ErrorClass,
}

/// Values that are passed and returned.
struct Values {
    block: BlockProfile,
    division: Division,
    graph: (Graph, Recording, TensorKind),
    leaf: (Leaf, LeafName),
    link: (LocalLink, Tag),
    loss: LossOver,
    optimizer: OptimizerSnapshot,
    origin: Origin,
    plan: (Plan, PlanStage, Partitioner, RankModel),
    tensor: SaveTensor,
}

/// Types of the crates below, by their modules.
struct Modules {
    attempt: tinderbox::checkpoint::Attempt,
    manifest: tinderbox::checkpoint::Manifest,
    meta: tinderbox::checkpoint::CheckpointMeta,
    executor: tinderbox::deferred::Executor,
    summary: tinderbox::deferred::Summary,
    node: tinderbox::fake::Node,
    key: tinderbox::pipeline::ProgramKey,
    schedule: tinderbox::schedule::Schedule,
    work: tinderbox::planner::Work,
}

/// Traits that users implement.
fn traits(_: &dyn Link) {}

/// A source with another one after it.
fn sources<A: tinderbox::Source, B: tinderbox::Source>(_: OrElse<A, B>) {}
