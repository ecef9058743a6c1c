#![cfg_attr(docsrs, feature(doc_cfg))]
// The links of the README are relative to the repository, and would be dead on docs.rs. Markdown uses the first definition
// of a link, so these definitions come before the README and replace its own.
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
//! An arrow points to the crate that is used: in `fake <- deferred`, `deferred` depends on `fake`.
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
//! | `tinderbox_ids` | `ids` | paths of parameters, indices of ranks and stages, the text of an error with its causes | the rest |
//! | [`tinderbox_fake`](fake) | `fake` | recording, the graph, regions | modules, execution |
//! | [`tinderbox_deferred`](deferred) | `deferred` | parameter tables, recipes, programs, the executor, random values, sources | stages, checkpoints |
//! | `tinderbox_memory` | `deferred/memory` | memory for tensors, populated in the faster page size and reused; the only crate with `unsafe` code | tensors |
//! | [`tinderbox_schedule`](schedule) | `pipeline/schedule` | schedules as data: generated, read, verified, simulated, found, drawn | Burn, threads |
//! | [`tinderbox_planner`](planner) | `pipeline/planner` | machines, partitioners, predictions, the plan, its file, and how it is shown | Burn, threads |
//! | `tinderbox_derive` | `pipeline/derive` | `#[derive(Batch)]` | the rest |
//! | `tinderbox_graph` | `pipeline/graph` | traces, cuts, certification, plans of traces | threads, processes, clocks |
//! | [`tinderbox_world`](world) | `pipeline/world` | links between threads (`link`, model-checked): messages matched by key, and a stop signal that wakes every wait. Worlds of processes: launchers, frames, calls of all processes, the shutdown protocol, gRPC | tensors |
//! | `tinderbox_world_mpi` | `pipeline/world/mpi` | the same frames over MPI | gRPC |
//! | [`tinderbox_pipeline`](pipeline) | `pipeline` | profiles, ranks and their driver | checkpoints |
//! | [`tinderbox_checkpoint`](checkpoint) | `checkpoint` | the format, stores, commits, verified reads, tools | pipelines, optimizers |
//! | `tinderbox` | `src` | [`Checkpoints`], which saves and resumes pipelines; [`WorkingDir`], in which a streamed model is trained; [`load_module`], [`export_pipeline`]; the training loop [`Session`], the loop [`Generate`]; [`compare_with_burn`]; every [error] | |
//! | `tinderbox_train` | `train` | burn-train's loop over pipelines, data loaders that start at any position | the internals of the runtime |
//! | `tinderbox-cli` | `cli` | the command `tinderbox`: schedules, plans, checkpoints, models, runs, the launcher | the internals of the runtime |
//! | `tinderbox_simulation` | `tests/simulation` | fibers, a virtual clock and seeded choices; tests run links and worlds in it | the rest |
//! | `tinderbox-engines` | `tests/engines` | engines of a world that inject faults, for tests: between threads, and between simulated processes | tensors |
//! | `tinderbox-references` | `tests/references` | an exhaustive search for the best cuts, random models and machines to plan for, and steps to schedule, for tests and benches | Burn, threads |
//! | `tinderbox-models`, `tinderbox-lm`, `tinderbox-gpu-check` | `tools` | models that tests and examples share; a training program with flags for every check; a program that checks a GPU | the internals of the runtime |
//!
//! `tinderbox_world` depends on `tinderbox_simulation` only with its feature `simulation`.
//!
//! Data flows one way: record, trace, cost, schedule, partition, plan, cut, run, save. Schedules, worlds and the planner
//! are separate crates because they do not depend on Burn: they build and test in seconds. A program that only draws a
//! schedule or reads a plan does not compile the rest.
//!
//! The phases of a training step follow. The [glossary] defines the terms.
//!
//! 1. [`Deferred::new`] runs the model's constructor under recording. The result is a graph of Burn operations and a table
//!    of parameters.
//!
//!    A parameter's value comes from a [`Source`]. One source is the [`Initializer`](deferred::Initializer). It copies the
//!    operations that compute the parameter out of the graph, as a [`Recipe`](deferred::Recipe). If only a region of the
//!    parameter is requested, the region is propagated backwards through these operations, so that only the required
//!    elements are computed. The dtype is cast at the end.
//!
//!    A random operation has a key: the seed, the path of its owner, and its index among the random operations of this
//!    owner (its draw). With [`Rng::Backend`], the backend's own generator is used instead. The backend then runs the
//!    random operations in recorded order, and the values that are not requested are discarded. On a GPU, kernels generate
//!    the random values on the device, with the same bits as on the CPU. All other operations of a recipe are Burn's own.
//!
//!    To materialize a whole module, its own closure constructs it again. Before that, a second recording confirms that the
//!    closure still constructs the same model.
//!
//!    Code: `fake/src`, `deferred/src`.
//! 2. [`Traceable::trace`] records constructor, forward, loss and Burn's own backward pass in one recording: the joint
//!    graph. A trace is for the batch of a step and a number of micro-batches. The graph is recorded for the largest
//!    micro-batch.
//!
//!    In the joint graph, every parameter is a placeholder: a separate value without data, which no operation of the
//!    constructor computes. So a program can't contain a parameter's initial value. Two parameters are two values, even if
//!    one tensor initializes both. The forward may read other values from the constructor. They must be the same in every
//!    construction, so random tensor fields are rejected.
//!
//!    Constructor and forward are recorded twice and compared, and again when a pipeline starts: a difference is an error.
//!    If a forward draws random values or updates a running state of the model, it is also called twice on one module. The
//!    second call reveals two faults that a program can't reproduce. The forward initializes a parameter that no visitor
//!    visits: a module does this once, but a program would draw new values in every run. Or it reads the state without its
//!    last update. A recorded batch shape may be dropped, and recorded again when it is needed. The second recording must
//!    have the digest of the first.
//!
//!    A forward may update running states, such as the statistics of batch norm. Burn applies the new value at the next use
//!    of the state; a recording applies it at the end of the forward. The new value is an output of the forward program of
//!    the stage that owns the state. The next forward of the stage reads it, so forwards run in micro-batch order. A
//!    backward reads the value that its own forward has kept. The state itself is replaced together with the update of the
//!    parameters. So a skipped or stopped step leaves states unchanged. Burn does not move recorded tensors in autodiff,
//!    not even to their own device. So the statistics of batch norms are recorded outside of autodiff. If the forward moves
//!    tensors, the integers and booleans of the batch are recorded outside of autodiff too.
//!
//!    The objective is `loss * weight`. [`Outputs`] specifies the unit of the loss. The weight of a micro-batch is its
//!    fraction of the samples, or of a count that the driver computes from the batch before the step, or 1 for a sum. So
//!    the loss and the gradients of a step are the loss and the gradients of the whole batch.
//!
//!    In mixed precision ([`MixedPrecision`]) the model is recorded on a device whose default float type has 16 bits.
//!    Dtypes are not rewritten: the graph is the graph that Burn itself would execute on such a device. A rank holds the
//!    f32 parameters of the table. Its stage casts each parameter for the first program that reads it, and keeps the result
//!    until the update. The stage accumulates the 16-bit gradients in f32. The weight is multiplied by the [`LossScale`];
//!    gradients are divided by it before clipping and the update. The norm of all gradients shows whether they are finite.
//!    So all ranks skip the same steps, and exchange no more messages than clipping needs. Only the update of a running
//!    state is rewritten, to f32: a mean over many batches in 16 bits would lose the contribution of a single batch.
//!
//!    Code: `pipeline/graph/src/trace`.
//! 3. Every operation gets a role, which decides where it runs:
//!
//!    - *Constant* operations depend only on constants. Every stage that reads them runs them once.
//!    - *Recomputable* operations depend on the batch and on random keys, and are no products (of matrices, convolutions or
//!      attention). Every stage that reads them recomputes them.
//!    - *Assigned* operations depend on parameters, or are products of the batch. They run on the stage that the plan
//!      specifies.
//!    - *Backward-local* operations of the backward pass depend only on forward values. They run where they are read.
//!    - *Gradient* operations of the backward pass depend on the weight. The cut assigns them.
//!
//!    A role depends on the kind of an operation and on its inputs, not on its size. So roles are the same for every batch
//!    size.
//!
//!    An evaluation may carry tensors of the batch to the next evaluation ([`Carried`]). The new value of a carried tensor
//!    is an output of the forward program of the stage that reads the tensor. The value stays on this stage. It belongs to
//!    one [`Carry`](pipeline::Carry) and one micro-batch. The operations from the first use of the tensor to its new value
//!    are one block of the plan, so no cut separates them. If a new value depends on no parameter, every stage that reads
//!    the tensor computes it.
//!
//!    Code: `pipeline/graph/src/trace`; for carried values `pipeline/src/runtime/driver/carry.rs`.
//! 4. A plan is computed. Every operation has a cost: floating-point operations and bytes from its shapes, or a fraction of
//!    the measured time of its block. Operations that stay on one stage (a module's weight and bias, a transposed weight
//!    and its product) form a block. The blocks with their inputs, outputs, stored values and transfers are the
//!    [`planner::Work`] of the program. Partitioners divide it, and the simulator predicts the time of each partition.
//!
//!    For contiguous stages, the cost model of a step is a maximum over stages plus a sum over stages. For each limit of
//!    the maximum, dynamic programming finds the minimum sum. A bounded search over limits finds the best step. For graphs
//!    that are not a chain, moving blocks between stages improves the result. The moves use the memory model of the
//!    simulator. The numbers of in-flight micro-batches come from the schedule's own lists.
//!
//!    Stages are numbered in the order of the forward, from the lowest to the highest. The lowest stage that reads a
//!    parameter owns it. If several stages contribute to a gradient, it is passed from the highest stage to the lowest.
//!    Burn's backward adds the contributions in the same order.
//!
//!    The plan is one file ([`planner::Plan`]). It assigns parameters by path and operations by position, so one plan
//!    serves training, evaluation and every batch shape. A program with the planned structure is cut as planned. In a
//!    program with another structure, each operation runs on the lowest stage that holds its parameters and is not below
//!    the stages of its inputs.
//!
//!    Code: `pipeline/graph/src/work`, `pipeline/graph/src/plan`, `pipeline/planner/src`, `pipeline/src/profile`.
//! 5. The cut gives each stage a forward program and a backward program. The backward exists as a whole (`B`), and in two
//!    halves: `I` computes the values for other stages, `W` computes the gradients of the stage's own parameters. Values
//!    that both need are computed by `I` and kept for `W`, except masks, casts and shapes, which are cheaper to recompute.
//!    Every operation has the same operands in both forms, so `I` and `W` produce the bits of `B`. If a stage recomputes
//!    its activations, its backward contains the required part of its forward.
//!
//!    The operation that computes the gradient of a parameter runs on the stage that owns the parameter, if all of its
//!    inputs are available there. Any other gradient operation usually runs on the highest stage where the forward values
//!    that it reads are available. This stage is never above the stages that compute its gradient inputs, so gradients flow
//!    only from higher stages to lower ones. A value that skips stages is sent directly to its readers. A parameter that
//!    several stages read has one owner and copies. The contributions to its gradient are added at the owner within the
//!    joint graph, in the same order as in Burn. The owner sends the updated value to the copies once per step.
//!
//!    Before programs run for the first time, they are certified: they run on hashes instead of tensors. Every operation,
//!    down to parameters, batch, constants and random keys, must match the uncut graph. So must every sum of gradients,
//!    message and copy in the lowered lists ([`CertifyError`](error::CertifyError)). This check shares no code with the
//!    cut, the lowering and the verifier: it reads their results.
//!
//!    Code: `pipeline/graph/src/cut`, `pipeline/graph/src/certify`.
//! 6. A schedule is a list of compute actions for each rank, from a generator, from `auto` or from a user. Lowering adds
//!    sends, receives, reduces and updates, and, if gradients are clipped by the norm of all gradients, the norms. The
//!    verifier runs the lists symbolically before any rank runs them. The simulator adds times and bytes. A measured step
//!    has the same type as a simulated step, so either can be drawn, or both overlaid.
//!
//!    A program depends only on its operands. So the programs of one micro-batch can run again in one process, one after
//!    the other, with the same bits and with every value visible ([`StepReplay`](pipeline::StepReplay)). The stages are
//!    materialized one after the other, each for its own programs.
//!
//!    With replicas, several ranks run each stage. Every replica has its own lists for its micro-batches. A rank sends its
//!    gradients when they are complete. It waits for the gradients of other replicas only after all of its backwards. So
//!    lists that differ can't wait for each other in a cycle. A setting decides the order in which gradients are added
//!    ([`GradientSum`]): with replicas a tree, in which each replica has a subtree. Each replica updates a part of the
//!    parameters, and keeps only the optimizer state of this part.
//!
//!    Code: `pipeline/schedule/src`; for replays `pipeline/src/runtime/pipeline/replay`.
//! 7. A pipeline has a driver and ranks. All state of the driver that training changes is one value that can be copied. A
//!    call that may have to be repeated is data: a command, which is applied to the driver and its ranks. A command reports
//!    whether it changes anything, and whether all processes call it together. (An evaluation with carried values is not a
//!    command: the values are on ranks, and are lost with them.)
//!
//!    The driver uses its ranks through one trait, `Ranks`. The trait runs a round (a training step or an evaluation), runs
//!    other code on the threads of the ranks, and exchanges values. It has three implementations: threads of this process,
//!    processes of a [`World`], and a rank whose stages are streamed. For a new kind of rank in the driver's process, add
//!    an implementation and its start. A rank anywhere else is a process of a world. In a [`World`], each process makes the
//!    same calls and runs its own rank. An engine connects the processes and fills the mailboxes of their ranks, so a rank
//!    does not know where the other ranks are. A new transport is a new engine. Reports of a round go to all processes, so
//!    every process returns the same result.
//!
//!    One interpreter runs lists of actions: it decides which values a program reads and how long they are kept. Its host
//!    decides what a value is and how a program runs. There are three hosts: tensors on a rank, tensors with an observer in
//!    a replay, and sizes in bytes in a prediction of memory. The certification does not use this interpreter but its own,
//!    so that it finds faults of this one.
//!
//!    A rank executes its list. The parameters of a stage are updated immediately after its last backward, without waiting
//!    for other ranks, unless clipping needs the norms of all ranks. Programs run on Burn's interpreter of recorded
//!    operations, and every tensor is freed or reused at its last use. Burn computes some matrix products, such as the
//!    product of a matrix and a vector, with one thread each. Up to four of them run at the same time if they do not depend
//!    on each other. There is no autodiff at run time. When a rank fails, the other ranks stop before their next operation.
//!
//!    On a GPU the thread only queues work. Burn fuses the operations of a program. The rank flushes the queue after each
//!    program, so that the device computes while the thread continues. Each rank's thread has its own stream. If it depends
//!    on another rank's stream, the device synchronizes the two. If a value is for a rank on another GPU, the receiver
//!    copies it. When times are measured, the rank waits for each program instead. A kernel that fails leaves its output
//!    and dependent outputs unwritten. A read of such data on the host returns the error, and the driver reads the loss in
//!    this step or the next. The pipeline then stops, because the values of its parameters are undefined.
//!
//!    Code: `pipeline/src/runtime`, `pipeline/world/src`.
//! 8. With [`Recovery`], a pipeline of processes continues when processes are lost. Three parts work together, each with
//!    its own state:
//!
//!    - The [`World`] agrees on its remaining members and begins a new generation. Every frame carries the number of its
//!      generation. This protocol is a pure state machine, which is tested in every order of messages and ends of
//!      processes.
//!    - Each rank keeps snapshots of its own state, by handles. One other process keeps the bytes of the snapshot. After a
//!      loss, every value is sent to the rank that needs it in the new plan, by path and rows.
//!    - A pipeline records the commands since the oldest state that it may go back to. A rank may have returned from a call
//!      that other ranks have not. It repeats the call together with them. All calls are deterministic, so they return the
//!      same results again.
//!
//!    The code that starts any pipeline also starts the driver, the ranks and the schedules after a loss. With a recovery,
//!    the driver has one more value: which snapshots of other ranks have arrived. The ranks report this to each other
//!    together with their losses.
//!
//!    All of this also runs in a simulation: the threads, messages and clocks of all processes run in one thread, and a
//!    seed decides every order, delay and loss. Thousands of such runs are compared bit for bit with an undisturbed run. To
//!    check the tests themselves, bugs are planted in the recovery; the runs must find them.
//!
//!    Code: `pipeline/src/runtime/recovery`, `pipeline/world/src/members`; the simulation is in `tests/simulation`.
//! 9. A [`Streamed`] model is a pipeline with one rank. Its stages have their parameters and constants only while they run.
//!    One run through the stages is a pass. Before the first action of a stage, the rank removes the parameters and
//!    constants of the previous stage, and waits for the parameters and constants of this stage. A thread reads them ahead,
//!    in the order in which the pass needs them. The order is known before the pass, because forwards run stage by stage. A
//!    pure state machine of the planner ([`planner::StreamState`]) decides which values stay from one pass to the next, and
//!    when there is memory to read ahead. The prediction runs the same state machine. A forward may read only a few rows of
//!    a table, such as an embedding. The table is then not read as a whole. The program has the table's source as an input,
//!    and the operation gets a small table of its rows. On a device with its own memory, parameters may stay on the host,
//!    and the same reader copies them.
//!
//!    In a training step, a stage also gets the state of its optimizer. After its update, it sends its new values to a
//!    [`StageStore`](pipeline::StageStore) before they are removed. A [`WorkingDir`] writes them as the part of one rank of
//!    a checkpoint, and publishes the checkpoint when it has all stages. The activations of each micro-batch are values of
//!    a pass too: the pass computes them, and does not read them first. If there is no memory for them, they are removed
//!    after a stage has run, and put back before the next stage that needs them. The list of actions determines when a
//!    stage runs and which memory other values need, so every schedule can be streamed as it is. Everything else, and so
//!    every bit, is the same as in a pipeline whose stages stay in memory.
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
//!   threads. Another processor or C library may round some classes of operations differently. Probes of each class find
//!   the difference ([`NumericFingerprint`](deferred::NumericFingerprint)). Checkpoints and digests contain the results of
//!   the probes.
//! - **A lost process changes no bit.** A call that was interrupted returns what it would have returned.
//! - **Checkpoints are atomic.** A checkpoint appears by one rename, in a bucket by one conditional write. Before that, all
//!   files are synced, and the chunks are proved to tile every tensor. Every byte that is read is checked.
//! - **A resume continues the run.** A checkpoint has the settings that decide the losses. Other settings are refused
//!   unless the caller allows them.
//! - **A load is exact.** A [`Source`] can reject a model before anything is materialized. A saved parameter that the model
//!   does not have is an error, and so is a missing parameter.
//! - **A save is a snapshot without copies.** Burn never modifies shared data, so a clone of a tensor is a snapshot. A
//!   background save writes from the memory of the values, and training continues in other memory. A pool of host buffers
//!   would cost a pass over all values while training waits, so there is none. The background thread copies values on a GPU
//!   to the host before it writes, because GPU memory is scarce and disks are slow.
//! - **Planning is pure.** Planning, cutting, schedules and layouts access no files, threads and devices. Only few modules
//!   do: `record`, the executor, the runtime, profiles, links and worlds, the checkpoint's stores, and modules that load
//!   and save one file, such as the file of a plan.

mod checkpoints;
pub mod compare;
pub mod error;
pub mod generate;
pub mod session;

/// The traits whose methods programs call. `use tinderbox::prelude::*` imports the methods, not the names.
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
        StoreError, StoredDType, TensorEntry, UnknownFields, assign_writers, check_tiling,
        decode_header, encode_header, most_working_bytes, store, tools,
    };
}

/// The programs of the book in `docs/src`, compiled as tests. The programs that use `tinderbox_train` are tests of that
/// crate.
#[cfg(doctest)]
mod book {
    /// Each chapter is a module, so that the name of a failed test names the chapter.
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
