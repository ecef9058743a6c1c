//! The processes of the world, and their agreement after a failure on the processes that continue.
//!
//! A pure state machine, as [`peers`](crate::peers). The lowest remaining process collects a request from every other one
//! that is not lost, and proposes the list of the next generation to them. The generation begins when all of them have
//! accepted it. So a process that was paused, and has only old requests, never begins another generation.
//!
//! A process that has accepted a list continues with that list or with a later one. So of two lists that each contain more than
//! half of the same generation, only one begins. A process that is not in the list has been given up: its frames carry the
//! number of an older generation, and are ignored.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tinderbox_ids::RankIndex;

/// The number of a generation. Two processes may begin the same number if the first of them ends, so it contains the process
/// that began it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub(crate) struct Generation {
    /// Counts from 0.
    pub(crate) number: u32,
    decided_by: RankIndex,
}

impl Generation {
    pub(crate) const FIRST: Self = Self {
        number: 0,
        decided_by: RankIndex::new(0),
    };

    const fn next(self, decided_by: RankIndex) -> Self {
        let number = self.number + 1;
        Self { number, decided_by }
    }
}

/// The processes of a generation.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) struct Roster {
    /// Frames of other generations are ignored.
    pub(crate) generation: Generation,
    /// The rank that the engine gives each process, by rank in the world, ascending.
    pub(crate) members: Vec<RankIndex>,
}

impl Roster {
    /// All processes of an engine.
    pub(crate) fn first(size: usize) -> Self {
        Self {
            generation: Generation::FIRST,
            members: (0..size).map(RankIndex::new).collect(),
        }
    }

    pub(crate) fn size(&self) -> usize {
        self.members.len()
    }

    /// Returns the rank in the world of a process of the engine.
    pub(crate) fn rank_of(&self, process: RankIndex) -> Option<RankIndex> {
        let found = self.members.binary_search(&process).ok();
        found.map(RankIndex::new)
    }
}

/// Returns all ranks except one.
pub(crate) fn others(own: RankIndex, size: usize) -> impl Iterator<Item = RankIndex> + use<> {
    let ranks = (0..size).map(RankIndex::new);
    ranks.filter(move |rank| *rank != own)
}

/// A message of the agreement.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) enum Vote {
    /// The sender is of this generation, has lost these processes, and waits for the next generation.
    Ready(Generation, Vec<RankIndex>),
    /// The next generation, if all of its processes accept it.
    Next(Roster),
    /// The sender continues in this generation, or in one that follows from it.
    Accept(Generation),
    /// All have accepted this generation.
    Begin(Generation),
    /// The others continue without the receiver, in this generation.
    GivenUp(Generation),
}

/// The outcome of the agreement.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Outcome {
    Next(Arc<Roster>),
    GivenUp(Generation),
    /// Fewer than half of the processes are left.
    TooFew {
        left: usize,
        of: usize,
    },
}

/// The knowledge of one process about the members.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Members {
    own: RankIndex,
    /// The generation that has begun.
    roster: Arc<Roster>,
    /// The next generation that this process has accepted.
    accepted: Option<Arc<Roster>>,
    /// The next generation that this process proposes, and the processes that have not accepted it.
    proposed: Option<(Arc<Roster>, BTreeSet<RankIndex>)>,
    /// Processes that were lost, in any generation.
    lost: BTreeSet<RankIndex>,
    /// Whether this process waits for the next generation.
    is_ready: bool,
    /// The other processes that wait for it, their generations, and the processes that they have lost.
    ready: BTreeMap<RankIndex, (Generation, Vec<RankIndex>)>,
    /// The process to which this one has sent its last request.
    asked: Option<RankIndex>,
    outcome: Option<Outcome>,
}

impl Members {
    pub(crate) fn new(own: RankIndex, size: usize) -> Self {
        Self {
            own,
            roster: Arc::new(Roster::first(size)),
            accepted: None,
            proposed: None,
            lost: BTreeSet::new(),
            is_ready: false,
            ready: BTreeMap::new(),
            asked: None,
            outcome: None,
        }
    }

    pub(crate) const fn roster(&self) -> &Arc<Roster> {
        &self.roster
    }

    pub(crate) fn is_lost(&self, process: RankIndex) -> bool {
        self.lost.contains(&process)
    }

    pub(crate) const fn outcome(&self) -> Option<&Outcome> {
        self.outcome.as_ref()
    }

    /// Returns whether this process decides who continues.
    pub(crate) fn decides(&self) -> bool {
        self.first() == self.own
    }

    /// Returns the members that this process waits for.
    pub(crate) fn missing(&self) -> Vec<RankIndex> {
        let others = self.alive().filter(|one| *one != self.own);
        if !self.is_ready || !self.decides() {
            return self.asked.into_iter().collect();
        }
        match &self.proposed {
            Some((_, unaccepted)) => unaccepted.iter().copied().collect(),
            None => others.filter(|one| !self.ready.contains_key(one)).collect(),
        }
    }

    /// Notes that this process waits for the next generation.
    pub(crate) fn prepare(&mut self) -> Vec<(RankIndex, Vote)> {
        self.is_ready = true;
        self.advance()
    }

    /// Notes that a process is lost, or that this process waits for it no longer.
    pub(crate) fn lose(&mut self, process: RankIndex) -> Vec<(RankIndex, Vote)> {
        if process == self.own || !self.lost.insert(process) {
            return Vec::new();
        }
        self.advance()
    }

