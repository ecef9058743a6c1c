// The links of the README are relative to the repository. Of several definitions of a link the first counts, so these are
// the links of the crate's page.
//! [getting-started]: https://docs.rs/crate/tinderbox/latest/source/docs/src/getting-started.md
//! [deferred]: https://docs.rs/crate/tinderbox/latest/source/docs/src/deferred.md
//! [pretrained]: https://docs.rs/crate/tinderbox/latest/source/docs/src/pretrained.md
//! [planning]: https://docs.rs/crate/tinderbox/latest/source/docs/src/planning.md
//! [training]: https://docs.rs/crate/tinderbox/latest/source/docs/src/training.md
//! [recording]: https://docs.rs/crate/tinderbox/latest/source/docs/src/recording.md
//! [schedules]: https://docs.rs/crate/tinderbox/latest/source/docs/src/schedules.md
//! [devices]: https://docs.rs/crate/tinderbox/latest/source/docs/src/devices.md
//! [checkpoints]: https://docs.rs/crate/tinderbox/latest/source/docs/src/checkpoints.md
//! [operating]: https://docs.rs/crate/tinderbox/latest/source/docs/src/operating.md
//! [troubleshooting]: https://docs.rs/crate/tinderbox/latest/source/docs/src/troubleshooting.md
//! [how-it-works]: https://docs.rs/crate/tinderbox/latest/source/docs/src/how-it-works.md
//! [burn-parallel]: https://docs.rs/crate/tinderbox/latest/source/docs/src/burn-parallel.md
//! [benchmarks]: https://docs.rs/crate/tinderbox/latest/source/docs/src/benchmarks.md
//! [glossary]: https://docs.rs/crate/tinderbox/latest/source/docs/src/glossary.md
//! [shortcomings]: https://docs.rs/crate/tinderbox/latest/source/SHORTCOMINGS.md
//! [contributing]: https://docs.rs/crate/tinderbox/latest/source/CONTRIBUTING.md
//! [security]: https://docs.rs/crate/tinderbox/latest/source/SECURITY.md
//! [versions]: https://docs.rs/crate/tinderbox/latest/source/VERSIONS.md
//! [changelog]: https://docs.rs/crate/tinderbox/latest/source/CHANGELOG.md
//! [mit]: https://docs.rs/crate/tinderbox/latest/source/LICENSE-MIT
//! [apache]: https://docs.rs/crate/tinderbox/latest/source/LICENSE-APACHE
//!
#![doc = include_str!("../README.md")]
//!
//! # Architecture
//!
//! ```text
//! burn <- fake <- deferred <- { pipeline, checkpoint } <- tinderbox
//! pages <- { deferred, pipeline, checkpoint }         { checkpoint, pipeline } <- cli
//! path <- { deferred, planner }             schedule <- { link, planner } <- pipeline
//! tinderbox <- gpu-check
//! ```
//!
//! | crate | what it has | what it does not know |
//! |---|---|---|
//! | `tinderbox_pages` | memory for tensors, populated in the faster page size and reused; the only `unsafe` code | tensors |
//! | [`tinderbox_fake`] | recording, the graph, regions | modules, execution |
//! | [`tinderbox_deferred`] | parameter tables, recipes, programs, the executor, random values, sources | stages, checkpoints |
//! | [`tinderbox_schedule`](schedule) | schedules as data: generated, read, verified, simulated, found, drawn | Burn, threads |
//! | `tinderbox_link` | messages matched by tag, a stop that wakes every wait, model-checked | tensors |
//! | `tinderbox_path` | the path of a parameter | the rest |
//! | [`tinderbox_planner`](planner) | machines, partitioners, predictions, the plan file and its views | Burn, threads |
//! | [`tinderbox_pipeline`] | traces, costs, profiles, cuts, ranks | checkpoints |
//! | [`tinderbox_checkpoint`] | the format, stores, commits, verified reads, tools | pipelines, optimizers |
//! | `tinderbox` | [`Checkpoints`], which saves what a pipeline holds | |
//! | `tinderbox-gpu-check` | the program that checks a GPU by the interface of `tinderbox` | the runtime's inside |
//!
//! Data flows one way: record, trace, cost, schedule, partition, plan, cut, run, save. Schedules, links and the
//! planner are crates of their own because they need nothing of Burn: they are built and tested in seconds, and
//! whoever only draws a schedule or looks at a plan does not pay for the rest.
//!
//! How a step comes to be:
//!
//! 1. [`Deferred::new`] runs the model's constructor under recording. What stays is a graph of Burn's
//!    own operations and a table of parameters.
//!
//!    A parameter's value comes from a [`Source`]. A replay cuts the operations that make the parameter
//!    out of the graph as a [`Recipe`]; a wanted region is pushed back through them, so that only what it
//!    needs is made, and the dtype is cast at its end. Random operations are keyed by seed, owner and
//!    draw; with [`Rng::Backend`] they are left to the backend, in recorded order, and what nobody asked
//!    for is drawn and dropped. On a GPU the random values are made by kernels, in place, with the same bits;
//!    everything else of a recipe is Burn's own operations there. A whole module is rebuilt by its own closure,
//!    after a second recording has shown that the closure still makes the same model.
//! 2. [`Traceable::trace`] records constructor, forward, loss and Burn's own backward pass in one
//!    recording: the joint graph. In it every parameter is a placeholder, a value of its own that no operation of the
//!    constructor makes and that holds no data: a program can't contain a parameter's initial value, and two
//!    parameters are two values, also where they begin as one tensor. What the forward reads of the constructor beside
//!    parameters must be the same in every construction, so random tensor fields are refused. Constructor and forward
//!    are recorded twice and compared, once more when a pipeline starts: what differs is an error. A forward that draws
//!    random values, or whose model has running states, is also called twice on one module: one whose second call does
//!    something else has made a parameter that no visitor sees, or updated a state, which a program can't. A batch shape
//!    that is recorded again after it was dropped must have the digest of its first recording.
//!
//!    The objective is `loss * weight`. [`Outputs`] says what the loss is over: the weight of a micro-batch is its share
//!    of the samples, or of a count that the driver computes from the batch before the step, or 1 for a sum. So loss and
//!    gradients of a step are those of the whole batch.
//!
//!    In mixed precision ([`MixedPrecision`]) the same is recorded on a device whose default float is 16 bits wide:
//!    nothing rewrites dtypes, and the graph is what Burn itself would do there. A rank holds the f32 parameters of
//!    the table; its stage casts each for the first program that reads it, keeps that until the update, and adds the
//!    16-bit gradients up in f32. A [`LossScale`] is part of the weight; it is divided out before clip and update. As
//!    the norm of all gradients tells whether they are finite, all ranks skip the same steps without a message more
//!    than a clip needs.
//! 3. Every operation gets a role. *Constant* operations depend on constants only: they run once per rank.
//!    *Recomputable* ones depend on the batch and on random keys and are no products: every stage that reads
//!    them recomputes them. *Assigned* ones depend on parameters: they run where the plan says. In the backward
//!    pass, *backward-local* operations depend on forward values only and run where they are read; *gradient*
//!    operations depend on the weight, and are assigned by the cut. Roles depend on the kind of an operation and
//!    on what it reads, not on its size, so they are the same for every batch size.
//! 4. A plan is made. Every operation has its cost: floating-point operations and bytes from its shapes, or a share
//!    of what its block was measured to take. Operations that stay together (a module's weight and bias, a
//!    transposed weight and its product) are a block, and blocks with what they read, make, keep and hand on are
//!    the [`planner::Work`] of the program. Partitioners divide it; the simulator says what each partition takes.
//!
//!    The cost model of contiguous stages is a maximum plus a sum over stages: for each limit of the maximum,
//!    dynamic programming finds the least sum, and a search over limits, guided by bounds, the best step. Moves
//!    of blocks between stages improve it for graphs that are no line, by the same memory as the simulator's.
//!    In-flight micro-batches are read off the schedule's own lists. A gradient to which several stages add their
//!    parts is handed down from the highest to the lowest, as Burn's backward adds them up; the lowest stage that
//!    reads a parameter owns it.
//!
//!    The plan is one file ([`planner::PlanFile`]). Ownership is by path, and operations by position, so one plan
//!    serves training, evaluation and every batch shape: a program of the planned structure is cut as planned;
//!    another is aligned with the planned one, operation by operation, and where that does not hold, cut
//!    between the owners of its parameters.
//! 5. The cut gives each stage a forward and a backward program, the backward whole (`B`) and in two halves:
//!    `I` is the slice that makes what other stages wait for, `W` the slice that makes the gradients of the
//!    stage's own parameters. What both need is made by `I` and kept for `W`, but for masks, casts and shapes,
//!    which are cheaper to recompute. Every operation has the same operands in both forms, so `I` and `W` give
//!    the bits of `B`. A stage that recomputes has the slice of its forward in its backward. A gradient operation runs at the
//!    owner of the parameter whose gradient it makes, if all that it reads is available there; otherwise
//!    at the highest stage, not above its gradient inputs, where it is. Values that skip stages go
//!    straight to their readers. A parameter that several stages read has one owner; the parts of its
//!    gradient meet at the owner within the joint graph, so they are summed as Burn sums them, and the
//!    owner sends the updated value to the copies once per step.
//!    Before programs run for the first time, they run on hashes: every operation, down to parameters, batch, constants
//!    and random keys, must be that of the uncut graph, and so must every sum of gradients, message and copy that the
//!    lowered lists make of them ([`CertifyError`]). This shares no code with the cut, the lowering and the verifier.
//! 6. A schedule is lists of compute actions, by a generator, by `auto` or by a user; lowering adds sends,
//!    receives, reduces and updates, and the norms that a clip by all gradients needs; the verifier runs the
//!    lists symbolically before any rank does. The simulator gives them times and bytes. A measured step is the
//!    same type as a simulated one, so that each can be drawn, and laid over the other.
//! 7. Each rank is a thread with its own CPU pool. It executes its list; a stage's parameters are updated
//!    right behind its last backward, without a wait for other ranks; programs run on Burn's
//!    interpreter of recorded operations, with every tensor freed or reused at its last use. There is
//!    no autodiff at run time.
//!
//!    On a GPU the thread only queues: Burn fuses the operations of a program, and the rank has the device begin
//!    what was queued after each, so that it computes while the thread goes on. Each rank's thread has its own stream;
//!    what another rank's stream made is waited for on the device. A value for a rank on another GPU is copied by the
//!    receiver. Where times are measured, the rank waits for each program instead. A kernel that fails leaves its
//!    output unwritten, and so do those that read it; who reads such data on the host gets the error: the driver, with
//!    the loss of this step or the next. The pipeline has then stopped, since nobody knows what its parameters are worth.
//!
//! # Architecture invariants
//!
//! - **Nothing is paid for what is not materialized.** Recording allocates no tensor data.
//! - **The same seed is the same model.** A random value is a function of the seed, its owner's path
//!   (in the forward: the operation's ordinal), step, micro-batch and its own index.
//! - **A pipeline computes what plain Burn computes.** The joint graph is Burn's; cutting it adds no
//!   arithmetic, which is proven before each new program runs. Gradients of micro-batches are added in their order
//!   under every schedule. [`verify()`] compares a step of your own model.
//! - **A checkpoint is whole or it is not there.** It appears by one rename, in a bucket by one conditional
//!   write, after everything was synced and proven to tile every tensor; every byte that is read is checked.
//! - **A model gets what was saved for it, and nothing is left over.** A [`Source`] may refuse a model before
//!   anything is made: a saved parameter that the model has not is an error, like one that is missing.
//! - **A save notes values, and copies none.** Burn changes shared data nowhere, so a clone of a tensor
//!   is a snapshot: a save in the background writes from the memory where the values are, and training
//!   goes on in other memory. That is why there is no pool of host buffers: it would cost a pass over all
//!   values while training waits. What lies on a GPU is copied to the host by the background thread, before it
//!   writes anything: GPU memory is scarce, and a disk is slow.
//! - Planning, cutting, schedules and layouts are pure; files, threads and devices are touched by few
//!   modules: `record`, the executor, the runtime, the checkpoint's stores.

