//! Requests to end a training after its running step.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde::{Deserialize, Serialize};

use crate::error::SessionError;

#[cfg(feature = "signals")]
use super::signals::{EndSignal, EndSignals};

/// The reason why a training ended before its last step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, derive_more::Display)]
#[non_exhaustive]
pub enum Interruption {
    /// The program has set the flag of [`SessionBuilder::stop_flag`](super::SessionBuilder::stop_flag).
    #[display("a request of the program")]
    Requested,
    /// A signal has arrived.
    #[cfg(feature = "signals")]
    #[cfg_attr(docsrs, doc(cfg(feature = "signals")))]
    #[display("SIG{_0}")]
    Signal(EndSignal),
}

impl Interruption {
    /// Returns the exit code of a program that ends for this reason: 128 plus the number of a signal, as shells report it, or
    /// 1 for a request.
    #[must_use]
    pub const fn exit_code(self) -> u8 {
        match self {
            Self::Requested => 1,
            #[cfg(feature = "signals")]
            Self::Signal(signal) => signal.exit_code(),
        }
    }
}

/// Receives requests to end a training.
#[derive(Debug, Default)]
pub(super) struct Stop {
    pub(super) flag: Option<Arc<AtomicBool>>,
    #[cfg(feature = "signals")]
    pub(super) signals: Option<EndSignals>,
}

impl Stop {
    /// Receives the signals again if another training has ended.
    pub(super) fn begin(&mut self) -> Result<(), SessionError> {
        #[cfg(feature = "signals")]
        if let Some(signals) = self.signals.take() {
            self.signals = Some(signals.renewed()?);
        }
        Ok(())
    }

    /// Makes each of the signals end the program immediately, because no training is left that could save.
    pub(super) fn end(&self) {
        #[cfg(feature = "signals")]
        if let Some(signals) = &self.signals {
            signals.end_at_once();
        }
    }

    /// Returns whether there can be requests, which is the same in all processes.
    pub(super) fn is_used(&self) -> bool {
        #[cfg(feature = "signals")]
        if self.signals.is_some() {
            return true;
        }
        self.flag.is_some()
    }

    /// Returns a request that this process has received.
    pub(super) fn received(&self) -> Option<Interruption> {
        #[cfg(feature = "signals")]
        if let Some(signal) = self.signals.as_ref().and_then(EndSignals::received) {
            return Some(Interruption::Signal(signal));
        }
        let flag = self.flag.as_ref()?;
        flag.load(Ordering::SeqCst)
            .then_some(Interruption::Requested)
    }
}
