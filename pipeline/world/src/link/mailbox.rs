//! Messages that are matched by key.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::time::Duration;

use tinderbox_ids::RankIndex;

use crate::link::abort::Abort;
use crate::link::channels::{Channels, Host, Received};
use crate::link::error::MailboxError;

struct Letter<K, V> {
    from: RankIndex,
    key: K,
    value: V,
}

/// The endpoint of one rank for messages to and from all ranks.
///
/// Every message has a key that identifies it between its two ranks. Messages may arrive in any order; one that
/// arrives before it is polled is stored.
#[derive(derive_more::Debug)]
#[debug("Mailbox {{ rank: {rank:?}, ranks: {}, early: {:?}, .. }}", peers.len(), early.keys())]
#[debug(bound(K: std::fmt::Debug))]
pub struct Mailbox<K: Send + 'static, V: Send + 'static, C: Channels = Host> {
    channels: C,
    rank: RankIndex,
    inbox: C::Receiver<Letter<K, V>>,
    /// Includes the rank's own sender, so the inbox stays open while the mailbox exists.
    peers: Vec<C::Sender<Letter<K, V>>>,
    early: BTreeMap<(RankIndex, K), V>,
    stop: C::Signal,
    timeout: Duration,
}

/// Creates the mailboxes of `ranks` ranks, in the order of the ranks. A wait for a message fails after
/// `timeout`. Memory is quadratic in the number of ranks: each has a sender to every other.
pub fn mailboxes<K: Send + 'static, V: Send + 'static, E: Send + 'static, C: Channels>(
    ranks: usize,
    abort: &Abort<E, C>,
    timeout: Duration,
) -> Vec<Mailbox<K, V, C>> {
    let channels = abort.channels();
    let (peers, inboxes): (Vec<_>, Vec<_>) = (0..ranks).map(|_| channels.channel()).unzip();
    let mailbox = |(rank, inbox)| Mailbox {
        channels: channels.clone(),
        rank: RankIndex::new(rank),
        inbox,
        peers: peers.clone(),
        early: BTreeMap::new(),
        stop: abort.signal().clone(),
        timeout,
    };
    inboxes.into_iter().enumerate().map(mailbox).collect()
}

impl<K: Ord + Send + 'static, V: Send + 'static, C: Channels> Mailbox<K, V, C> {
    /// Returns the rank that owns this mailbox.
    pub fn rank(&self) -> RankIndex {
        self.rank
    }

    /// Announces that a message will be polled. A mailbox accepts messages at any time, so this only checks for an
    /// abort, to fail early.
    ///
    /// # Errors
    ///
    /// When a rank has aborted.
    pub fn post(&self, _from: RankIndex, _key: &K) -> Result<(), MailboxError<K>> {
        match self.channels.is_fired(&self.stop) {
            true => Err(MailboxError::Aborted),
            false => Ok(()),
        }
    }

    /// Sends a value without blocking.
    ///
    /// # Errors
    ///
    /// When a rank has aborted, the receiver has ended, or there is no such rank.
    pub fn send(&self, to: RankIndex, key: K, value: V) -> Result<(), MailboxError<K>> {
        self.post(to, &key)?;
        let closed = || MailboxError::Closed { rank: to };
        let peer = self.peers.get(to.index()).ok_or_else(closed)?;
        let from = self.rank;
        let letter = Letter { from, key, value };
        self.channels.send(peer, letter).map_err(|_| {
            // A rank of a crew fires the signal before its mailbox is dropped, so a closed mailbox is an effect of
            // that stop and not a reason of its own.
            match self.channels.is_fired(&self.stop) {
                true => MailboxError::Aborted,
                false => closed(),
            }
        })
    }

    /// Waits for a message. The time is logarithmic in the number of stored messages.
    ///
    /// # Errors
    ///
    /// When the message does not arrive in time, a rank has aborted, or two messages have the same key.
    pub fn poll(&mut self, from: RankIndex, key: K) -> Result<V, MailboxError<K>> {
        // A stored message is returned without a wait, which would have checked the signal.
        self.post(from, &key)?;
        let deadline = self.channels.deadline(self.timeout);
        let wanted = (from, key);
        loop {
            if let Some(value) = self.early.remove(&wanted) {
                return Ok(value);
            }
            match self.channels.receive(&self.inbox, &self.stop, deadline) {
                Received::Message(letter) => self.keep(letter)?,
                Received::Stopped => return Err(MailboxError::Aborted),
                Received::Closed => return Err(MailboxError::Closed { rank: from }),
                Received::TimedOut => {
                    let (key, timeout) = (wanted.1, self.timeout);
                    return Err(MailboxError::Timeout { from, key, timeout });
                }
            }
        }
    }

