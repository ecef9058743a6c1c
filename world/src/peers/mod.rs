//! The shutdown protocol: who is there, who has left, and the first failure.
//!
//! A pure state machine. Its inputs are what happened, its outputs what is to be sent; `tests` run it in every order of
//! events.

use derive_more::Display;
use serde::{Deserialize, Serialize};
use tinderbox_schedule::RankIndex;

use crate::error::if_known;

/// The failure of a rank, as all ranks report it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize, Display)]
#[display("rank {rank} {how}{}", if_known("; it was last in ", doing, ""))]
pub struct Failure {
    /// The rank.
    pub rank: RankIndex,
    /// What happened to it.
    pub how: How,
    /// What it did when it was last heard of.
    pub doing: Option<String>,
}

impl std::error::Error for Failure {}

/// What happened to a rank.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize, Display)]
pub enum How {
    /// It failed and said why.
    #[display("failed: {_0}")]
    Failed(String),
    /// It is gone without a word.
    #[display("is lost: {_0}")]
    Lost(String),
}

/// A message of the protocol.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) enum Word {
    /// The sender knows of a failure, and has stopped.
    Abort(Failure),
    /// The sender has finished, and sends nothing more.
    Goodbye,
    /// The sender has received an abort or a goodbye, and everything before it.
    Confirm,
}

/// What one process knows of the others.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Peers {
    own: usize,
    peers: Vec<Peer>,
    failure: Option<Failure>,
    /// Whether this process said goodbye.
    has_left: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
struct Peer {
    has_left: bool,
    is_lost: bool,
    /// How many aborts and goodbyes it has not confirmed.
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

    /// Returns whether everything that this process said has arrived where somebody is left to read it.
    pub(crate) fn is_confirmed(&self) -> bool {
        let mut others = self.peers.iter();
        others.all(|peer| peer.is_lost || peer.unconfirmed == 0)
    }

    /// Returns whether something is expected of a rank: its work, or a confirmation.
    pub(crate) fn is_awaited(&self, rank: RankIndex) -> bool {
        let peer = self.peers.get(rank.index());
        peer.is_some_and(|peer| !peer.is_lost && (!peer.has_left || peer.unconfirmed > 0))
    }

    /// Returns whether a rank may still send.
    pub(crate) fn is_open(&self, rank: RankIndex) -> bool {
        let peer = self.peers.get(rank.index());
        peer.is_some_and(|peer| !peer.is_lost && !peer.has_left)
    }

    /// This process fails, or finds a failure. The first one is kept and sent to all others.
    pub(crate) fn fail(&mut self, failure: Failure) -> Vec<(RankIndex, Word)> {
        if self.failure.is_some() || self.has_left {
            return Vec::new();
        }
        self.failure = Some(failure.clone());
        let is_lost = matches!(failure.how, How::Lost(_)) && failure.rank.index() != self.own;
        let (rank, word) = (failure.rank, Word::Abort(failure));
        let mut words = self.say(&word);
        // It may only have been silent: it gets the word as well, but is not waited for.
        if is_lost && let Some(peer) = self.peers.get_mut(rank.index()) {
            if peer.is_lost {
                words.push((rank, word));
            }
            peer.unconfirmed = 0;
        }
        words
    }

    /// This process has finished.
    pub(crate) fn leave(&mut self) -> Vec<(RankIndex, Word)> {
        if self.failure.is_some() || self.has_left {
            return Vec::new();
        }
        self.has_left = true;
        self.say(&Word::Goodbye)
    }

    /// A word arrived.
    pub(crate) fn hear(&mut self, from: RankIndex, word: Word) -> Vec<(RankIndex, Word)> {
        let Some(peer) = self.peers.get_mut(from.index()) else {
            return Vec::new();
        };
        if let Word::Confirm = word {
            peer.unconfirmed = peer.unconfirmed.saturating_sub(1);
            return Vec::new();
        }
        // After an abort, it sends nothing more but confirmations, and its end is no failure of its own.
        peer.has_left = true;
        let mut words = vec![(from, Word::Confirm)];
        if let Word::Abort(failure) = word {
            words.extend(self.fail(failure));
        }
        words
    }

    /// A process can't be heard of any more.
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
        match was_open {
            true => self.fail(Failure {
                rank,
                how: How::Lost(reason),
                doing,
            }),
            false => Vec::new(),
        }
    }

    fn say(&mut self, word: &Word) -> Vec<(RankIndex, Word)> {
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
