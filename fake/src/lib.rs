//! Fake tensors, and the graph that they record.
//!
//! A fake tensor has a shape, a dtype and a device, and no memory. Code that runs on fake tensors
//! is recorded as a [`Graph`] of Burn's own operations; nothing is executed.
//!
//! This crate neither executes graphs nor handles modules: `tinderbox-deferred` does.
//!
//! ```
//! use burn::tensor::Tensor;
//! use tinderbox_fake::{RecordOptions, record};
//!
//! // 4 TiB of f32, without any memory.
//! let (square, recording) = record(&RecordOptions::default(), |device| {
//!     let x = Tensor::<2>::zeros([1 << 20, 1 << 20], device);
//!     x.clone().matmul(x)
//! })?;
//! assert_eq!(square.dims(), [1 << 20, 1 << 20]);
//! assert_eq!(recording.graph().nodes().len(), 2);
//! # Ok::<(), tinderbox_fake::RecordError>(())
//! ```
//!
//! # Modules
//!
//! In order: a module uses only the modules before it. `error` is not in the list: it may name types of any module.
//!
//! ```text
//! brackets dtype region runs origin scope meta dyn_tensor backward host operation graph file mark record sealed
//! ```
//!
//! # Architecture invariants
//!
//! - [`record`] is the only place that opens or closes a capture scope.
//! - Ids in a [`Graph`] are dense and in recorded order; two recordings of one program are equal byte by
//!   byte, also across processes.
//! - Other crates use [`Operation`] for facts about operations: only code that executes them knows Burn's
//!   representation.
//! - Shape and dtype rules are Burn's: an operation is stored as Burn's own [`burn_ir::OperationIr`].
//!
//! # Limits
//!
//! - Quantized tensors cannot be recorded: Burn's capture device reports no support for them.
//! - `to_device`, `inner` and `from_inner` on a fake tensor panic in Burn while gradients are recorded.

#![cfg_attr(docsrs, feature(doc_cfg))]

mod backward;
mod brackets;
mod dtype;
mod dyn_tensor;
mod error;
mod file;
mod graph;
mod host;
mod mark;
mod meta;
mod operation;
mod origin;
mod record;
mod region;
mod runs;
mod scope;
mod sealed;

pub use backward::Backward;
/// The error of a device.
pub use burn_backend::ExecutionError;
/// Burn's type of an operation, for signatures that pass it on; [`Operation`] has the facts about it.
pub use burn_ir::OperationIr as BurnOperation;
pub use dtype::{dtype_name, dtype_names, dtype_on};
pub use dyn_tensor::{DynTensor, TensorKind, is_fake, read_now};
pub use error::{FakeError, GraphFileError, RecordError};
pub use graph::{Difference, Graph, GraphBuilder, Node, Retyped, Slice, Value};
pub use host::HostLayout;
pub use mark::mark;
pub use meta::{DeviceLabel, TensorMeta, is_host};
pub use operation::{
    NodeId, Operation, OperationCost, ValueId, change_tensors, encode, typed_shape,
};
pub use origin::ErrorOrigin;
pub use record::{Mode, RecordOptions, Recording, panic_message, record};
pub use region::{Region, RegionError};
pub use runs::{ElementRun, RunAxis, Runs};
pub use sealed::{hex_digest, seal, unseal};
