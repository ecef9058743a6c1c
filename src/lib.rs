#![cfg_attr(docsrs, feature(doc_cfg))]
// The links of the README are relative to the repository. The first of several definitions of a link is used,
// so these replace them on the crate's page.
//! [getting-started]: https://docs.rs/crate/tinderbox/latest/source/docs/src/getting-started.md
//! [deferred]: https://docs.rs/crate/tinderbox/latest/source/docs/src/deferred.md
//! [pretrained]: https://docs.rs/crate/tinderbox/latest/source/docs/src/pretrained.md
//! [planning]: https://docs.rs/crate/tinderbox/latest/source/docs/src/planning.md
//! [training]: https://docs.rs/crate/tinderbox/latest/source/docs/src/training.md
//! [training-loop]: https://docs.rs/crate/tinderbox/latest/source/docs/src/training-loop.md
//! [generation]: https://docs.rs/crate/tinderbox/latest/source/docs/src/generation.md
//! [larger-than-memory]: https://docs.rs/crate/tinderbox/latest/source/docs/src/larger-than-memory.md
//! [models]: https://docs.rs/crate/tinderbox/latest/source/docs/src/models.md
//! [recording]: https://docs.rs/crate/tinderbox/latest/source/docs/src/recording.md
//! [schedules]: https://docs.rs/crate/tinderbox/latest/source/docs/src/schedules.md
//! [devices]: https://docs.rs/crate/tinderbox/latest/source/docs/src/devices.md
//! [checkpoints]: https://docs.rs/crate/tinderbox/latest/source/docs/src/checkpoints.md
//! [replicas]: https://docs.rs/crate/tinderbox/latest/source/docs/src/replicas.md
//! [several-machines]: https://docs.rs/crate/tinderbox/latest/source/docs/src/several-machines.md
//! [when-a-machine-dies]: https://docs.rs/crate/tinderbox/latest/source/docs/src/when-a-machine-dies.md
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
//! path <- { deferred, planner, world }      schedule <- { link, world, planner } <- pipeline
//! { deferred, planner } <- graph <- pipeline
//! link <- world <- { world-mpi, tinderbox }   simulation <- { link, world }, in tests
//! tinderbox <- { train, gpu-check }           derive <- graph
//! ```
//!
//! | crate | contents | independent of |
//! |---|---|---|
//! | `tinderbox_pages` | memory for tensors, populated in the faster page size and reused; the only `unsafe` code | tensors |
//! | [`tinderbox_fake`] | recording, the graph, regions | modules, execution |
//! | [`tinderbox_deferred`] | parameter tables, recipes, programs, the executor, random values, sources | stages, checkpoints |
//! | [`tinderbox_schedule`](schedule) | schedules as data: generated, read, verified, simulated, found, drawn | Burn, threads |
//! | `tinderbox_simulation` (in `tests`) | fibers, a virtual clock and seeded choices, in which links and worlds run for tests | the rest |
//! | `tinderbox_link` | messages matched by tag, a stop that wakes every wait, model-checked; the clock, waits and threads that a simulation replaces | tensors |
//! | `tinderbox_world` | processes as ranks: launchers, frames, calls of all, the shutdown protocol, gRPC | tensors |
//! | `tinderbox_world_mpi` | the same frames over MPI | gRPC |
//! | `tinderbox_path` | the path of a parameter, the text of an error with its causes | the rest |
//! | [`tinderbox_planner`](planner) | machines, partitioners, predictions, the plan file and its views | Burn, threads |
//! | `tinderbox_graph` | traces, cuts, certification, plans | threads, processes, clocks |
//! | [`tinderbox_pipeline`] | profiles, ranks and what drives them | checkpoints |
//! | [`tinderbox_checkpoint`] | the format, stores, commits, verified reads, tools | pipelines, optimizers |
//! | `tinderbox` | [`Checkpoints`], which saves what a pipeline holds; [`export_pipeline`] | |
//! | `tinderbox_derive` | `#[derive(Batch)]` | the rest |
//! | `tinderbox_train` | burn-train's loop over pipelines, signals, epochs that continue | the internals of the runtime |
//! | `tinderbox-cli` | the command `tinderbox`: schedules, plans, checkpoints, models, runs, the launcher | the internals of the runtime |
//! | `tinderbox-gpu-check` | a program that checks a GPU through the public interface of `tinderbox` | the internals of the runtime |
//!
//! Data flows one way: record, trace, cost, schedule, partition, plan, cut, run, save. Schedules, links and
//! the planner are separate crates because they do not depend on Burn: they build and test in seconds, and a
//! program that only draws a schedule or reads a plan does not compile the rest.
//!
//! The phases of a training step:
//!
//! 1. [`Deferred::new`] runs the model's constructor under recording. The result is a graph of Burn
//!    operations and a table of parameters.
//!
//!    A parameter's value comes from a [`Source`]. A replay extracts the operations that compute the
//!    parameter from the graph as a [`Recipe`]; a requested region is propagated backwards through them, so
//!    that only the required elements are computed, and the dtype is cast at the end. Random operations are
//!    keyed by seed, owner and draw; with [`Rng::Backend`] they are executed by the backend, in recorded
//!    order, and values that are not requested are drawn and discarded. On a GPU, kernels generate the random
//!    values in place, with the same bits; everything else of a recipe uses Burn's own operations. A whole
//!    module is rebuilt by its own closure, after a second recording has confirmed that the closure still
//!    constructs the same model.
//! 2. [`Traceable::trace`] records constructor, forward, loss and Burn's own backward pass in one recording:
//!    the joint graph. In it every parameter is a placeholder, a separate value that no operation of the
//!    constructor computes and that has no data: a program can't contain a parameter's initial value, and two
//!    parameters are two values, even if they are initialized from one tensor. Values other than parameters
//!    that the forward reads from the constructor must be the same in every construction, so random tensor
//!    fields are rejected. Constructor and forward are recorded twice and compared, and again when a pipeline
//!    starts: a difference is an error. A forward that draws random values or updates a running state of the
//!    model's own is also called twice on one module: if the second call differs, the forward has created a
//!    parameter that no visitor visits, which a program can't do, or has read the state without its last update.
//!    A batch shape that is recorded again after it was dropped must have the digest of its first recording.
//!
//!    A forward may update running states, such as the statistics of batch norm. Burn applies the new value
//!    at the next use of the state; the recording makes it do so at the end of the forward. The new value is
//!    an output of the forward program of the stage that owns the state. The next forward of the stage reads
//!    it, so forwards run in micro-batch order; backwards read the value that their own forward has kept. It
//!    replaces the state with the update of the step: a skipped or stopped step leaves states as they were.
//!    Burn does not move recorded tensors in autodiff, even to the device that they are on. So the
//!    statistics of batch norms are recorded outside of it, and, if the forward moves tensors, so are the
//!    integers and booleans of the batch.
//!
//!    The objective is `loss * weight`. [`Outputs`] specifies the unit of the loss: the weight of a
//!    micro-batch is its fraction of the samples, or of a count that the driver computes from the batch
//!    before the step, or 1 for a sum. A step therefore has the loss and the gradients of the whole batch.
//!
//!    In mixed precision ([`MixedPrecision`]) the same is recorded on a device whose default float type has
//!    16 bits: dtypes are not rewritten, and the graph is the one that Burn itself would execute there. A
//!    rank holds the f32 parameters of the table; its stage casts each for the first program that reads it,
//!    keeps the result until the update, and accumulates the 16-bit gradients in f32. A [`LossScale`] is part
//!    of the weight; it is divided out before clipping and the update. Because the norm of all gradients
//!    shows whether they are finite, all ranks skip the same steps with no more messages than clipping needs.
//!    What updates a running state is the one thing that is rewritten, to f32: a mean over many batches in 16
//!    bits would lose what a single batch adds.
//! 3. Every operation gets a role. *Constant* operations depend on constants only: they run once per rank.
//!    *Recomputable* ones depend on the batch and on random keys and are no products: every stage
//!    that reads them recomputes them. *Assigned* ones depend on parameters, or are products of the batch:
//!    they run on the stage that the plan specifies. In the backward pass, *backward-local* operations depend on forward values only and run
//!    where they are read; *gradient* operations depend on the weight, and are assigned by the cut. Roles
//!    depend on the kind of an operation and on its inputs, not on its size, so they are the same for every
//!    batch size.
//!    An evaluation may carry tensors of the batch to the next one ([`Carried`]): the new value of each is an output of
//!    the forward program of the stage that reads it, where it stays, with the carry ([`Carry`]) and the micro-batch
//!    that it belongs to. The operations between are one block of the plan. A new value that depends on no parameter is
//!    computed by every stage that reads it.
//! 4. A plan is computed. Every operation has a cost: floating-point operations and bytes from its shapes, or
//!    a fraction of the measured time of its block. Operations that stay together (a module's weight and
//!    bias, a transposed weight and its product) form a block, and the blocks with their inputs, outputs,
//!    stored values and transfers form the [`planner::Work`] of the program. Partitioners divide it; the
//!    simulator predicts the time of each partition.
//!
//!    The cost model of contiguous stages is a maximum plus a sum over stages: for each limit of the maximum,
//!    dynamic programming finds the minimum sum, and a bounded search over limits finds the best step. For
//!    graphs that are not linear, moves of blocks between stages improve the result, with the same memory
//!    model as the simulator's. The numbers of in-flight micro-batches come from the schedule's own lists. A
//!    gradient with contributions from several stages is passed from the highest stage to the lowest, in the
//!    order in which Burn's backward adds them; the lowest stage that reads a parameter owns it.
//!
//!    The plan is one file ([`planner::PlanFile`]). Parameters are assigned by path and operations by
//!    position, so one plan serves training, evaluation and every batch shape: a program with the planned
//!    structure is cut as planned; in another, each operation runs on
//!    the lowest stage that is not below its inputs and holds the parameters that it reads.
//! 5. The cut gives each stage a forward and a backward program, the latter both whole (`B`) and in two
//!    halves: `I` is the slice that computes the values for other stages, `W` the slice that computes the
//!    gradients of the stage's own parameters. Values that both need are computed by `I` and kept for `W`,
//!    except masks, casts and shapes, which are cheaper to recompute. Every operation has the same operands
//!    in both forms, so `I` and `W` produce the bits of `B`. A stage with recomputation has the slice of its
//!    forward in its backward. A gradient operation runs at the owner of the parameter whose gradient it
//!    computes, if all of its inputs are available there; otherwise at the highest stage, not above its
//!    gradient inputs, where they are. Values that skip stages are sent directly to their readers. A
//!    parameter that several stages read has one owner; the contributions to its gradient are added at the
//!    owner within the joint graph, in the same order as in Burn, and the owner sends the updated value to
//!    the copies once per step.
//!    Before programs run for the first time, they are executed on hashes: every operation, down to
//!    parameters, batch, constants and random keys, must match the uncut graph, and so must every sum of
//!    gradients, message and copy in the lowered lists ([`CertifyError`]). This check shares no code with the
//!    cut, the lowering and the verifier: it reads what they made.
//! 6. A schedule consists of lists of compute actions, from a generator, from `auto` or from a user. Lowering
//!    adds sends, receives, reduces and updates, and the norms for clipping by the norm of all gradients; the
//!    verifier runs the lists symbolically before any rank does. The simulator adds times and bytes. A
//!    measured step has the same type as a simulated one, so that either can be drawn, or both overlaid. Since a program
//!    depends on its operands alone, the programs of one micro-batch can run again one after the other in one process, each stage
//!    materialized for its own ([`StepReplay`]): with the same bits, and with every value to be looked at.
//!    With replicas, several ranks run each stage. Every replica has lists of its own for its share of the micro-batches;
//!    a rank sends its gradients when they are complete, and waits for the gradients of other replicas only after all of
//!    its backwards, so lists that differ can't wait for each other in a cycle. Gradients are added in an order that is a
//!    setting ([`GradientSum`]): a tree whose subtrees the replicas have. Each replica updates a part of the parameters,
//!    and keeps the state of the optimizer for it alone.
//! 7. A pipeline has a driver and ranks. What a training changes in the driver is one value that can be copied, and a call that
//!    may have to be repeated is data: a command that is applied to the driver and its ranks, and says whether it changes
//!    something and whether all processes make it. (An evaluation with carried values is no command: the values are on ranks, and
//!    are lost with them.) Ranks are what one trait asks for, to run a round, to run code beside the stages and to exchange
//!    values; threads of this process, processes of a [`World`] and a rank whose stages are streamed are three implementations. A
//!    new kind of rank that runs stages in the memory of their driver is another one, and its start; ranks elsewhere are processes,
//!    with an engine of their own. In a [`World`], each process makes the same calls and runs the rank that is its own; the
//!    mailboxes of the other ranks are filled by the engine that connects the processes, so a rank does not know where the others
//!    are. Reports of a round go to all processes, and so every process returns the same.
//!
//!    One interpreter runs lists of actions: it decides which values a program reads and how long they are kept. What a value is,
//!    and what runs a program, is its host: tensors on a rank, tensors with an observer in a replay, or sizes in bytes in a
//!    prediction of memory. The certification has an interpreter of its own, so that a fault of this one is found there.
//!
//!    A rank executes its list; the parameters of a stage are
//!    updated immediately after its last backward, without waiting for other ranks; programs run on Burn's
//!    interpreter of recorded operations, and every tensor is freed or reused at its last use. Up to four
//!    matrix products that Burn computes with one thread each, such as the products of a matrix and a vector, run at
//!    the same time if they do not depend on each other. There is no autodiff at run time. When a rank fails, the others stop
//!    before their next operation.
//!
//!    On a GPU the thread only queues work: Burn fuses the operations of a program, and the rank flushes the
//!    queue after each program, so that the device computes while the thread continues. Each rank's thread
//!    has its own stream; dependencies on another rank's stream are synchronized on the device. A value for a
//!    rank on another GPU is copied by the receiver. When times are measured, the rank waits for each program
//!    instead. A kernel that fails leaves its output and dependent outputs unwritten; reading such data on
//!    the host returns the error: the driver reads the loss of this step or the next. The pipeline then
//!    stops, because the values of its parameters are undefined.
//! 8. With [`Recovery`], a pipeline of processes continues without those that are lost. Three parts have their own state.
//!    The [`World`] agrees on who is left and begins a new generation, whose number every frame carries (a pure state machine,
//!    tested in every order of messages and ends). Each rank's state is held by handles and kept as bytes by one other rank;
//!    after a loss, every value goes from where it is to where the new plan needs it, by path and rows. And a pipeline notes
//!    the commands since the oldest state that it may go back to: a rank that has returned from
//!    a call makes it again with those that have not, because all calls are deterministic. So the driver, the ranks and the
//!    schedules are started anew, by the code that starts any pipeline. A driver with a recovery carries one thing for it: which
//!    snapshots of other ranks have arrived, which ranks report to each other with their losses.
//!
//!    All of this also runs in a simulation: the threads, messages and clocks of all processes in one thread, where a seed decides
//!    every order, delay and loss. Thousands of such runs are compared bit for bit with the undisturbed one, and bugs that are
//!    planted in the recovery are found by them.
//!
//! 9. A [`Streamed`] model is a pipeline over one such rank, whose stages have their parameters and constants only while they run: before
//!    the first action of a stage the rank takes the parameters and constants of the stage before and waits for this stage's. A
//!    thread reads them in the order of the pass, which is known: the order in which forwards run stage by stage. What stays from
//!    one pass to the next, and when there is room to read ahead, is decided by a pure state machine of the planner
//!    ([`planner::StreamState`]) that the prediction runs too. A table of which a forward reads few rows is no value of a pass: its
//!    program has the table's source as an input, and the operation that reads rows gets a small table of them. On a device with
//!    its own memory, parameters may stay on the host, behind the same reader. In a training step a stage also gets the state of
//!    its optimizer, and what it has after its update goes to a [`StageStore`] before it gives its values back: a [`WorkingDir`]
//!    writes it as the part of one rank of a checkpoint, which is published when all stages are there. The activations of each
//!    micro-batch are values of a pass too, which it makes instead of reading: what does not stay is taken from the round after a
//!    stage has run, and put back before the next one that needs it. The visits of a pass and the memory beside
//!    parameters follow from the list of actions, so a schedule needs nothing for it. Everything else, so every bit, is the
//!    pipeline's.
//!
//! # Architecture invariants
//!
//! - **No cost without materialization.** Recording allocates no tensor data.
//! - **The same seed produces the same model.** A random value is a function of the seed, its owner's path
//!   (in the forward: the operation's ordinal), step, micro-batch and its own index.
//! - **A pipeline computes the same as plain Burn.** The joint graph is Burn's; cutting it adds no
//!   arithmetic, which is verified before each new program runs. Gradients of micro-batches are added in
//!   the same order under every schedule, and with any number of stages and replicas. [`verify()`] compares a step of your own model.
//! - **Bits depend on the machine in named classes of operations only.** Sums have a defined order, whatever the number of
//!   threads. What another processor or C library rounds differently is probed ([`NumericFingerprint`]); a checkpoint and a
//!   digest have the probes of their process.
//! - **A lost process changes no bit.** A call that was interrupted returns what it would have returned.
//! - **Checkpoints are atomic.** A checkpoint appears by one rename, in a bucket by one conditional write,
//!   after everything was synced and validated to tile every tensor; every byte that is read is checked.
//! - **A resume continues the run.** A checkpoint has the settings that decide the losses, and others are refused unless the
//!   caller allows them.
//! - **A load is exact.** A [`Source`] can reject a model before anything is materialized: a saved parameter
//!   that the model does not have is an error, as is a missing one.
//! - **A save is a snapshot without copies.** Burn never modifies shared data, so a clone of a tensor is a
//!   snapshot: a background save writes from the memory of the values, and training continues in other
//!   memory. Therefore there is no pool of host buffers, which would cost a pass over all values while
//!   training waits. Values on a GPU are copied to the host by the background thread before it writes,
//!   because GPU memory is scarce and disks are slow.
//! - Planning, cutting, schedules and layouts are pure; files, threads and devices are accessed by few
//!   modules: `record`, the executor, the runtime, profiles, links and worlds, the checkpoint's stores, and those that load
//!   and save one file, such as a plan's.

