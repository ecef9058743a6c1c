//! The stop signal that all ranks share.

use std::sync::Arc;

use crate::link::channels::{Channels, Host};

/// The stop signal that all ranks share, and the reason of the first failure. Clones share the signal and the
/// reason.
#[derive(derive_more::Debug)]
#[debug("Abort {{ triggered: {} }}", self.is_triggered())]
pub struct Abort<E: Send + 'static, C: Channels = Host> {
    channels: C,
    first: Arc<C::Cell<First<E>>>,
    signal: C::Signal,
}

/// The first reason; `None` until a rank fails. `Some(None)` after it was taken, or after the ranks were stopped: later
/// reasons are effects of the stop.
type First<E> = Option<Option<E>>;

impl<E: Send + 'static, C: Channels> Abort<E, C> {
    /// Creates a signal that has not fired.
    pub fn new(channels: C) -> Self {
        Self {
            first: Arc::new(channels.cell(None)),
            signal: channels.signal(),
            channels,
        }
    }

    /// Wakes every wait, and stores the reason if it is the first. When this returns, the signal has fired, by this
    /// call or an earlier one.
    pub fn trigger(&self, reason: E) {
        self.channels.with(&self.first, |first| {
            // A rank that was woken by the signal only reports that another rank failed.
            first.get_or_insert(Some(reason));
        });
        // After the reason is stored, so that the threads that are woken find it.
        self.channels.fire(&self.signal);
    }

    /// Returns the signal, which fires when a rank fails or the ranks are stopped.
    pub fn signal(&self) -> &C::Signal {
        &self.signal
    }

    /// Returns whether a rank has failed or the ranks were stopped.
    pub fn is_triggered(&self) -> bool {
        self.channels.is_fired(&self.signal)
    }

    /// Takes the first reason; later calls return `None`.
    pub fn take_reason(&self) -> Option<E> {
        self.channels
            .with(&self.first, |first| first.as_mut().and_then(Option::take))
    }

    /// Wakes every wait and returns the first reason. Reasons that ranks report later are ignored, since they were
    /// stopped.
    pub(crate) fn close(&self) -> Option<E> {
        let reason = self.channels.with(&self.first, |first| first.replace(None));
        self.channels.fire(&self.signal);
        reason.flatten()
    }

    /// Returns the environment of the protocol.
    pub fn channels(&self) -> &C {
        &self.channels
    }
}

impl<E: Send + 'static, C: Channels> Clone for Abort<E, C> {
    fn clone(&self) -> Self {
        Self {
            channels: self.channels.clone(),
            first: self.first.clone(),
            signal: self.signal.clone(),
        }
    }
}

impl<E: Send + 'static, C: Channels + Default> Default for Abort<E, C> {
    fn default() -> Self {
        Self::new(C::default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_reason_is_returned_once() {
        let abort = Abort::<_, Host>::default();
        assert!(!abort.is_triggered());
        assert_eq!(abort.take_reason(), None);
        abort.trigger("first");
        abort.clone().trigger("second");
        assert!(abort.is_triggered());
        assert_eq!(abort.take_reason(), Some("first"));
        assert_eq!(abort.take_reason(), None);
        abort.trigger("third");
        assert_eq!(abort.take_reason(), None, "an effect of the first");
    }

    #[test]
    fn nothing_is_kept_after_the_end() {
        let abort = Abort::<_, Host>::default();
        assert_eq!(abort.close(), None);
        assert!(abort.is_triggered());
        abort.trigger("late");
        assert_eq!(abort.take_reason(), None);

        let abort = Abort::<_, Host>::default();
        abort.trigger("in time");
        assert_eq!(abort.close(), Some("in time"));
        assert_eq!(format!("{abort:?}"), "Abort { triggered: true }");
    }
}
