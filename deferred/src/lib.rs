//! Deferred modules, the executor, and materialization.
//!
//! A [`Deferred`] model is constructed without memory: it has a recipe of each parameter instead of a value.
//! Parameters are materialized later, in part, on any device, from a [`Source`]: the [`Initializer`] of the
//! model, a checkpoint, or values in memory.
//!
//! This crate does not depend on stages, schedules or files.
//!
//! ```
//! use burn::module::Module;
//! use burn::nn::{Linear, LinearConfig};
//! use burn::tensor::Device;
//! use tinderbox_deferred::{Deferred, MaterializeOptions, random::Seed};
//!
//! #[derive(Module, Debug)]
//! struct Net {
//!     first: Linear,
//!     second: Linear,
//! }
//!
//! let model = Deferred::new(|device| Net {
//!     first: LinearConfig::new(4, 8).init(device),
//!     second: LinearConfig::new(8, 2).init(device),
//! })?;
//! assert_eq!(model.parameters().bytes(), 4 * (4 * 8 + 8 + 8 * 2 + 2));
//!
//! let source = model.initializer(Seed::new(42));
//! let whole: Net = model.materialize(&Device::flex(), &source)?;
//! // A rank that owns the second layer materializes only that, with the same bits.
//! let second = MaterializeOptions::on(&Device::flex()).only(|p| p.path.is_under("second"));
//! let part = model.materialize_parameters(second, &source)?;
//! assert_eq!(part.len(), 2);
//! assert_eq!(part.value(0).to_data()?, whole.second.weight.val().into_data());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Modules
//!
//! In order: a module uses only the modules before it. `error` is not in the list: it may name types of any module.
//!
//! ```text
//! kinds numerics device random table program recipe observer source in_order recorded_model initializer module
//! deferred stability options memory materialize reload testing
//! ```
//!
//! # Architecture invariants
//!
//! - A parameter's bits depend on the seed, its path and its recipe. They do not depend on which other parameters are
//!   materialized, in which order, where, or by how many ranks.
//! - Programs run on Burn's own interpreter of recorded operations. Random operations are replaced, only with the
//!   counter-based generator; operations that read rows of a streamed table get these rows; independent products may
//!   run earlier than recorded.
//! - A [`Recipe`] is a separate graph: a part of a tensor is a smaller graph, not a slice of the whole. Operations
//!   that are not sliceable read values in row-major order, since a backend may sum a view in another order.
//! - The memory that a materialization needs is compared with the available memory before anything is allocated.
//! - `Deferred` is never consumed. Its closure is called again to rebuild a whole module, to record a trace, and to check
//!   that it constructs the same model; never to compute a parameter.
//! - Identity is the module path; Burn's `ParamId` differs from construction to construction.
//!
//! The table [`kinds`] lists how each kind of module, field and parameter is handled.
//!
//! # Limits
//!
//! - Programs run on the CPU backend (`flex`), and with the features `cuda` and `cpu` on NVIDIA GPUs and on
//!   CubeCL's CPU runtime. There, operations other than random ones have the device's own rounding.
//! - A region is propagated back to random values, constants and fills through elementwise
//!   operations, shape operations and joins. Other operations run whole, and the
//!   [plan of the recipe](Recipe::plan) names them.
//! - Plain `Tensor` fields and skipped fields are computed by the model itself when it is rebuilt. Random fields then come
//!   from the backend's generator, which is seeded for it. A field that is computed from a parameter is computed from the
//!   value that the closure gave the parameter.

#![cfg_attr(docsrs, feature(doc_cfg))]

mod deferred;
mod device;
mod error;
mod in_order;
mod initializer;
#[doc = include_str!("kinds.md")]
pub mod kinds {}
mod materialize;
mod memory;
mod module;
mod numerics;
mod observer;
mod options;
mod program;
pub mod random;
mod recipe;
mod recorded_model;
mod reload;
mod source;
mod stability;
mod table;
#[cfg(any(test, feature = "testing"))]
pub mod testing;

pub use deferred::{Deferred, SharedId};
pub use device::{DeviceError, check_device, open_devices};
pub use error::{
    Cast, DeferredError, MaterializeError, Mismatch, Mismatches, ProgramError, RecipeError,
    SourceError,
};
pub use initializer::{Initializer, Rng};
pub use materialize::{materialize_parameters, read_values};
pub use memory::{
    available_bytes, available_for, peak_process_bytes, process_bytes, too_few_bytes,
};
pub use module::{
    PartialModule, Placeholders, TrainingLayer, check_materialized, independent_copy,
    parameter_gradients, parameter_values, pending_states, skipped_parameters, tensor_fields,
    training_layers,
};
pub use numerics::NumericFingerprint;
pub use observer::Observer;
pub use options::{MaterializeOptions, MemoryCheck};
pub use program::{
    Executable, Executor, Interpreter, Program, ProgramInput, RandomKey, RandomKeys, RandomValues,
    Rows, RunContext, ValueObserver, check_indices, indices_of, initialization_keys, is_random,
    rows_read, with_ordered_sums,
};
pub use recipe::{NotSliceable, Recipe, RecipePlan};
pub use recorded_model::RecordedModel;
pub use reload::{Reload, groups_by_bytes};
pub use source::{ConstructedBy, Loaded, Observed, OrElse, Request, Source, Uncached, Values};
pub use stability::Change;
pub use table::{
    Entry, ModuleSummary, Origin, Parameter, ParameterTable, Summary, Totals, UnknownPath,
};
pub use tinderbox_ids::text::{human_bytes, human_bytes_distinct};
pub use tinderbox_ids::{ParameterPath, with_causes};