mod checkpoints;
mod error;
mod verify;
/// The traits whose methods a program calls.
pub mod prelude {
    pub use tinderbox_deferred::Source as _;
    pub use tinderbox_pipeline::{Batch as _, Traceable as _};
}

/// The programs of the book in `docs/src`, compiled as tests.
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
    #[doc = include_str!("../docs/src/generation.md")]
    mod generation {}
    #[doc = include_str!("../docs/src/larger-than-memory.md")]
    mod larger_than_memory {}
    #[doc = include_str!("../docs/src/recording.md")]
    mod recording {}
    #[doc = include_str!("../docs/src/schedules.md")]
    mod schedules {}
    #[doc = include_str!("../docs/src/devices.md")]
    mod devices {}
    #[doc = include_str!("../docs/src/checkpoints.md")]
    mod checkpoints {}
    #[doc = include_str!("../docs/src/replicas.md")]
    mod replicas {}
    #[doc = include_str!("../docs/src/several-machines.md")]
    mod several_machines {}
    #[doc = include_str!("../docs/src/when-a-machine-dies.md")]
    mod when_a_machine_dies {}
    #[doc = include_str!("../docs/src/operating.md")]
    mod operating {}
}

pub use checkpoints::{
    Checkpoints, Resumed, SkippedCheckpoint, WorkingDir, dry_run, export_pipeline, load_module,
    replay_step,
};
pub use error::{CheckpointsError, DryRunError, SettingDifference, VerifyModelError};
/// The format of checkpoints, and everything that reads and writes it.
pub use tinderbox_checkpoint as checkpoint;
pub use tinderbox_checkpoint::{
    Checkpoint, CheckpointSource, ErrorClass, FormatError, LayoutError, LoadError, LoadOptions,
    LoadPlan, ModuleTypes, Pretrained, RankLoad, Regex, Retention, Run, SaveError, SaveTensor,
};
/// Stores of checkpoints, and operations on whole checkpoints.
pub use tinderbox_checkpoint::{store, tools};
/// Deferred models, recipes, programs and the executor.
pub use tinderbox_deferred as deferred;
pub use tinderbox_deferred::{
    Deferred, DeferredError, DeviceError, MaterializeError, MaterializeOptions, MemoryCheck,
    Mismatch, Mismatches, NumericFingerprint, Observer, OrElse, Origin, Parameter, ParameterPath,
    ParameterTable, PartialModule, Recipe, RecipeError, RecipePlan, RecordedModel, Replay, Request,
    Rng, Source, SourceError, Values, check_device, check_materialized, independent_copy,
    open_devices, parameter_values, random,
};
/// Fake tensors, recording and graphs.
pub use tinderbox_fake as fake;
pub use tinderbox_fake::{
    DeviceLabel, DynTensor, ErrorOrigin, FakeError, Graph, Mode, RecordError, RecordOptions,
    Recording, Region, RegionError, TensorKind, TensorMeta, cut, is_fake, is_host, record,
};
/// Traces, plans, and the runtime that trains stages.
pub use tinderbox_pipeline as pipeline;
/// Costs, machines, partitioners, predictions and plan files.
pub use tinderbox_pipeline::planner;
/// Schedules as data: generated, read, lowered, verified, simulated, drawn.
pub use tinderbox_pipeline::schedule;
pub use tinderbox_pipeline::{
    ActionError, Along, AnyPrecisionAdamW, Batch, BatchError, BatchMapper, BlockProfile,
    BlockSizes, CalibrateError, Carried, CarriedFault, Carry, CarryError, CertifyError,
    CertifySite, Clipping, Cut, DamageError, DiskRate, Division, Evaluation, GradientSum,
    GroupError, Leaf, LeafName, Link, LinkError, LinkMessage, ListsError, LocalLink, LossOver,
    LossScale, Machine, MemoryBudget, MixedPrecision, MomentDType, NotHeld, OnDemand,
    OperationTimes, OptimizerConfig, OptimizerSnapshot, OutputError, Outputs, OutputsOn,
    Partitioner, Pipeline, PipelineBuilder, PipelineError, Placement, Plan, PlanError, PlanFile,
    PlanStage, Planner, ProcessError, Profile, ProfileError, Profiler, ProgramDigest, RankError,
    RankModel, Recovered, Recovery, RecoveryError, Repaired, ReplayComparison, ReplayDifference,
    ReplayedOperation, ReplayedProgram, Resident, RestoreError, SavedOptimizer, SavedState,
    ScheduleChoice, ScheduleKind, Stage, StageStore, StartError, StateDigest, StateError,
    StateFault, StateFields, StatePart, StateTensor, StepError, StepOutput, StepRates, StepReplay,
    Streamed, StreamedBuilder, StreamedError, StreamedTraining, Tag, Trace, TraceError, Traceable,
    UpdatedStage, Whole, batch_tensors, calibrate, calibrate_world, split_batch,
};
/// Processes that run a program together, and the engines between them.
pub use tinderbox_world as world;
pub use tinderbox_world::{World, WorldError, WorldOptions};
/// Processes that `mpirun` started.
#[cfg(feature = "mpi")]
pub use tinderbox_world_mpi as mpi;
pub use verify::{
    GradientComparison, LossComparison, ParameterComparison, Verification, VerifyOptions, verify,
    verify_with,
};