    /// Receives a message.
    pub(crate) fn receive(&mut self, from: RankIndex, vote: Vote) -> Vec<(RankIndex, Vote)> {
        let own = self.latest().generation;
        let is_member = self.latest().rank_of(from).is_some() && !self.lost.contains(&from);
        match vote {
            Vote::Ready(generation, lost) if is_member => {
                self.ready.insert(from, (generation, lost));
                self.advance()
            }
            Vote::Next(next) if is_member && self.asked == Some(from) && next.generation > own => {
                let generation = next.generation;
                self.accepted = Some(Arc::new(next));
                vec![(from, Vote::Accept(generation))]
            }
            // From a process that this one does not continue with.
            Vote::Ready(generation, _) | Vote::Next(Roster { generation, .. }) => {
                match !is_member && generation < own {
                    true => vec![(from, Vote::GivenUp(own))],
                    false => Vec::new(),
                }
            }
            Vote::Accept(generation) => {
                if let Some((proposed, unaccepted)) = &mut self.proposed {
                    if proposed.generation == generation {
                        unaccepted.remove(&from);
                    }
                    if unaccepted.is_empty() {
                        let next = proposed.clone();
                        return self.begin(next);
                    }
                }
                Vec::new()
            }
            Vote::Begin(generation) => match self.accepted.clone() {
                Some(next) if is_member && next.generation == generation => self.begin(next),
                _ => Vec::new(),
            },
            Vote::GivenUp(generation) => {
                // This process has given the others up, so it does not continue with them.
                let is_of_roster = self.roster.rank_of(from).is_some();
                if is_of_roster && generation > self.roster.generation {
                    self.outcome = Some(Outcome::GivenUp(generation));
                }
                Vec::new()
            }
        }
    }

    /// Begins the next generation if that is the outcome, and returns whether it is.
    pub(crate) fn adopt(&mut self) -> bool {
        let Some(Outcome::Next(next)) = &self.outcome else {
            return false;
        };
        self.roster = next.clone();
        self.outcome = None;
        self.accepted = None;
        self.proposed = None;
        self.is_ready = false;
        self.asked = None;
        true
    }

    /// Returns the newest generation that this process has begun or accepted.
    fn latest(&self) -> &Roster {
        self.accepted.as_ref().unwrap_or(&self.roster)
    }

    /// Returns the members that are not known to be lost.
    fn alive(&self) -> impl Iterator<Item = RankIndex> {
        let members = self.latest().members.iter().copied();
        members.filter(|one| !self.lost.contains(one))
    }

    /// Returns the processes that continue: of two processes that have lost each other, the lower one, as far as they have
    /// reported it.
    fn left(&self) -> Vec<RankIndex> {
        let mut left: Vec<RankIndex> = self.alive().collect();
        let mut at = 0;
        while let Some(one) = left.get(at) {
            if let Some((_, lost)) = self.ready.get(one) {
                let decided = self.own;
                left.retain(|other| *other == decided || !lost.contains(other));
            }
            at += 1;
        }
        left
    }

    /// Returns the process that decides.
    fn first(&self) -> RankIndex {
        self.alive().next().unwrap_or(self.own)
    }

    fn advance(&mut self) -> Vec<(RankIndex, Vote)> {
        if !self.is_ready || self.outcome.is_some() {
            return Vec::new();
        }
        let (own, first) = (self.own, self.first());
        if first != own {
            let is_new = self.asked.replace(first) != Some(first);
            let lost = self.latest().members.iter();
            let lost = lost.filter(|one| self.is_lost(**one)).copied().collect();
            let ready = (first, Vote::Ready(self.latest().generation, lost));
            return is_new.then_some(ready).into_iter().collect();
        }
        let is_missing = |one: RankIndex| one != own && !self.ready.contains_key(&one);
        if self.alive().any(is_missing) {
            return Vec::new();
        }
        let (left, of) = (self.left(), self.roster.size());
        if left.len() * 2 < of {
            let left = left.len();
            self.outcome = Some(Outcome::TooFew { left, of });
            return Vec::new();
        }
        let proposed = self.proposed.as_ref().map(|(proposed, _)| &**proposed);
        if proposed.is_some_and(|proposed| proposed.members == left) {
            return Vec::new();
        }
        let proposed = proposed.unwrap_or(self.latest()).generation;
        let known = self.ready.values().map(|(generation, _)| *generation);
        let next = Arc::new(Roster {
            generation: known.fold(proposed, Generation::max).next(own),
            members: left,
        });
        let others = next.members.iter().copied().filter(|one| *one != own);
        let others: BTreeSet<RankIndex> = others.collect();
        if others.is_empty() {
            return self.begin(next);
        }
        let propose = |one: &RankIndex| (*one, Vote::Next((*next).clone()));
        let votes = others.iter().map(propose).collect();
        self.proposed = Some((next, others));
        votes
    }

    /// Begins the next generation, which all have accepted. The process that has proposed it notifies its members, and the
    /// processes that are not in it, which may only have been silent. The others notify the processes that have sent them
    /// requests.
    fn begin(&mut self, next: Arc<Roster>) -> Vec<(RankIndex, Vote)> {
        let generation = next.generation;
        let mut notified: BTreeSet<RankIndex> = self.ready.keys().copied().collect();
        if generation.decided_by == self.own {
            notified.extend(&self.roster.members);
            notified.remove(&self.own);
        } else {
            notified.retain(|one| next.rank_of(*one).is_none());
        }
        // Keeps the requests for a later generation.
        self.ready.retain(|_, (asked, _)| *asked >= generation);
        let votes = notified.into_iter().map(|one| match next.rank_of(one) {
            Some(_) => (one, Vote::Begin(generation)),
            None => (one, Vote::GivenUp(generation)),
        });
        let votes = votes.collect();
        self.outcome = Some(Outcome::Next(next));
        votes
    }
}

#[cfg(test)]
mod tests;
