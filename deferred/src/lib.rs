//! Deferred modules, the executor, and materialization.
//!
//! A [`Deferred`] model was constructed without memory: it knows how each parameter would be made.
//! Parameters are made later, in part, on any device, from a [`Source`]: the replay of the recorded
//! initialization, a checkpoint, or values in memory.
//!
//! This crate knows nothing of stages, schedules or files.
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
//! let source = model.replay(Seed::new(42));
//! let whole: Net = model.materialize(&Device::flex(), &source)?;
//! // A rank that owns the second layer makes just that, and the same bits.
//! let second = MaterializeOptions::only(|p| p.path.is_under("second"));
//! let part = model.materialize_parameters(&Device::flex(), &source, second)?;
//! assert_eq!(part.len(), 2);
//! assert_eq!(part.value(0).to_data()?, whole.second.weight.val().into_data());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Architecture invariants
//!
//! - A parameter's bits depend on the seed, its path and its recipe: never on which others are made,
//!   in which order, where, or by how many ranks.
//! - Programs run on Burn's own interpreter of recorded operations; only random operations are ours,
//!   and those only with the counter-based generator.
//! - A [`Recipe`] is a graph of its own: a part of a tensor is a smaller graph, not a later cut. What it
//!   makes whole reads values in row-major order, since a backend may add up a view in another order.
//! - What a materialization needs is known, and refused if it will not fit, before any of it is taken.
//! - `Deferred` is never consumed, and its closure is called only to rebuild a whole module.
//! - Identity is the module path; Burn's `ParamId` differs from construction to construction.
//!
//! What happens to each kind of module, field and parameter is a table of its own: [`kinds`].
//!
//! # Limits
//!
//! - Programs run on the CPU backend (`flex`), and with the features `cuda` and `cpu` on NVIDIA GPUs and on
//!   CubeCL's CPU runtime. There, what other operations than random ones compute has the device's own rounding.
//! - A region is pushed back to random values, constants and fills through operations that work element
//!   by element, shape operations and joins. Through others it is not: they run whole, and the
//!   [plan of the recipe](Recipe::plan) names them.
//! - Plain `Tensor` fields and skipped fields are made by the model itself when it is rebuilt; random
//!   ones then come from the backend's generator, which is seeded for it, and one that is computed from
//!   a parameter is computed from the value that the closure gave it.

mod constructed_by;
mod deferred;
mod device;
mod error;
mod in_order;
#[doc = include_str!("kinds.md")]
pub mod kinds {}
mod materialize;
mod memory;
mod module;
mod observer;
mod options;
mod or_else;
mod program;
pub mod random;
mod recipe;
mod reload;
mod replay;
mod source;
mod stability;
mod table;
mod values;

pub use constructed_by::ConstructedBy;
pub use deferred::{Deferred, SharedId};
pub use device::{DeviceError, check_device, open_devices};
pub use error::{
    Cast, DeferredError, MaterializeError, Mismatch, Mismatches, ProgramError, RecipeError,
    SourceError,
};
pub use materialize::materialize_parameters;
pub use memory::{available_bytes, available_for};
pub use module::{
    PartialModule, Placeholders, check_materialized, parameter_values, skipped_parameters,
    tensor_fields,
};
pub use observer::{Observed, Observer};
pub use options::{MaterializeOptions, MemoryCheck};
pub use or_else::OrElse;
pub use program::{
    Executable, Executor, Interpreter, Program, RandomKey, RandomKeys, RandomValues, RunContext,
    check_indices, indices_of, is_random,
};
pub use recipe::{MadeWhole, Recipe, RecipePlan};
pub use reload::Reload;
pub use replay::{Replay, Rng, initialization_keys};
pub use source::{Request, Source};
pub use stability::Change;
pub use table::{
    Entry, ModuleSummary, Origin, Parameter, ParameterTable, Summary, SummaryTable, Totals,
    UnknownPath, human_bytes, human_bytes_beside,
};
pub use tinderbox_path::ParameterPath;
pub use values::Values;
