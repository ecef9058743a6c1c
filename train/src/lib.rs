#![cfg_attr(docsrs, feature(doc_cfg))]
//! Trains a pipeline of [`tinderbox`] with burn-train: `SupervisedTraining` with its metrics, dashboard, early stopping,
//! learning-rate schedulers, logs, summary and interruption.
//!
//! The model keeps its `TrainStep` and `InferenceStep`, which serve plain Burn too. burn-train's loop calls the
//! pipeline instead.
//!
//! - [`learner()`] returns a `Learner` and a [`PipelineStrategy`] of a pipeline.
//! - [`StepItem`] connects what a forward returns to the item from which metrics are computed.
//! - [`Epochs`] returns batches of a data loader from any position, for a loop of your own too.
//! - [`EndSignals`] are signals after which a training saves and ends, in a loop of your own too.
//!
//! # What differs from burn-train on one device
//!
//! - The optimizer is the pipeline's.
//! - With `grads_accumulation(n)`, the `n` batches of a step are weighted by their samples, so that the gradient is that
//!   of one large batch. burn-train adds them up: its gradient is `n` times as large.
//! - Checkpoints come from [`tinderbox::Checkpoints`], which each rank writes for itself.
//!   `with_default_checkpointers` is refused; together with `checkpoint`, burn-train itself panics before.
//! - `gradient_checkpointing` does nothing: plan stages that recompute.
//!
//! # Features
//!
//! - `tui`: the dashboard in the terminal.

/// The chapter of the book on training loops, whose programs are compiled as tests.
#[cfg(doctest)]
#[doc = include_str!("../../docs/src/training-loop.md")]
mod book {}

mod epochs;
mod error;
mod item;
mod metrics;
mod signals;
mod strategy;

pub use epochs::{Epoch, Epochs};
pub use error::{EpochsError, SignalError, StrategyError};
pub use item::{StepItem, loss_of};
pub use metrics::StepMetric;
pub use signals::{EndSignal, EndSignals};
pub use strategy::{PipelineStrategy, learner, learner_with};
