//! Every order of messages and losses, for up to five processes, of which up to two end or are given up.

use std::collections::{HashSet, VecDeque};

use super::*;

fn rank(index: usize) -> RankIndex {
    RankIndex::new(index)
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Wire {
    Vote(Vote),
    End,
}

/// Processes, some of which end.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Net {
    members: Vec<Members>,
    /// Whether the process runs.
    runs: Vec<bool>,
    /// Whether the generation of a process has failed, as it knows.
    has_failed: Vec<bool>,
    /// The generations that each has begun, with their members.
    begun: Vec<Vec<Roster>>,
    /// Per sender and receiver.
    wires: Vec<VecDeque<Wire>>,
    /// The faults that may still happen.
    faults: Faults,
    /// Whether connections have broken.
    was_cut: bool,
    /// Whether exactly half of a generation continues.
    was_halved: bool,
}

/// The numbers of faults.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Faults {
    /// The number of processes that may end.
    ends: usize,
    /// The number of connections that may break.
    cuts: usize,
    /// The number of times that a process may give up another one that was only silent.
    silences: usize,
}

impl Net {
    fn new(size: usize, faults: Faults) -> Self {
        Self {
            members: (0..size).map(|own| Members::new(rank(own), size)).collect(),
            runs: vec![true; size],
            has_failed: vec![false; size],
            begun: vec![Vec::new(); size],
            wires: vec![VecDeque::new(); size * size],
            faults,
            was_cut: false,
            was_halved: false,
        }
    }

    fn size(&self) -> usize {
        self.members.len()
    }

    fn put(&mut self, from: usize, votes: Vec<(RankIndex, Vote)>) {
        for (to, vote) in votes {
            let wire = from * self.size() + to.index();
            self.wires[wire].push_back(Wire::Vote(vote));
        }
    }

    /// Ends a process: each other one receives its messages, and then its end.
    fn stop(&mut self, process: usize) {
        self.runs[process] = false;
        for to in 0..self.size() {
            let wire = process * self.size() + to;
            self.wires[wire].push_back(Wire::End);
        }
    }

    /// Returns the state after each event that can happen next.
    fn next(&self) -> Vec<Self> {
        let mut all = Vec::new();
        for process in (0..self.size()).filter(|process| self.runs[*process]) {
            let own = &self.members[process];
            if !self.has_failed[process] && self.is_notified_of_failure(process) {
                let mut next = self.clone();
                next.has_failed[process] = true;
                all.push(next);
            }
            if self.has_failed[process] && !own.is_ready && own.outcome.is_none() {
                let mut next = self.clone();
                let votes = next.members[process].prepare();
                next.put(process, votes);
                all.push(next);
            }
            if let Some(Outcome::Next(roster)) = own.outcome() {
                let mut next = self.clone();
                next.begun[process].push((**roster).clone());
                next.was_halved |= roster.size() * 2 <= own.roster.size();
                assert!(next.members[process].adopt());
                // The processes that it leaves out receive no more messages of it.
                let left_out = own.roster.members.iter();
                for one in left_out.filter(|one| roster.rank_of(**one).is_none()) {
                    next.wires[process * self.size() + one.index()].push_back(Wire::End);
                }
                let own = &next.members[process];
                let mut members = own.roster.members.iter();
                next.has_failed[process] = members.any(|one| own.is_lost(*one));
                all.push(next);
            }
            if let Some(Outcome::TooFew { .. } | Outcome::GivenUp(_)) = own.outcome() {
                let mut next = self.clone();
                next.stop(process);
                all.push(next);
            }
            // The messages on their way from a process that ends arrive or are lost, for each receiver that has any.
            let wires = process * self.size()..(process + 1) * self.size();
            let used = wires.filter(|wire| !self.wires[*wire].is_empty());
            let used: Vec<usize> = used.collect();
            for lost in (0..1 << used.len()).filter(|_| self.faults.ends > 0) {
                let mut next = self.clone();
                for (at, wire) in used.iter().enumerate() {
                    if lost >> at & 1 == 1 {
                        next.wires[*wire].clear();
                    }
                }
                next.faults.ends -= 1;
                next.stop(process);
                all.push(next);
            }
            for other in (0..process).filter(|_| self.faults.cuts > 0) {
                let mut next = self.clone();
                next.faults.cuts -= 1;
                next.was_cut = true;
                for (from, to) in [(process, other), (other, process)] {
                    next.wires[from * self.size() + to].push_back(Wire::End);
                }
                all.push(next);
            }
            let silent = (0..self.size()).filter(|other| *other != process);
            for other in silent.filter(|_| self.faults.silences > 0) {
                let mut next = self.clone();
                next.faults.silences -= 1;
                next.was_cut = true;
                let is_member = own.roster.rank_of(rank(other)).is_some();
                next.has_failed[process] |= is_member;
                let votes = next.members[process].lose(rank(other));
                next.put(process, votes);
                // From now on, the other one receives only votes of it.
                next.wires[process * self.size() + other].push_back(Wire::End);
                all.push(next);
            }
            for from in 0..self.size() {
                let wire = from * self.size() + process;
                let mut next = self.clone();
                let Some(item) = next.wires[wire].pop_front() else {
                    continue;
                };
                let roster = &self.members[process].roster;
                let is_member = roster.rank_of(rank(from)).is_some();
                next.has_failed[process] |= item == Wire::End && is_member;
                let votes = match item {
                    Wire::Vote(vote) => next.members[process].receive(rank(from), vote),
                    Wire::End => next.members[process].lose(rank(from)),
                };
                next.put(process, votes);
                all.push(next);
            }
        }
        all
    }

