//! The stop that all ranks share.

use std::fmt;
use std::sync::Arc;

use crate::channels::Channels;

/// The stop signal that all ranks share, and the reason of the first that failed. Clones are the same
/// signal.
pub struct Abort<E: Send + 'static, C: Channels> {
    channels: C,
    first: Arc<C::Cell<First<E>>>,
    signal: C::Signal,
}

/// The first reason.
enum First<E> {
    /// Nobody has failed.
    None,
    /// Said and not yet taken.
    Kept(E),
    /// Taken, or too late: what is said now is an effect of the stop.
    Past,
}

impl<E: Send + 'static, C: Channels> Abort<E, C> {
    /// A stop that nobody has asked for.
    pub fn new(channels: C) -> Self {
        Self {
            first: Arc::new(channels.cell(First::None)),
            signal: channels.signal(),
            channels,
        }
    }

    /// Wakes every wait; keeps the first reason. When it returns, the signal has fired, whoever was
    /// first.
    pub fn trigger(&self, reason: E) {
        self.channels.with(&self.first, |first| {
            // A rank that was woken reports only that others failed.
            if let First::None = first {
                *first = First::Kept(reason);
            }
        });
        // After the reason is kept: whoever is woken finds it.
        self.channels.fire(&self.signal);
    }

    /// Fires when a rank fails.
    pub fn signal(&self) -> &C::Signal {
        &self.signal
    }

    /// Whether a rank has failed, or the ranks were ended.
    pub fn is_triggered(&self) -> bool {
        self.channels.is_fired(&self.signal)
    }

    /// The first reason, once.
    pub fn take_reason(&self) -> Option<E> {
        self.channels.with(&self.first, |first| match first {
            First::Kept(_) => first.take(),
            First::None | First::Past => None,
        })
    }

    /// Wakes every wait and gives the first reason. What ranks say later is not kept: they were told
    /// to end.
    pub(crate) fn close(&self) -> Option<E> {
        let reason = self.channels.with(&self.first, First::take);
        self.channels.fire(&self.signal);
        reason
    }

    pub(crate) fn channels(&self) -> &C {
        &self.channels
    }
}

impl<E> First<E> {
    fn take(&mut self) -> Option<E> {
        match std::mem::replace(self, Self::Past) {
            Self::Kept(reason) => Some(reason),
            Self::None | Self::Past => None,
        }
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

impl<E: Send + 'static, C: Channels> fmt::Debug for Abort<E, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Abort")
            .field("triggered", &self.is_triggered())
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Crossbeam;

    #[test]
    fn the_first_reason_is_kept_and_given_once() {
        let abort = Abort::<_, Crossbeam>::default();
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
        let abort = Abort::<_, Crossbeam>::default();
        assert_eq!(abort.close(), None);
        assert!(abort.is_triggered());
        abort.trigger("late");
        assert_eq!(abort.take_reason(), None);

        let abort = Abort::<_, Crossbeam>::default();
        abort.trigger("in time");
        assert_eq!(abort.close(), Some("in time"));
        assert_eq!(format!("{abort:?}"), "Abort { triggered: true }");
    }
}
