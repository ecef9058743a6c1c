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
//! [limits]: https://docs.rs/crate/tinderbox/latest/source/LIMITS.md
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
//! burn <- fake <- deferred <- { graph, checkpoint }     derive <- graph <- pipeline
//! ids <- { schedule, deferred, planner, graph, world }  memory <- { deferred, checkpoint, pipeline }
//! schedule <- planner <- { graph, pipeline }            world <- { world-mpi, pipeline }
//! { pipeline, checkpoint } <- { tinderbox, cli }        simulation <- world, with `simulation`
//! { world, world-mpi } <- tinderbox <- { train, models, gpu-check, lm }
//! ```
//!
//! | crate | folder | contents | independent of |
//! |---|---|---|---|
//! | `tinderbox_ids` | `ids` | the path of a parameter, indices of ranks and stages, the text of an error with its causes | the rest |
//! | [`tinderbox_fake`](fake) | `fake` | recording, the graph, regions | modules, execution |
//! | [`tinderbox_deferred`](deferred) | `deferred` | parameter tables, recipes, programs, the executor, random values, sources | stages, checkpoints |
//! | `tinderbox_memory` | `deferred/memory` | memory for tensors, populated in the faster page size and reused; the only `unsafe` code | tensors |
//! | [`tinderbox_schedule`](schedule) | `pipeline/schedule` | schedules as data: generated, read, verified, simulated, found, drawn | Burn, threads |
//! | [`tinderbox_planner`](planner) | `pipeline/planner` | machines, partitioners, predictions, the plan with its file and its views | Burn, threads |
//! | `tinderbox_derive` | `pipeline/derive` | `#[derive(Batch)]` | the rest |
//! | `tinderbox_graph` | `pipeline/graph` | traces, cuts, certification, plans of traces | threads, processes, clocks |
//! | [`tinderbox_world`](world) | `pipeline/world` | messages matched by tag, a stop that wakes every wait, model-checked (`link`); processes as ranks: launchers, frames, calls of all, the shutdown protocol, gRPC | tensors |
//! | `tinderbox_world_mpi` | `pipeline/world/mpi` | the same frames over MPI | gRPC |
//! | [`tinderbox_pipeline`](pipeline) | `pipeline` | profiles, ranks and their driver | checkpoints |
//! | [`tinderbox_checkpoint`](checkpoint) | `checkpoint` | the format, stores, commits, verified reads, tools | pipelines, optimizers |
//! | `tinderbox` | `src` | [`Checkpoints`], which saves and resumes pipelines; [`WorkingDir`], in which a streamed model is trained; [`load_module`], [`export_pipeline`]; the training loop [`Session`], the loop [`Generate`]; [`compare_with_burn`]; every [error] | |
//! | `tinderbox_train` | `train` | burn-train's loop over pipelines, epochs that continue | the internals of the runtime |
//! | `tinderbox-cli` | `cli` | the command `tinderbox`: schedules, plans, checkpoints, models, runs, the launcher | the internals of the runtime |
//! | `tinderbox_simulation` | `tests/simulation` | fibers, a virtual clock and seeded choices, in which links and worlds run for tests | the rest |
//! | `tinderbox-models`, `tinderbox-lm`, `tinderbox-gpu-check` | `tools` | models that tests and examples share; a training with every check of a run; a program that checks a GPU | the internals of the runtime |
//!
//! `tinderbox_world` depends on `tinderbox_simulation` with its feature `simulation` only.
//!
//! Data flows one way: record, trace, cost, schedule, partition, plan, cut, run, save. Schedules, worlds and
//! the planner are separate crates because they do not depend on Burn: they build and test in seconds, and a
//! program that only draws a schedule or reads a plan does not compile the rest.
//!
//! The phases of a training step:
//!
//! 1. [`Deferred::new`] runs the model's constructor under recording. The result is a graph of Burn
//!    operations and a table of parameters.
//!
//!    A parameter's value comes from a [`Source`]. An [`Initializer`](deferred::Initializer) extracts the operations that
//!    compute the parameter from the graph as a [`Recipe`](deferred::Recipe). A requested region is propagated backwards
//!    through them, so that only the required elements are computed; the dtype is cast at the end. Random operations are keyed
//!    by seed, owner and draw. With [`Rng::Backend`], the backend executes them in recorded order, and draws and discards
//!    values that are not requested. On a GPU, kernels generate the random values in place, with the same bits; everything
//!    else of a recipe uses Burn's own operations. A whole module is rebuilt by its own closure, after a second recording has
//!    confirmed that the closure still constructs the same model.
//!
//!    Code: `fake/src`, `deferred/src`.
//! 2. [`Traceable::trace`] records constructor, forward, loss and Burn's own backward pass in one recording:
//!    the joint graph. A trace has the batch of a step and its number of micro-batches; the graph is the graph of the largest
//!    micro-batch. In it every parameter is a placeholder: a separate value without data, which no operation of the
//!    constructor computes. So a program can't contain a parameter's initial value, and two
//!    parameters are two values, even if they are initialized from one tensor. Other values
//!    that the forward reads from the constructor must be the same in every construction, so random tensor
//!    fields are rejected. Constructor and forward are recorded twice and compared, and again when a pipeline
//!    starts: a difference is an error. A forward that draws random values or updates a running state of the
//!    model is also called twice on one module. If the second call differs, the forward has created a
//!    parameter that no visitor visits, which a program can't do, or has read the state without its last update.
//!    A batch shape that is recorded again after it was dropped must have the digest of its first recording.
//!
//!    A forward may update running states, such as the statistics of batch norm. Burn applies the new value
//!    at the next use of the state; a recording applies it at the end of the forward. The new value is
//!    an output of the forward program of the stage that owns the state. The next forward of the stage reads
//!    it, so forwards run in micro-batch order; backwards read the value that their own forward has kept. It
//!    replaces the state with the update of the step: a skipped or stopped step leaves states unchanged.
//!    Burn does not move recorded tensors in autodiff, not even to their own device. So the
//!    statistics of batch norms are recorded outside of autodiff, and, if the forward moves tensors, so are the
//!    integers and booleans of the batch.
//!
//!    The objective is `loss * weight`. [`Outputs`] specifies the unit of the loss. The weight of a
//!    micro-batch is its fraction of the samples, or of a count that the driver computes from the batch
//!    before the step, or 1 for a sum. A step therefore has the loss and the gradients of the whole batch.
//!
//!    In mixed precision ([`MixedPrecision`]) the same is recorded on a device whose default float type has
//!    16 bits. Dtypes are not rewritten: the graph is the graph that Burn itself would execute there. A
//!    rank holds the f32 parameters of the table. Its stage casts each parameter for the first program that reads it,
//!    keeps the result until the update, and accumulates the 16-bit gradients in f32. A [`LossScale`] is part
//!    of the weight; it is divided out before clipping and the update. Because the norm of all gradients
//!    shows whether they are finite, all ranks skip the same steps with no more messages than clipping needs.
//!    Only the update of a running state is rewritten, to f32: a mean over many batches in 16
//!    bits would lose the contribution of a single batch.
//!
//!    Code: `pipeline/graph/src/trace`.
//! 3. Every operation gets a role. *Constant* operations depend only on constants: they run once per rank. *Recomputable*
//!    operations depend on the batch and on random keys and are not products: every stage that reads them recomputes them.
//!    *Assigned* operations depend on parameters, or are products of the batch: they run on the stage that the plan specifies.
//!    In the backward pass, *backward-local* operations depend only on forward values and run where they are read; *gradient*
//!    operations depend on the weight, and are assigned by the cut. Roles depend on the kind of an operation and on its
//!    inputs, not on its size, so they are the same for every batch size. An evaluation may carry tensors of the batch to the
//!    next evaluation ([`Carried`]). The new value of each tensor is an output of the forward program of the stage that reads
//!    it. It stays on this stage, with the carry ([`Carry`](pipeline::Carry)) and the micro-batch that it belongs to. The
//!    operations between are one block of the plan. A new value that depends on no parameter is computed by every stage that
//!    reads it.
//!
//!    Code: `pipeline/graph/src/trace`; for carried values `pipeline/src/runtime/driver/carry.rs`.
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
//!    The plan is one file ([`planner::Plan`]). Parameters are assigned by path and operations by
//!    position, so one plan serves training, evaluation and every batch shape: a program with the planned
//!    structure is cut as planned; in another, each operation runs on
//!    the lowest stage that is not below its inputs and holds the parameters that it reads.
//!
//!    Code: `pipeline/graph/src/work`, `pipeline/graph/src/plan`, `pipeline/planner/src`, `pipeline/src/profile`.
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
//!    gradients, message and copy in the lowered lists ([`CertifyError`](error::CertifyError)). This check shares no code with
//!    the cut, the lowering and the verifier: it reads their results.
//!
//!    Code: `pipeline/graph/src/cut`, `pipeline/graph/src/certify`.
//! 6. A schedule consists of lists of compute actions, from a generator, from `auto` or from a user. Lowering
//!    adds sends, receives, reduces and updates, and the norms for clipping by the norm of all gradients. The
//!    verifier runs the lists symbolically before any rank does. The simulator adds times and bytes. A
//!    measured step has the same type as a simulated step, so either can be drawn, or both overlaid.
//!
//!    A program depends only on its operands. So the programs of one micro-batch can run again in one process, one after the
//!    other, with the same bits and with every value visible ([`StepReplay`](pipeline::StepReplay)). Each stage is materialized
//!    for its own programs.
//!
//!    With replicas, several ranks run each stage. Every replica has its own lists for its micro-batches. A rank sends its
//!    gradients when they are complete, and waits for the gradients of other replicas only after all of
//!    its backwards, so lists that differ can't wait for each other in a cycle. Gradients are added in an order that is a
//!    setting ([`GradientSum`]): a tree whose subtrees the replicas have. Each replica updates a part of the parameters,
//!    and keeps only the optimizer state of this part.
//!
//!    Code: `pipeline/schedule/src`; for replays `pipeline/src/runtime/pipeline/replay`.
//! 7. A pipeline has a driver and ranks. The state of the driver that a training changes is one value that can be copied. A
//!    call that may have to be repeated is data: a command, which is applied to the driver and its ranks. A command reports
//!    whether it changes anything and whether all processes make it. (An evaluation with carried values is not a command: the
//!    values are on ranks, and are lost with them.) `Ranks` is one trait: it runs a round, runs code beside the stages, and
//!    exchanges values. It has three implementations: threads of this process, processes of a [`World`], and a rank whose
//!    stages are streamed. A new kind of rank in the memory of the driver is another implementation, and its start. Ranks
//!    elsewhere are processes, with their own engine. In a [`World`], each process makes the same calls and runs its own rank.
//!    The engine that connects the processes fills the mailboxes of the other ranks, so a rank does not know where they are.
//!    Reports of a round go to all processes, so every process returns the same result.
//!
//!    One interpreter runs lists of actions: it decides which values a program reads and how long they are kept. Its host
//!    decides what a value is and how a program runs. There are three hosts: tensors on a rank, tensors with an observer in a
//!    replay, and sizes in bytes in a prediction of memory. The certification has its own interpreter, so it finds a fault of
//!    this one.
//!
//!    A rank executes its list. The parameters of a stage are updated immediately after its last backward, without waiting for
//!    other ranks. Programs run on Burn's interpreter of recorded operations, and every tensor is freed or reused at its last
//!    use. Up to four matrix products that Burn computes with one thread each, such as the products of a matrix and a vector,
//!    run at the same time if they do not depend on each other. There is no autodiff at run time. When a rank fails, the other
//!    ranks stop before their next operation.
//!
//!    On a GPU the thread only queues work: Burn fuses the operations of a program, and the rank flushes the queue after each
//!    program, so that the device computes while the thread continues. Each rank's thread has its own stream; dependencies on
//!    another rank's stream are synchronized on the device. The receiver copies a value for a rank on another GPU. When times
//!    are measured, the rank waits for each program instead. A kernel that fails leaves its output and dependent outputs
//!    unwritten. A read of such data on the host returns the error: the driver reads the loss of this step or the next. The
//!    pipeline then stops, because the values of its parameters are undefined.
//!
//!    Code: `pipeline/src/runtime`, `pipeline/world/src`.
//! 8. With [`Recovery`], a pipeline of processes continues when processes are lost. Three parts have their own state. The
//!    [`World`] agrees on its remaining members and begins a new generation, whose number every frame carries (a pure state
//!    machine, tested in every order of messages and ends). Each rank's state is held by handles and kept as bytes by one
//!    other rank; after a loss, every value is sent to where the new plan needs it, by path and rows. A pipeline records the
//!    commands since the oldest state that it may go back to. A rank that has returned from a call repeats it together with
//!    the ranks that have not, because all calls are deterministic. The driver, the ranks and the schedules are started again
//!    by the code that starts any pipeline. A driver with a recovery has one more value: which snapshots of other ranks have
//!    arrived. Ranks report it to each other with their losses.
//!
//!    All of this also runs in a simulation: the threads, messages and clocks of all processes in one thread, where a seed
//!    decides every order, delay and loss. Thousands of such runs are compared bit for bit with an undisturbed run, and they
//!    find bugs that are planted in the recovery.
//!
//!    Code: `pipeline/src/runtime/recovery`, `pipeline/world/src/members`; the simulation is in `tests/simulation`.
//! 9. A [`Streamed`] model is a pipeline over one rank whose stages have their parameters and constants only while they run.
//!    Before the first action of a stage, the rank removes the parameters and constants of the previous stage and waits for
//!    the parameters and constants of this stage. A thread reads them in the order of the pass, which is known: the order in
//!    which forwards run stage by stage. A pure state machine of the planner ([`planner::StreamState`]) decides which values
//!    stay from one pass to the next, and when there is memory to read ahead. The prediction runs it too. A table of which a
//!    forward reads few rows is not a value of a pass: its program has the table's source as an input, and the operation that
//!    reads rows gets a small table of them. On a device with its own memory, parameters may stay on the host, and the same
//!    reader copies them.
//!
//!    In a training step, a stage also gets the state of its optimizer. After its update, it sends its new values to a
//!    [`StageStore`](pipeline::StageStore) before they are removed. A [`WorkingDir`] writes them as the part of one rank of a
//!    checkpoint, and publishes the checkpoint when it has all stages. The activations of each micro-batch are values of a pass
//!    too, which the pass computes instead of reading. Activations that do not stay are removed after a stage has run, and put
//!    back before the next stage that needs them. The visits of a pass and the memory of other values
//!    follow from the list of actions, so a schedule needs nothing for it. Everything else, and so every bit, is the
//!    same as in a pipeline.
//!
//!    Code: `pipeline/src/runtime/pass`, `pipeline/planner/src/stream`, `src/checkpoints/working.rs`.
//!
//! # Architecture invariants
//!
//! - **No cost without materialization.** Recording allocates no tensor data.
//! - **The same seed produces the same model.** A random value is a function of the seed, its owner's path
//!   (in the forward: the operation's ordinal), step, micro-batch and its own index.
//! - **A pipeline computes the same as plain Burn.** The joint graph is Burn's; cutting it adds no
//!   arithmetic, which is verified before each new program runs. Gradients of micro-batches are added in
//!   the same order under every schedule, and with any number of stages and replicas. [`compare_with_burn`] compares a step
//!   of your own model.
//! - **Bits depend on the machine only in named classes of operations.** Sums have a defined order, whatever the number of
//!   threads. Probes find the operations that another processor or C library rounds differently
//!   ([`NumericFingerprint`](deferred::NumericFingerprint)); a checkpoint and a digest have the probes of their process.
//! - **A lost process changes no bit.** A call that was interrupted returns what it would have returned.
//! - **Checkpoints are atomic.** A checkpoint appears by one rename, in a bucket by one conditional write,
//!   after everything was synced and validated to tile every tensor; every byte that is read is checked.
//! - **A resume continues the run.** A checkpoint has the settings that decide the losses. Other settings are refused unless
//!   the caller allows them.
//! - **A load is exact.** A [`Source`] can reject a model before anything is materialized: a saved parameter
//!   that the model does not have is an error, and so is a missing parameter.
//! - **A save is a snapshot without copies.** Burn never modifies shared data, so a clone of a tensor is a
//!   snapshot: a background save writes from the memory of the values, and training continues in other
//!   memory. Therefore there is no pool of host buffers, which would cost a pass over all values while
//!   training waits. Values on a GPU are copied to the host by the background thread before it writes,
//!   because GPU memory is scarce and disks are slow.
//! - Planning, cutting, schedules and layouts are pure; files, threads and devices are accessed by few
//!   modules: `record`, the executor, the runtime, profiles, links and worlds, the checkpoint's stores, and modules that load
//!   and save one file, such as the file of a plan.