    /// Returns whether another process of the generation reports a failure to a process.
    fn is_notified_of_failure(&self, process: usize) -> bool {
        let own = &self.members[process];
        (0..self.size()).any(|other| {
            let of = &self.members[other];
            let is_connected = !own.is_lost(rank(other)) && !of.is_lost(rank(process));
            self.runs[other] && self.has_failed[other] && of.roster == own.roster && is_connected
        })
    }

    /// Checks that all processes have the same members in one generation, and that each process is in its generations.
    fn check(&self) {
        let mut known: BTreeMap<Generation, &Roster> = BTreeMap::new();
        for (process, begun) in self.begun.iter().enumerate() {
            for roster in begun {
                assert!(roster.rank_of(rank(process)).is_some(), "{self:#?}");
                let first = known.entry(roster.generation).or_insert(roster);
                assert_eq!(*first, roster, "{self:#?}");
            }
        }
        // Two processes continue without each other only after exactly half of a generation continued.
        let begun = self.begun.iter().enumerate();
        let last = begun.filter_map(|(process, begun)| Some((rank(process), begun.last()?)));
        let last: Vec<(RankIndex, &Roster)> = last.collect();
        for (one, of_one) in &last {
            for (other, of_other) in &last {
                let is_apart = of_one.rank_of(*other).is_none() && of_other.rank_of(*one).is_none();
                assert!(self.was_halved || !is_apart, "{self:#?}");
            }
        }
    }

    /// Checks that in the end the running processes are exactly one generation, or too few are left.
    fn check_end(&self) {
        let runs: Vec<usize> = (0..self.size()).filter(|one| self.runs[*one]).collect();
        if runs.len() == self.size() && !self.was_cut {
            return;
        }
        for process in &runs {
            let own = &self.members[*process];
            // No process continues with one that it has lost.
            let members: Vec<usize> = own.roster.members.iter().map(|one| one.index()).collect();
            let has_lost = members.iter().any(|one| own.is_lost(rank(*one)));
            let is_whole = self.was_cut || members == runs;
            assert!(!has_lost && is_whole, "process {process}: {self:#?}");
        }
    }
}

/// Tries every order, and returns the number of states.
fn explore(size: usize, faults: Faults) -> usize {
    let first = Arc::new(Net::new(size, faults));
    let mut seen = HashSet::from([first.clone()]);
    let mut left = vec![first];
    while let Some(net) = left.pop() {
        net.check();
        let next = net.next();
        if next.is_empty() {
            net.check_end();
        }
        let next = next.into_iter().map(Arc::new);
        left.extend(next.filter(|next| seen.insert(next.clone())));
    }
    seen.len()
}