    fn keep(&mut self, letter: Letter<K, V>) -> Result<(), MailboxError<K>> {
        match self.early.entry((letter.from, letter.key)) {
            Entry::Vacant(entry) => {
                entry.insert(letter.value);
                Ok(())
            }
            Entry::Occupied(entry) => {
                let (from, key) = entry.remove_entry().0;
                Err(MailboxError::Repeated { from, key })
            }
        }
    }

    /// Returns the messages that were received and not polled yet, ordered by sender and key. Messages that are still
    /// in the channel are not included.
    pub fn unclaimed(&self) -> impl Iterator<Item = (RankIndex, &K)> {
        self.early.keys().map(|(from, key)| (*from, key))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use insta::assert_snapshot;
    use proptest::prelude::*;

    use super::*;

    type End = Mailbox<usize, usize, Host>;

    const LONG: Duration = Duration::from_secs(60);

    fn rank(number: usize) -> RankIndex {
        RankIndex::new(number)
    }

    fn pair(timeout: Duration) -> (End, End, Abort<&'static str, Host>) {
        let abort = Abort::default();
        let mut ends = mailboxes(2, &abort, timeout);
        let second = ends.pop().unwrap();
        (ends.pop().unwrap(), second, abort)
    }

    proptest! {
        #[test]
        fn any_order_of_sends_meets_any_order_of_polls(
            sent in Just((0..24usize).collect::<Vec<_>>()).prop_shuffle(),
            asked in Just((0..24usize).collect::<Vec<_>>()).prop_shuffle(),
        ) {
            let (a, mut b, _) = pair(LONG);
            for message in sent {
                // Half of the messages go to the sender itself, under the same keys.
                let from = [&a, &b][message % 2];
                from.send(rank(1), message / 2, message).unwrap();
            }
            for message in asked {
                prop_assert_eq!(b.poll(rank(message % 2), message / 2), Ok(message));
            }
            prop_assert_eq!(b.unclaimed().count(), 0);
        }
    }

    #[test]
    fn errors_name_the_expected_message() {
        let (a, mut b, abort) = pair(Duration::from_millis(20));
        a.send(rank(1), 1, 10).unwrap();
        let late = b.poll(rank(0), 3).unwrap_err();
        assert_snapshot!(late, @"no `3` from rank 0 within 20ms");
        assert_eq!(b.unclaimed().collect::<Vec<_>>(), [(rank(0), &1)]);
        assert_eq!(
            format!("{b:?}"),
            "Mailbox { rank: RankIndex(1), ranks: 2, early: [(RankIndex(0), 1)], .. }"
        );
        a.send(rank(1), 1, 11).unwrap();
        let twice = b.poll(rank(0), 3).unwrap_err();
        assert_snapshot!(twice, @"rank 0 sent `1` twice: a key names one message");
        let nobody = a.send(rank(2), 0, 0).unwrap_err();
        assert_snapshot!(nobody, @"rank 2 has ended");
        drop(b);
        let gone = a.send(rank(1), 0, 0).unwrap_err();
        assert_snapshot!(gone, @"rank 1 has ended");
        assert_eq!(a.post(rank(1), &0), Ok(()));
        abort.trigger("failed");
        let aborted = a.send(rank(1), 0, 0).unwrap_err();
        assert_snapshot!(aborted, @"another rank failed");
        assert_eq!(a.post(rank(1), &0), Err(MailboxError::Aborted));
    }

    #[test]
    fn an_early_message_is_not_returned_after_an_abort() {
        let (a, mut b, abort) = pair(LONG);
        a.send(rank(1), 1, 10).unwrap();
        a.send(rank(1), 0, 10).unwrap();
        assert_eq!(b.poll(rank(0), 0), Ok(10));
        abort.trigger("failed");
        assert_eq!(b.poll(rank(0), 1), Err(MailboxError::Aborted));
    }

    #[test]
    fn a_wait_ends_at_once_when_a_rank_aborts() {
        let (_a, mut b, abort) = pair(LONG);
        let waiting = std::thread::spawn(move || b.poll(rank(0), 0));
        let started = Instant::now();
        abort.trigger("failed");
        assert_eq!(waiting.join().unwrap(), Err(MailboxError::Aborted));
        assert!(started.elapsed() < LONG / 2);
    }
}
