//! Builds [Burn](https://burn.dev) models without lighting them.
//!
//! A Burn model of any size is constructed in milliseconds as fake tensors that record the operations
//! that would have made them. The recorded graph is cut into pipeline stages; each rank materializes
//! the parameters of its own stage and nothing else; a runtime trains the stages; each rank saves its
//! own shard, and the checkpoint loads again under any number of ranks. The model is ordinary Burn
//! code and stays as it is.
//!
//! It is not a framework of its own: tensors, modules, gradients and optimizers are Burn's. It does
//! not do data or tensor parallelism, and today its ranks are threads of one process on the CPU.
//!
//! ```
//! use burn::module::Module;
//! use burn::nn::{Linear, LinearConfig};
//! use burn::optim::AdamWConfig;
//! use burn::tensor::{Device, Tensor, activation::gelu};
//! use tinderbox::prelude::*;
//! use tinderbox::{Checkpoints, Deferred, Machine, Outputs, Pipeline, Plan};
//!
//! #[derive(Module, Debug)]
//! struct Net {
//!     layers: Vec<Linear>,
//! }
//!
//! impl Net {
//!     fn init(device: &Device) -> Self {
//!         Self { layers: (0..4).map(|_| LinearConfig::new(8, 8).init(device)).collect() }
//!     }
//!
//!     fn forward(&self, x: Tensor<2>) -> Tensor<2> {
//!         self.layers.iter().fold(x, |x, layer| gelu(layer.forward(x)))
//!     }
//! }
//!
//! let device = Device::flex();
//! let batch = || (Tensor::<2>::ones([4, 8], &device), Tensor::<2>::zeros([4, 8], &device));
//!
//! let model = Deferred::new(Net::init)?;                          // nothing allocated
//! let table = model.to_string();                                  // of its parameters, to print
//! # assert!(table.contains("layers.3.bias"));
//! let trace = model.trace(&batch(), |m: &Net, (x, y)| {
//!     let prediction = m.forward(x);
//!     let loss = (prediction.clone() - y).powf_scalar(2.0).mean();
//!     Outputs::loss(loss).with("prediction", prediction)
//! })?;
//! let plan = Plan::auto(&trace, &Machine::local(2)?)?;            // or `Plan::manual`, or a file
//! let mut pipeline = Pipeline::new(&model, &trace, &plan)
//!     .optimizer(AdamWConfig::new().build())
//!     .micro_batches(2)
//!     .seed(42)
//!     .start()?;
//! # let run = tempfile::tempdir()?;
//! let saves = Checkpoints::open(run.path())?.every(2);
//! saves.resume(&mut pipeline)?;                                   // any earlier number of stages
//! for step in 0..4 {
//!     let out = pipeline.step(1e-2, batch())?;                    // loss, named outputs
//!     assert!(out.loss.is_some());
//!     saves.after_step(&mut pipeline, step + 1)?;
//! }
//! let trained: Net = pipeline.gather(&device)?;                   // an ordinary Burn module again
//! # let _ = trained.forward(batch().0);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Architecture
//!
//! ```text
//! burn <- fake <- deferred <- { pipeline, checkpoint } <- tinderbox
//! ```
//!
//! | crate | what it has | what it does not know |
//! |---|---|---|
//! | [`tinderbox_fake`] | recording, the graph, regions | modules, execution |
//! | [`tinderbox_deferred`] | parameter tables, programs, the executor, random values, sources | stages, files |
//! | [`tinderbox_pipeline`] | traces, partitions, plans, cuts, schedules, ranks | checkpoints |
//! | [`tinderbox_checkpoint`] | the format, commits, verified reads | pipelines, optimizers |
//! | `tinderbox` | [`Checkpoints`], which saves what a pipeline holds | |
//!
//! Data flows one way: record, trace, cost, schedule, partition, plan, cut, run, save.
//!
//! How a step comes to be:
//!
//! 1. [`Deferred::new`] runs the model's constructor under recording. What stays is a graph of Burn's
//!    own operations and a table of parameters.
//! 2. [`Traceable::trace`] records constructor, forward, loss and Burn's own backward pass in one
//!    recording: the joint graph. The objective is `loss * weight`, where the weight of a micro-batch
//!    is its share of the samples, so that micro-batches of unequal size sum to the batch's gradient.
//! 3. Every operation gets a role. *Setup* depends on constants only: it runs once per rank. *Remade*
//!    depends on the batch and on random keys: every stage that reads it makes it again. *Placed*
//!    depends on parameters: it runs where the plan says. In the backward pass, *local* operations
//!    depend on forward values only and run where they are read; *gradient* operations depend on the
//!    weight, and are placed by the cut.
//! 4. [`Plan::auto`] cuts the chain of modules, in the order in which the forward reads their
//!    parameters. Ownership is by path, so one plan serves training, evaluation and every batch shape;
//!    where exactly a cut falls between two modules is found per program: where the fewest bytes cross.
//! 5. The cut gives each stage a forward and a backward program. A gradient operation runs at the
//!    owner of the parameter whose gradient it makes, if all that it reads is at hand there; otherwise
//!    at the highest stage, not above its gradient inputs, where it is. Values that skip stages go
//!    straight to their readers. A parameter that several stages read has one owner; the parts of its
//!    gradient meet at the owner within the joint graph, so they are summed as Burn sums them, and the
//!    owner sends the updated value to the copies once per step.
//! 6. A schedule is lists of compute actions; lowering adds sends, receives, reduces and updates;
//!    the verifier runs the lists symbolically before any rank does.
//! 7. Each rank is a thread with its own CPU pool. It executes its list; programs run on Burn's
//!    interpreter of recorded operations, with every tensor freed or reused at its last use. There is
//!    no autodiff at run time.
//!
//! # Architecture invariants
//!
//! - **Nothing is paid for what is not lit.** Recording allocates no tensor data.
//! - **The same seed is the same model.** A random value is a function of the seed, its owner's path
//!   (in the forward: the operation's ordinal), step, micro-batch and its own index.
//! - **A pipeline computes what plain Burn computes.** The joint graph is Burn's; cutting it adds no
//!   arithmetic. Gradients of micro-batches are added in their order under every schedule.
//! - **A checkpoint is whole or it is not there.** It appears by one rename after everything was
//!   synced and proven to tile every tensor; every byte that is read is checked.
//! - Planning, cutting, schedules and layouts are pure; files, threads and devices are touched by few
//!   modules: `record`, the executor, the runtime, the checkpoint's `write` and `read`.
//!
//! # Limits
//!
//! - Ranks are threads on the CPU backend (`flex`). CUDA, processes and several stages to a rank are
//!   prepared in the seams (`Link`, `Group`, `run_rank`, `Executor`) and not built.
//! - A training forward may not call `to_device`, `inner` or `from_inner`: batch norm does, and is
//!   refused by name. Quantized and custom operations can't be replayed.
//! - A forward is recorded once per batch shape: control flow that looks at values can't be traced.
//! - `SHORTCOMINGS.md` in the repository lists what falls short of its aim.

mod checkpoints;
mod error;
/// The traits whose methods a program calls.
pub mod prelude {
    pub use tinderbox_deferred::Source as _;
    pub use tinderbox_pipeline::{Batch as _, Traceable as _};
}

pub use checkpoints::{Checkpoints, Resumed, load_module};
pub use error::{CheckpointsError, LoadRankError, SaveRankError};
pub use tinderbox_checkpoint::{Checkpoint, LoadError, SaveError};
pub use tinderbox_deferred::{
    Deferred, DeferredError, MaterializeError, Parameter, ParameterPath, ParameterTable,
    PartialModule, Source, SourceError, Values, check_lit, parameter_values, random,
};
pub use tinderbox_fake::{
    DeviceLabel, DynTensor, Mode, RecordOptions, Region, TensorMeta, is_fake, record,
};
pub use tinderbox_pipeline::{
    Batch, BatchMapper, Cut, Machine, Outputs, Pipeline, PipelineError, Plan, PlanError,
    ScheduleKind, Stage, StepOutput, Trace, TraceError, Traceable, Whole, batch_struct,
    batch_tensors, split_batch,
};