mod checkpoints;
mod dry_run;
mod error;
mod verify;
/// The traits whose methods a program calls.
pub mod prelude {
    pub use tinderbox_deferred::Source as _;
    pub use tinderbox_pipeline::{Batch as _, Traceable as _};
}

/// The programs of the book in `docs/src`, as tests.
#[cfg(doctest)]
mod book {
    #[doc = include_str!("../docs/src/getting-started.md")]
    mod getting_started {}
    #[doc = include_str!("../docs/src/deferred.md")]
    mod deferred {}
    #[doc = include_str!("../docs/src/pretrained.md")]
    mod pretrained {}
    #[doc = include_str!("../docs/src/planning.md")]
    mod planning {}
    #[doc = include_str!("../docs/src/training.md")]
    mod training {}
    #[doc = include_str!("../docs/src/recording.md")]
    mod recording {}
    #[doc = include_str!("../docs/src/schedules.md")]
    mod schedules {}
    #[doc = include_str!("../docs/src/devices.md")]
    mod devices {}
    #[doc = include_str!("../docs/src/checkpoints.md")]
    mod checkpoints {}
    #[doc = include_str!("../docs/src/operating.md")]
    mod operating {}
}

pub use checkpoints::{Checkpoints, Resumed, SteppedOver, load_module};
pub use dry_run::dry_run;
pub use error::{CheckpointsError, DryRunError, VerifyModelError};
pub use tinderbox_checkpoint::{
    Checkpoint, CheckpointSource, LoadError, LoadOptions, LoadPlan, Pretrained, RankLoad, Regex,
    Retention, Run, SaveError,
};
/// Where checkpoints are kept, and work on whole ones.
pub use tinderbox_checkpoint::{store, tools};
pub use tinderbox_deferred::{
    Deferred, DeferredError, DeviceError, MaterializeError, MaterializeOptions, MemoryCheck,
    Observer, Parameter, ParameterPath, ParameterTable, PartialModule, Recipe, RecipePlan, Replay,
    Request, Rng, Source, SourceError, Values, check_device, check_materialized, open_devices,
    parameter_values, random,
};
pub use tinderbox_fake::{
    DeviceLabel, DynTensor, ErrorOrigin, Mode, RecordError, RecordOptions, Region, TensorMeta, cut,
    is_fake, is_host, record,
};
/// Costs, machines, partitioners, predictions and plan files.
pub use tinderbox_pipeline::planner;
/// Schedules as data: generated, read, lowered, verified, simulated, drawn.
pub use tinderbox_pipeline::schedule;
pub use tinderbox_pipeline::{
    ActionError, Batch, BatchMapper, CalibrateError, CertifyError, CertifySite, Clipping, Cut,
    LossScale, Machine, MixedPrecision, OperationTimes, OptimizerConfig, Outputs, Pipeline,
    PipelineBuilder, PipelineError, Placement, Plan, PlanError, Planner, Profile, ProfileError,
    Profiler, RestoreError, SavedOptimizer, SavedState, ScheduleChoice, ScheduleKind, Stage,
    StateFields, StateTensor, StepOutput, Trace, TraceError, Traceable, Whole, batch_struct,
    batch_tensors, calibrate, split_batch,
};
pub use verify::{
    GradientComparison, LossComparison, ParameterComparison, Verification, VerifyOptions, verify,
    verify_with,
};
