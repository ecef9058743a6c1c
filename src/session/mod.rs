//! A training loop over a pipeline: steps or epochs, checkpoints and resume, recovery of lost processes, evaluations, learning
//! rates, signals and events.
//!
//! [`Session`] is the loop. It prints nothing: it reports [`Event`]s, and `Printer` (feature `printer`) prints them.
//!
//! In order: a module uses only modules before it.
//!
//! ```text
//! position data validation rates signals stop event printer training builder
//! ```

mod builder;
mod data;
mod event;
mod position;
#[cfg(feature = "printer")]
mod printer;
mod rates;
#[cfg(feature = "signals")]
mod signals;
mod stop;
mod training;
mod validation;

pub use builder::SessionBuilder;
pub use data::{DataError, InOrder, IntoBatch, NextBatch, TrainingData, in_order};
pub use event::{Event, EventHandler, Until};
pub use position::Position;
#[cfg(feature = "printer")]
#[cfg_attr(docsrs, doc(cfg(feature = "printer")))]
pub use printer::Printer;
pub use rates::LearningRates;
#[cfg(feature = "signals")]
#[cfg_attr(docsrs, doc(cfg(feature = "signals")))]
pub use signals::{EndSignal, EndSignals};
pub use stop::Interruption;
pub use training::{Outcome, Session};
pub use validation::Validation;
