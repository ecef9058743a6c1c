//! The shutdown protocol: which processes run, which have left, and the first failure.
//!
//! A pure state machine. Its inputs are events, its outputs messages; `tests` run it in every order of events.

use derive_more::Display;
use serde::{Deserialize, Serialize};
use tinderbox_ids::RankIndex;

use crate::error::if_known;

/// The failure of a rank, as all ranks report it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize, Display)]
#[display("rank {rank} {how}{}", if_known("; it was last in ", doing, ""))]
pub struct Failure {
    /// The rank.
    pub rank: RankIndex,
    /// The kind of the failure.
    pub how: How,
    /// The last report of the rank.
    pub doing: Option<String>,
}

impl std::error::Error for Failure {}

/// The kind of a rank's failure.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize, Display)]
pub enum How {
    /// It failed and reported the reason.
    #[display("failed: {_0}")]
    Failed(String),
    /// Its connection ended, or it was silent.
    #[display("is lost: {_0}")]
    Lost(String),
}

/// A message of the protocol.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) enum Word {
    /// The sender knows of a failure, and has stopped.
    Abort(Failure),
    /// The sender has finished, and sends no more frames.
    Goodbye,
    /// The sender has received an abort or a goodbye, and everything before it.
    Confirm,
}

/// The knowledge of one process about the others.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Peers {
    own: usize,
    peers: Vec<Peer>,
    failure: Option<Failure>,
    /// Whether this process has sent a goodbye.
    has_left: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
struct Peer {
    has_left: bool,
    is_lost: bool,
    /// The number of aborts and goodbyes that it has not confirmed.
    unconfirmed: u8,
}

impl Peers {
    pub(crate) fn new(own: RankIndex, size: usize) -> Self {
        Self {
            own: own.index(),
            peers: vec![Peer::default(); size],
            failure: None,
            has_left: false,
        }
    }

    /// Returns the first failure.
    pub(crate) const fn failure(&self) -> Option<&Failure> {
        self.failure.as_ref()
    }

    /// Returns whether all peers that are not lost have confirmed the messages of this process.
    pub(crate) fn is_confirmed(&self) -> bool {
        let mut others = self.peers.iter();
        others.all(|peer| peer.is_lost || peer.unconfirmed == 0)
    }

    /// Returns whether this process waits for a rank: for its work, or for a confirmation.
    pub(crate) fn is_awaited(&self, rank: RankIndex) -> bool {
        let peer = self.peers.get(rank.index());
        peer.is_some_and(|peer| !peer.is_lost && (!peer.has_left || peer.unconfirmed > 0))
    }

    /// Returns whether a rank may still send.
    pub(crate) fn is_open(&self, rank: RankIndex) -> bool {
        let peer = self.peers.get(rank.index());
        peer.is_some_and(|peer| !peer.is_lost && !peer.has_left)
    }

    /// Notes a failure of this process, or of another one. The first failure is kept and sent to all others. Both sides of a
    /// broken connection report each other, so others may name a process that names them.
    pub(crate) fn fail(&mut self, failure: Failure) -> Vec<(RankIndex, Word)> {
        if self.failure.is_some() || self.has_left {
            return Vec::new();
        }
        self.failure = Some(failure.clone());
        let is_lost = matches!(failure.how, How::Lost(_)) && failure.rank.index() != self.own;
        let (rank, word) = (failure.rank, Word::Abort(failure));
        let mut words = self.send_to_others(&word);
        // The rank may only have been silent: it gets the message as well, but this process does not wait for it.
        if is_lost && let Some(peer) = self.peers.get_mut(rank.index()) {
            if peer.is_lost {
                words.push((rank, word));
            }
            peer.unconfirmed = 0;
        }
        words
    }

    /// Notes that this process has finished.
    pub(crate) fn leave(&mut self) -> Vec<(RankIndex, Word)> {
        if self.failure.is_some() || self.has_left {
            return Vec::new();
        }
        self.has_left = true;
        self.send_to_others(&Word::Goodbye)
    }

    /// Receives a message.
    pub(crate) fn receive(&mut self, from: RankIndex, word: Word) -> Vec<(RankIndex, Word)> {
        let Some(peer) = self.peers.get_mut(from.index()) else {
            return Vec::new();
        };
        if let Word::Confirm = word {
            peer.unconfirmed = peer.unconfirmed.saturating_sub(1);
            return Vec::new();
        }
        // After an abort, it sends only confirmations, and the end of its connection is not a new failure.
        peer.has_left = true;
        let mut words = vec![(from, Word::Confirm)];
        if let Word::Abort(failure) = word {
            words.extend(self.fail(failure));
        }
        words
    }

    /// Notes that a process is lost.
    pub(crate) fn lose(
        &mut self,
        rank: RankIndex,
        reason: String,
        doing: Option<String>,
    ) -> Vec<(RankIndex, Word)> {
        let was_open = self.is_open(rank);
        if let Some(peer) = self.peers.get_mut(rank.index()) {
            peer.is_lost = true;
        }
        let how = How::Lost(reason);
        match was_open {
            true => self.fail(Failure { rank, how, doing }),
            false => Vec::new(),
        }
    }

    fn send_to_others(&mut self, word: &Word) -> Vec<(RankIndex, Word)> {
        let own = self.own;
        let others = self.peers.iter_mut().enumerate();
        let others = others.filter(|(rank, peer)| *rank != own && !peer.is_lost);
        let words = others.map(|(rank, peer)| {
            peer.unconfirmed += 1;
            (RankIndex::new(rank), word.clone())
        });
        words.collect()
    }
}

#[cfg(test)]
mod tests;
