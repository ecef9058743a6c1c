//! Every order of events: messages in any order of senders, and processes that finish, fail or are killed at any moment.

use std::collections::{BTreeSet, HashSet, VecDeque};

use super::*;

fn rank(index: usize) -> RankIndex {
    RankIndex::new(index)
}

/// The phase of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Phase {
    Running,
    /// It has sent a goodbye or an abort, and waits until that is confirmed.
    Leaving,
    /// It has ended, its connections closed.
    Ended,
    Killed,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct World {
    peers: Vec<Peers>,
    phases: Vec<Phase>,
    /// Per sender and receiver.
    wires: Vec<VecDeque<Wire>>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Wire {
    Word(Word),
    End,
}

/// The events that may happen.
#[derive(Debug, Clone, Copy)]
struct Events {
    /// The ranks that may fail by themselves.
    fails: &'static [usize],
    /// The ranks that may be killed.
    kills: &'static [usize],
    /// The ranks that may be silent until others give them up, although they are alive.
    silent: &'static [usize],
}

impl World {
    fn new(size: usize) -> Self {
        Self {
            peers: (0..size).map(|own| Peers::new(rank(own), size)).collect(),
            phases: vec![Phase::Running; size],
            wires: vec![VecDeque::new(); size * size],
        }
    }

    fn size(&self) -> usize {
        self.peers.len()
    }

    fn put(&mut self, from: usize, words: Vec<(RankIndex, Word)>) {
        for (to, word) in words {
            assert_ne!(to.index(), from, "a process sends nothing to itself");
            let size = self.size();
            self.wires[from * size + to.index()].push_back(Wire::Word(word));
        }
    }

    fn close(&mut self, own: usize) {
        let size = self.size();
        for other in (0..size).filter(|other| *other != own) {
            self.wires[own * size + other].push_back(Wire::End);
        }
    }

    fn is_alive(&self, own: usize) -> bool {
        matches!(self.phases[own], Phase::Running | Phase::Leaving)
    }

    /// Returns the state after an event of a process, with the messages that it then sends.
    fn after(&self, own: usize, event: impl FnOnce(&mut Peers) -> Vec<(RankIndex, Word)>) -> Self {
        let mut after = self.clone();
        let words = event(&mut after.peers[own]);
        after.put(own, words);
        after
    }

    /// Returns the state after each event that can happen next.
    fn next(&self, events: Events) -> Vec<Self> {
        let size = self.size();
        let mut next = Vec::new();
        for own in 0..size {
            if self.phases[own] == Phase::Running {
                // It finishes, or stops because of a failure that was reported to it.
                let mut after = self.after(own, Peers::leave);
                after.phases[own] = Phase::Leaving;
                next.push(after);
                if events.fails.contains(&own) && self.peers[own].failure().is_none() {
                    let (rank, doing) = (rank(own), None);
                    let how = How::Failed("injected".to_owned());
                    let failure = Failure { rank, how, doing };
                    let mut after = self.after(own, |peers| peers.fail(failure));
                    after.phases[own] = Phase::Leaving;
                    next.push(after);
                }
            }
            if self.phases[own] == Phase::Leaving && self.peers[own].is_confirmed() {
                let mut after = self.clone();
                after.phases[own] = Phase::Ended;
                after.close(own);
                next.push(after);
            }
            for other in events.silent.iter().copied() {
                if self.is_alive(own) && other != own && self.peers[own].is_awaited(rank(other)) {
                    let reason = "it was silent".to_owned();
                    next.push(self.after(own, |peers| peers.lose(rank(other), reason, None)));
                }
            }
            if self.is_alive(own) && events.kills.contains(&own) {
                let mut after = self.clone();
                after.phases[own] = Phase::Killed;
                // Any part of the messages that it sent may arrive.
                for other in (0..size).filter(|other| *other != own) {
                    for kept in 0..=after.wires[own * size + other].len() {
                        let mut cut = after.clone();
                        cut.wires[own * size + other].truncate(kept);
                        cut.close(own);
                        next.push(cut);
                    }
                    if size == 2 {
                        break;
                    }
                }
                after.close(own);
                next.push(after);
            }
        }
        for (wire, queue) in self.wires.iter().enumerate() {
            let (from, to) = (wire / size, wire % size);
            if queue.is_empty() || !self.is_alive(to) {
                continue;
            }
            let mut after = self.clone();
            let words = match after.wires[wire].pop_front() {
                Some(Wire::Word(word)) => after.peers[to].receive(rank(from), word),
                _ => after.peers[to].lose(rank(from), "it ended".to_owned(), None),
            };
            after.put(to, words);
            next.push(after);
        }
        next
    }
}

/// Visits every state, and checks every end. Returns the number of states, and the failures of all ends.
fn explore(size: usize, events: Events) -> (usize, BTreeSet<String>) {
    let mut seen = HashSet::from([World::new(size)]);
    let mut open = vec![World::new(size)];
    let mut failures = BTreeSet::new();
    while let Some(world) = open.pop() {
        let next = world.next(events);
        if next.is_empty() {
            check_end(&world, &mut failures);
        }
        open.extend(next.into_iter().filter(|next| seen.insert(next.clone())));
    }
    (seen.len(), failures)
}

fn check_end(world: &World, failures: &mut BTreeSet<String>) {
    // Nobody waits for a confirmation that never comes.
    for own in 0..world.size() {
        assert!(!world.is_alive(own), "rank {own} never ends: {world:#?}");
    }
    let of = |own: usize| world.peers[own].failure().map(ToString::to_string);
    failures.extend((0..world.size()).filter_map(of));
}

const NONE: Events = Events {
    fails: &[],
    kills: &[],
    silent: &[],
};

#[test]
fn an_orderly_end_is_no_failure() {
    for size in 1..=3 {
        let (states, failures) = explore(size, NONE);
        assert!(failures.is_empty(), "{failures:?}");
        assert!(states > size);
    }
}

/// All ranks end, and no rank reports a reason except an injected one.
#[test]
fn a_failure_is_the_only_reason() {
    for (size, fails) in [(2, &[1][..]), (3, &[0]), (3, &[0, 2])] {
        let (states, failures) = explore(size, Events { fails, ..NONE });
        let text = |rank: &usize| format!("rank {rank} failed: injected");
        assert_eq!(failures, fails.iter().map(text).collect());
        assert!(states > 20);
    }
}

/// The processes without a goodbye of a killed process report it as lost, and never another one.
#[test]
fn a_kill_is_the_only_reason() {
    for (size, kills) in [(2, &[0][..]), (3, &[1])] {
        let (states, failures) = explore(size, Events { kills, ..NONE });
        let expected = format!("rank {} is lost: it ended", kills[0]);
        assert_eq!(failures, BTreeSet::from([expected]));
        assert!(states > 20);
    }
}

/// A process that was silent and continues learns that the others gave it up, and not that they have ended.
#[test]
fn a_silent_process_is_notified() {
    for (size, silent) in [(2, &[0][..]), (3, &[1])] {
        let (states, failures) = explore(size, Events { silent, ..NONE });
        let expected = format!("rank {} is lost: it was silent", silent[0]);
        assert_eq!(failures, BTreeSet::from([expected]));
        assert!(states > 20);
    }
}

#[test]
fn a_failure_and_a_kill_are_both_possible_reasons() {
    let events = Events {
        fails: &[0],
        kills: &[2],
        ..NONE
    };
    let (states, failures) = explore(3, events);
    let expected = ["rank 0 failed: injected", "rank 2 is lost: it ended"];
    assert_eq!(failures, expected.map(str::to_owned).into());
    assert!(states > 1000);
}

#[test]
fn a_failure_names_what_was_done() {
    let mut peers = Peers::new(rank(0), 3);
    let doing = Some("`2F3` of round 7".to_owned());
    let words = peers.lose(rank(2), "killed".to_owned(), doing);
    assert_eq!(words.len(), 2, "the lost rank may only have been silent");
    insta::assert_snapshot!(peers.failure().unwrap(), @"rank 2 is lost: killed; it was last in `2F3` of round 7");
    // The first one counts.
    assert!(peers.lose(rank(1), "later".to_owned(), None).is_empty());
    assert_eq!(peers.failure().unwrap().rank, rank(2));
    // Nobody is left that could confirm.
    assert!(peers.is_confirmed());
}