mod checkpoints;
pub mod compare;
pub mod error;
pub mod generate;
pub mod session;

/// The traits whose methods a program calls.
pub mod prelude {
    pub use tinderbox_deferred::Source as _;
    pub use tinderbox_pipeline::{Batch as _, PlanBroadcast as _, Traceable as _};
}

/// Checkpoints of pipelines, and the format of checkpoints with its readers and writers.
pub mod checkpoint {
    pub use crate::checkpoints::{
        Checkpoints, Resumed, RunProgress, SkippedCheckpoint, WorkingDir, dry_run, export_pipeline,
        load_module, replay_step,
    };
    #[cfg(feature = "testing")]
    #[cfg_attr(docsrs, doc(cfg(feature = "testing")))]
    pub use tinderbox_checkpoint::testing;
    pub use tinderbox_checkpoint::{
        Attempt, AttemptHandle, AttemptId, BlockSize, Checkpoint, CheckpointMeta, CheckpointSource,
        Chunk, Cleaned, Digest, DocumentEntry, ErrorClass, FileEntry, FormatError, Header,
        HeaderError, HeaderTensor, Latest, LayoutError, LoadError, LoadOptions, LoadPlan, Manifest,
        ModuleTypes, Pretrained, RankLoad, RankSave, Regex, Retention, Role, Run, SaveData,
        SaveError, SaveSize, SaveTensor, SavedPart, SavedTensors, Saving, Scalar, Skipped,
        StoredDType, TensorEntry, UnknownFields, assign_writers, check_tiling, decode_header,
        encode_header, most_working_bytes, store, tools,
    };
}

