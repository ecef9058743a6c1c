//! Who is in the world, and how those that are left after a failure agree on who goes on.
//!
//! A pure state machine, as [`peers`](crate::peers). The lowest process that is left collects a request of every other one
//! that is not lost, and sends all of them the list of the next generation. A process that this list leaves out has been
//! given up: whatever it sends carries the number of an older generation, and nobody reads it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tinderbox_schedule::RankIndex;

/// The number of a generation. Two processes may begin the same one if the first of them ends, so it contains who began it.
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
        Self {
            number: self.number + 1,
            decided_by,
        }
    }
}

/// The processes of a generation.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) struct Roster {
    /// Frames of others are not read.
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

/// A message of the agreement.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) enum Vote {
    /// The sender is of this generation, has lost these processes, and waits for the next generation.
    Ready(Generation, Vec<RankIndex>),
    /// The next generation.
    Next(Roster),
    /// The others have gone on without the receiver, in this generation.
    GivenUp(Generation),
}

/// What the agreement has come to.
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

/// What one process knows of the members.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Members {
    own: RankIndex,
    roster: Arc<Roster>,
    /// Processes that were lost, in any generation.
    lost: BTreeSet<RankIndex>,
    /// Whether this process waits for the next generation.
    is_ready: bool,
    /// The processes that do, their generation, and what they have lost.
    ready: BTreeMap<RankIndex, (Generation, Vec<RankIndex>)>,
    /// The process that this one has asked last.
    asked: Option<RankIndex>,
    outcome: Option<Outcome>,
}

impl Members {
    pub(crate) fn new(own: RankIndex, size: usize) -> Self {
        Self {
            own,
            roster: Arc::new(Roster::first(size)),
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

    /// Whether this process decides who goes on.
    pub(crate) fn decides(&self) -> bool {
        self.first() == self.own
    }

    /// The members that this process waits for.
    pub(crate) fn missing(&self) -> Vec<RankIndex> {
        let others = self.alive().filter(|one| *one != self.own);
        match self.is_ready && self.first() == self.own {
            true => others.filter(|one| !self.ready.contains_key(one)).collect(),
            false => self.asked.into_iter().collect(),
        }
    }

    /// This process waits for the next generation.
    pub(crate) fn prepare(&mut self) -> Vec<(RankIndex, Vote)> {
        self.is_ready = true;
        self.advance()
    }

    /// A process can't be heard of any more, or is waited for no longer.
    pub(crate) fn lose(&mut self, process: RankIndex) -> Vec<(RankIndex, Vote)> {
        if process == self.own || !self.lost.insert(process) {
            return Vec::new();
        }
        self.advance()
    }

    /// A message arrived.
    pub(crate) fn hear(&mut self, from: RankIndex, vote: Vote) -> Vec<(RankIndex, Vote)> {
        match vote {
            Vote::Ready(generation, lost) => {
                let own = self.roster.generation;
                if self.roster.rank_of(from).is_none() || self.lost.contains(&from) {
                    return match generation < own {
                        true => vec![(from, Vote::GivenUp(own))],
                        false => Vec::new(),
                    };
                }
                self.ready.insert(from, (generation, lost));
                self.advance()
            }
            Vote::Next(next) => {
                // One that has not begun yet is left out if there is another one after it.
                let newest = match &self.outcome {
                    Some(Outcome::Next(pending)) => pending.generation,
                    _ => self.roster.generation,
                };
                if next.generation > newest {
                    self.outcome = Some(match next.rank_of(self.own) {
                        Some(_) => Outcome::Next(Arc::new(next)),
                        None => Outcome::GivenUp(next.generation),
                    });
                }
                Vec::new()
            }
            Vote::GivenUp(generation) => {
                if generation > self.roster.generation {
                    self.outcome = Some(Outcome::GivenUp(generation));
                }
                Vec::new()
            }
        }
    }

    /// Begins the next generation, if there is one. Returns what is sent to those that have asked this process and are left out.
    pub(crate) fn adopt(&mut self) -> Vec<(RankIndex, Vote)> {
        let Some(Outcome::Next(next)) = self.outcome.take() else {
            return Vec::new();
        };
        self.roster = next;
        self.is_ready = false;
        self.asked = None;
        // A process may have asked before this generation that has not been sent it, and does not ask again. One that asked
        // earlier and has begun it is counted too soon the next time, and comes later.
        let roster = &self.roster;
        let asked = std::mem::take(&mut self.ready).into_iter();
        let (members, others) = asked.partition(|(one, _)| roster.rank_of(*one).is_some());
        self.ready = members;
        let others: BTreeMap<RankIndex, _> = others;
        let given_up = others.into_keys();
        given_up
            .map(|one| (one, Vote::GivenUp(roster.generation)))
            .collect()
    }

    /// The members that are not known to be lost.
    fn alive(&self) -> impl Iterator<Item = RankIndex> {
        let members = self.roster.members.iter().copied();
        members.filter(|one| !self.lost.contains(one))
    }

    /// The processes that go on: of two that have lost each other, the lower one, as far as they have said so.
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

    /// The process that decides.
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
            let lost = self.roster.members.iter().filter(|one| self.is_lost(**one));
            let lost = lost.copied().collect();
            let ready = (first, Vote::Ready(self.roster.generation, lost));
            return is_new.then_some(ready).into_iter().collect();
        }
        if !self.missing().is_empty() {
            return Vec::new();
        }
        let (left, of) = (self.left(), self.roster.size());
        if left.len() * 2 < of {
            let left = left.len();
            self.outcome = Some(Outcome::TooFew { left, of });
            return Vec::new();
        }
        let known = self.ready.values().map(|(generation, _)| *generation);
        let newest = known.fold(self.roster.generation, Generation::max);
        let next = Roster {
            generation: newest.next(own),
            members: left,
        };
        let others = self.roster.members.iter().filter(|one| **one != own);
        // Those that are left out may only have been silent.
        let votes = others.map(|one| match next.rank_of(*one) {
            Some(_) => (*one, Vote::Next(next.clone())),
            None => (*one, Vote::GivenUp(next.generation)),
        });
        let votes = votes.collect();
        self.outcome = Some(Outcome::Next(Arc::new(next)));
        votes
    }
}

#[cfg(test)]
mod tests;