#[test]
fn remaining_processes_agree_in_every_order() {
    for (size, ends, cuts, silences) in [
        (2, 1, 0, 0),
        (3, 1, 0, 0),
        (4, 1, 0, 0),
        (3, 2, 0, 0),
        (2, 0, 1, 0),
        (3, 0, 1, 0),
        (3, 0, 0, 1),
        (3, 0, 0, 2),
        (3, 1, 0, 1),
        (4, 0, 1, 0),
        (4, 0, 0, 1),
        (5, 1, 0, 0),
        (3, 2, 0, 1),
        (4, 2, 0, 0),
    ] {
        let faults = Faults {
            ends,
            cuts,
            silences,
        };
        let states = explore(size, faults);
        println!("{size} processes, {faults:?}: {states} states");
        assert!(states >= size * size, "{states}");
    }
}

/// A process that was silent, and was given up, is notified and begins no generation.
#[test]
fn a_process_that_returns_is_left_out() {
    let mut members: Vec<Members> = (0..3).map(|own| Members::new(rank(own), 3)).collect();
    for one in [0, 2] {
        assert!(members[one].lose(rank(1)).is_empty());
    }
    assert!(members[0].prepare().is_empty());
    let ready = Vote::Ready(Generation::FIRST, vec![rank(1)]);
    assert_eq!(members[2].prepare(), [(rank(0), ready.clone())]);
    let votes = members[0].receive(rank(2), ready);
    let next = Roster {
        generation: Generation::FIRST.next(rank(0)),
        members: vec![rank(0), rank(2)],
    };
    assert_eq!(votes, [(rank(2), Vote::Next(next.clone()))]);
    let accept = Vote::Accept(next.generation);
    let votes = members[2].receive(rank(0), Vote::Next(next.clone()));
    assert_eq!(votes, [(rank(0), accept.clone())]);
    assert_eq!(members[0].outcome(), None);
    let votes = members[0].receive(rank(2), accept);
    let given_up = Vote::GivenUp(next.generation);
    let begin = Vote::Begin(next.generation);
    assert_eq!(votes, [(rank(1), given_up.clone()), (rank(2), begin)]);
    assert!(members[0].adopt());
    assert_eq!(members[0].roster().rank_of(rank(2)), Some(rank(1)));
    // It sends its request only now.
    let late = Vote::Ready(Generation::FIRST, Vec::new());
    assert!(members[1].prepare().contains(&(rank(0), late.clone())));
    assert_eq!(
        members[0].receive(rank(1), late),
        [(rank(1), given_up.clone())]
    );
    members[1].receive(rank(0), given_up);
    let outcome = Outcome::GivenUp(next.generation);
    assert_eq!(members[1].outcome(), Some(&outcome));
    assert!(!members[1].adopt());
    assert_eq!(members[1].roster().generation, Generation::FIRST);
}

/// A process that was paused has an old request of another one, which has continued with others since, and has ended.
#[test]
fn a_process_that_returns_does_not_continue_with_old_requests() {
    let mut own = Members::new(rank(0), 3);
    let ready = Vote::Ready(Generation::FIRST, Vec::new());
    assert!(own.receive(rank(2), ready).is_empty());
    own.prepare();
    let votes = own.lose(rank(1));
    assert!(matches!(votes[..], [(_, Vote::Next(_))]), "{votes:?}");
    assert!(own.lose(rank(2)).is_empty());
    assert_eq!(own.outcome(), Some(&Outcome::TooFew { left: 1, of: 3 }));
}

/// One of three is less than half: it may be cut off from the others.
#[test]
fn fewer_than_half_do_not_continue() {
    let mut own = Members::new(rank(2), 3);
    own.lose(rank(0));
    own.prepare();
    own.lose(rank(1));
    assert_eq!(own.outcome(), Some(&Outcome::TooFew { left: 1, of: 3 }));
    let mut own = Members::new(rank(1), 2);
    own.prepare();
    own.lose(rank(0));
    let next = Roster {
        generation: Generation::FIRST.next(rank(1)),
        members: vec![rank(1)],
    };
    assert_eq!(own.outcome(), Some(&Outcome::Next(Arc::new(next))));
}