/// The programs of the book in `docs/src`, compiled as tests. The programs that use `tinderbox_train` are tests of that crate.
#[cfg(doctest)]
mod book {
    /// Each chapter is a module, whose name is in the names of its tests.
    macro_rules! chapters {
        ($($module:ident = $file:literal,)*) => {$(
            #[doc = include_str!(concat!("../docs/src/", $file, ".md"))]
            mod $module {}
        )*};
    }

    chapters! {
        getting_started = "getting-started",
        deferred = "deferred",
        pretrained = "pretrained",
        planning = "planning",
        training = "training",
        generation = "generation",
        larger_than_memory = "larger-than-memory",
        recording = "recording",
        schedules = "schedules",
        devices = "devices",
        checkpoints = "checkpoints",
        replicas = "replicas",
        several_machines = "several-machines",
        when_a_machine_dies = "when-a-machine-dies",
    }
}

pub use checkpoints::{Checkpoints, WorkingDir, export_pipeline, load_module};
pub use compare::compare_with_burn;
pub use error::Error;
pub use generate::{Generate, Sampler};
pub use session::{Event, Outcome, Position, Session};
pub use tinderbox_checkpoint::{Checkpoint, Pretrained};
/// Deferred models, recipes, programs and the executor.
pub use tinderbox_deferred as deferred;
pub use tinderbox_deferred::{Deferred, ParameterPath, PartialModule, Rng, Source};
/// Fake tensors, recording and graphs.
pub use tinderbox_fake as fake;
pub use tinderbox_fake::DynTensor;
/// Traces, plans, and the runtime that trains stages.
pub use tinderbox_pipeline as pipeline;
/// The names that `#[derive(Batch)]` uses.
#[doc(hidden)]
pub use tinderbox_pipeline::batch;
/// Costs, machines, partitioners, predictions and plan files.
pub use tinderbox_pipeline::planner;
/// Schedules as data: generated, read, lowered, verified, simulated, drawn.
pub use tinderbox_pipeline::schedule;
pub use tinderbox_pipeline::{
    Along, Batch, Carried, Clipping, Cut, Evaluation, GradientSum, LossScale, Machine,
    MemoryBudget, MixedPrecision, Outputs, Partitioner, Pipeline, Plan, PlanBroadcast, Planner,
    Recovery, ScheduleKind, StepOutput, Streamed, Trace, Traceable, Whole,
};
/// Processes that run a program together, and the engines between them.
pub use tinderbox_world as world;
pub use tinderbox_world::World;
/// Processes that `mpirun` started.
#[cfg(feature = "mpi")]
pub use tinderbox_world_mpi as mpi;
