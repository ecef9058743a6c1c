#![cfg_attr(docsrs, feature(doc_cfg))]
//! Trains a pipeline of [`tinderbox`] with burn-train: `SupervisedTraining` with its metrics, dashboard, early stopping,
//! learning-rate schedulers, logs, summary and interruption.
//!
//! The model keeps its `TrainStep` and `InferenceStep`, which plain Burn uses too. With this crate, the loop of burn-train
//! calls the pipeline instead.
//!
//! - [`learner()`] returns a `Learner` and a [`PipelineStrategy`] of a pipeline.
//! - [`StepItem`] converts between the outputs of a forward and the item from which metrics are computed.
//! - [`Epochs`] returns batches of a data loader from any position, also for your own loop.
//! - [`EndSignals`] are signals after which a training saves and ends, also in your own loop.
//!
//! # What differs from burn-train on one device
//!
//! - The pipeline has its own optimizer.
//! - With `grads_accumulation(n)`, the `n` batches of a step are weighted by their samples, so that the gradient equals the
//!   gradient of one large batch. burn-train adds the gradients up: its gradient is `n` times as large.
//! - [`tinderbox::Checkpoints`] saves checkpoints, to which each rank writes its part. `with_default_checkpointers` is an
//!   error; together with `checkpoint`, burn-train itself panics before.
//! - `gradient_checkpointing` does nothing. Plan stages that recompute instead.
//!
//! # Features
//!
//! - `tui`: the dashboard in the terminal.

/// The chapters of the book that use this crate, whose programs are compiled as tests.
#[cfg(doctest)]
mod book {
    #[doc = include_str!("../../docs/src/training-loop.md")]
    mod training_loop {}
    #[doc = include_str!("../../docs/src/operating.md")]
    mod operating {}
}

mod epochs;
mod error;
mod item;
mod metrics;
mod strategy;

pub use epochs::{Epoch, Epochs};
pub use error::{EpochsError, StrategyError};
pub use item::{StepItem, loss_of};
pub use metrics::StepMetric;
pub use strategy::{PipelineStrategy, learner, learner_with};
pub use tinderbox::error::SignalError;
pub use tinderbox::session::{EndSignal, EndSignals};
