//! The list scheduler: it simulates the step event by event, and every rank chooses its next program.
//!
//! # Why it never stalls
//!
//! A rank may run a forward only if all micro-batches that it has begun can still end, oldest first.
//! With the free memory, the oldest can run its other forwards. With the memory that its backwards free in
//! addition, the next one can run its forwards, and so on. (This is the safety test of the banker's algorithm,
//! with the micro-batches of one rank as customers.) Running a forward of the oldest micro-batch, a
//! whole backward or a weight gradient never violates the test.
//!
//! Consider the oldest micro-batch that some rank has not ended. Every rank has ended all micro-batches before it, so it is
//! the first in every rank's order, and its programs may run as soon as their inputs exist. One of them can always run next,
//! unless the edges form a cycle.

use std::mem;

use tinderbox_ids::StageIndex;

use crate::arithmetic::{add, scaled, sum};
use crate::task::Compute;

use super::problem::{Lists, NOT_MADE, Problem, Turn, count, next};

/// The kinds of programs, in the order in which a rank prefers them.
pub(super) type Preference = [Compute; 3];

/// The policy of the list scheduler.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Policy {
    /// The priorities of the kinds of programs; `InputGradient` includes whole backwards.
    pub preference: Preference,
    /// Whether backwards run in two parts.
    pub is_split: bool,
    /// Per stage, the maximum number of forwards that wait for their backward. The oldest micro-batch is exempt.
    pub in_flight: Vec<usize>,
    /// The time for which a rank waits for a program that it prefers, in thousandths of the time of the program that it
    /// could run.
    pub patience_permille: u64,
    /// Whether backwards of later stages of a rank have priority. Forwards of later stages always
    /// have, because they belong to older micro-batches.
    pub prefers_late_backwards: bool,
}

/// A program that a rank could run.
#[derive(Debug, Clone, Copy)]
struct Candidate {
    turn: Turn,
    start: u64,
    /// Lower values have priority.
    preference: (usize, usize),
}

/// One run of the list scheduler.
struct Run<'a> {
    problem: &'a Problem<'a>,
    policy: &'a Policy,
    arrivals: Vec<u64>,
    /// Per stage, the numbers of forwards, input gradients and weight gradients that have run.
    counts: Vec<[usize; 3]>,
    free: Vec<u64>,
    link_free: Vec<u64>,
    lists: Lists,
    /// Per rank, a lower bound of the remaining work.
    work: Vec<u64>,
    /// Per rank, the programs that it could run next.
    candidates: Vec<Vec<Candidate>>,
    /// Per rank, whether its candidates have to be recomputed.
    is_stale: Vec<bool>,
}

/// Returns the lists of a policy, or `None` if the edges form a cycle or the step gets longer
/// than `cutoff`.
///
/// Every list is within the budgets, if one micro-batch at a time is.
pub(super) fn schedule(problem: &Problem<'_>, policy: &Policy, cutoff: u64) -> Option<Lists> {
    let micro_batches = problem.micro_batches as u64;
    let work = |stages: &Vec<usize>| {
        let each = stages.iter().map(|&stage| problem.least_work(stage));
        sum(each).saturating_mul(micro_batches)
    };
    let mut run = Run {
        problem,
        policy,
        arrivals: vec![NOT_MADE; problem.messages()],
        counts: vec![[0; 3]; problem.stages()],
        free: vec![0; problem.ranks],
        link_free: vec![0; problem.ranks * problem.ranks],
        lists: vec![Vec::new(); problem.ranks],
        work: problem.stages_of.iter().map(work).collect(),
        candidates: vec![Vec::new(); problem.ranks],
        is_stale: vec![true; problem.ranks],
    };
    while let Some(rank) = run.next_rank() {
        let chosen = run.choose(rank)?;
        run.run(rank, chosen);
        if run.free[rank].saturating_add(run.work[rank]) > cutoff {
            return None;
        }
    }
    let is_complete = |counts: &[usize; 3]| *counts == [problem.micro_batches; 3];
    run.counts.iter().all(is_complete).then_some(run.lists)
}

impl Run<'_> {
    /// Returns the rank whose next program can start first; the lowest of several.
    fn next_rank(&mut self) -> Option<usize> {
        for rank in 0..self.candidates.len() {
            if mem::take(&mut self.is_stale[rank]) {
                let mut list = mem::take(&mut self.candidates[rank]);
                list.clear();
                for &stage in &self.problem.stages_of[rank] {
                    list.extend(self.candidates_of(rank, stage).into_iter().flatten());
                }
                self.candidates[rank] = list;
            }
        }
        let firsts = self.candidates.iter().enumerate();
        let firsts = firsts.filter_map(|(rank, list)| {
            let start = list.iter().map(|candidate| candidate.start).min();
            start.map(|start| (start, rank))
        });
        firsts.min().map(|(_, rank)| rank)
    }

    /// Returns the program that a rank runs next: of the programs that start within the rank's patience, the most preferred.
    fn choose(&self, rank: usize) -> Option<Candidate> {
        let all = || self.candidates[rank].iter();
        let now = all().map(|one| one.start).min()?;
        let ready = all().filter(|one| one.start == now);
        let shortest = ready.map(|one| self.problem.time(one.turn)).min()?;
        let wait = scaled(shortest, self.policy.patience_permille, 1000);
        let latest = now.saturating_add(wait);
        let awaited = all().filter(|one| one.start <= latest);
        let best = awaited.min_by_key(|one| (one.preference, one.start));
        best.copied()
    }

    /// Returns the programs of a stage whose inputs are on their way, and that memory allows.
    fn candidates_of(&self, rank: usize, stage: usize) -> [Option<Candidate>; 3] {
        let counts = self.counts[stage];
        let of = |compute: Compute| {
            let k = next(counts, compute).filter(|k| *k < self.problem.micro_batches)?;
            self.candidate(rank, Turn::new(StageIndex::new(stage), compute), k)
        };
        let forward = of(Compute::Forward).filter(|_| self.may_forward(rank, stage, counts[0]));
        let input = next(counts, Compute::InputGradient).and_then(|k| {
            of(match self.splits(rank, stage, k) {
                true => Compute::InputGradient,
                false => Compute::Backward,
            })
        });
        let weight = of(Compute::WeightGradient);
        [forward, input, weight]
    }

    /// Returns a candidate, if all its inputs have been computed.
    fn candidate(&self, rank: usize, turn: Turn, k: usize) -> Option<Candidate> {
        let (stage, compute) = (turn.stage(), turn.compute);
        let mut start = self.free[rank];
        for read in self.problem.reads(stage, compute) {
            let arrival = self.arrivals[read.message + k];
            if arrival == NOT_MADE {
                return None;
            }
            if read.sent.is_some() {
                start = start.max(arrival);
            }
        }
        let kind = match compute {
            Compute::Backward => Compute::InputGradient,
            other => other,
        };
        let place = self.policy.preference.iter().position(|one| *one == kind);
        let is_late_first = compute == Compute::Forward || self.policy.prefers_late_backwards;
        let order = match is_late_first {
            true => self.problem.stages() - stage,
            false => stage,
        };
        Some(Candidate {
            turn,
            start,
            preference: (place.unwrap_or(0), order),
        })
    }

    /// Returns whether the next backward of a stage runs in two parts: if the policy splits backwards, and the bytes that
    /// the first part keeps for the second fit.
    fn splits(&self, rank: usize, stage: usize, inputs: usize) -> bool {
        let costs = &self.problem.costs.stages[stage];
        let (kept, freed) = (costs.weight_gradient_bytes, costs.activation_bytes);
        let added = kept.saturating_sub(freed);
        self.policy.is_split && (added == 0 || self.is_safe(rank, added, (stage, inputs, 0)))
    }

    /// Returns whether a rank may run a forward.
    fn may_forward(&self, rank: usize, stage: usize, k: usize) -> bool {
        let stages = self.problem.stages_of[rank].iter();
        let oldest = stages.map(|&stage| self.counts[stage][2]).min();
        if oldest == Some(k) {
            return true;
        }
        let [forwards, inputs, _] = self.counts[stage];
        let bytes = self.problem.costs.stages[stage].activation_bytes;
        forwards - inputs < self.policy.in_flight[stage]
            && self.is_safe(rank, bytes, (stage, k, bytes))
    }

    /// Returns whether all micro-batches that a rank has begun can still end, oldest first, after it allocates
    /// `added` bytes for one of them. `begun` is the stage, the micro-batch, and the part of these bytes that a forward
    /// allocates.
    fn is_safe(&self, rank: usize, added: u64, begun: (usize, usize, u64)) -> bool {
        let (of, micro_batch, ran) = begun;
        let stages = || {
            let stages = self.problem.stages_of[rank].iter();
            stages.map(|&stage| {
                let costs = &self.problem.costs.stages[stage];
                let bytes = (costs.activation_bytes, costs.weight_gradient_bytes);
                (stage, self.counts[stage], bytes)
            })
        };
        let held = stages().map(|(_, [forwards, inputs, weights], (activation, weight))| {
            let waiting = activation.saturating_mul((forwards - inputs) as u64);
            waiting.saturating_add(weight.saturating_mul((inputs - weights) as u64))
        });
        let held = sum(held.chain([added]));
        let Some(mut free) = self.problem.budgets[rank].checked_sub(held) else {
            return false;
        };
        let oldest = stages().map(|(_, [_, _, weights], _)| weights).min();
        let newest = stages().map(|(_, [forwards, _, _], _)| forwards).max();
        let end = newest.unwrap_or(0).max(micro_batch + 1);
        // If all begun micro-batches fit at once, their order does not matter.
        let claims = stages().map(|(_, [forwards, _, _], (activation, _))| {
            activation.saturating_mul(end.saturating_sub(forwards) as u64)
        });
        if sum(claims) <= free {
            return true;
        }
        for k in oldest.unwrap_or(0)..end {
            let (mut needed, mut freed) = (0_u64, 0_u64);
            for (stage, [forwards, inputs, weights], (activation, weight)) in stages() {
                if k >= forwards {
                    add(&mut needed, activation);
                } else if k >= inputs {
                    add(&mut freed, activation);
                } else if k >= weights {
                    add(&mut freed, weight);
                }
                if (stage, k) == (of, micro_batch) {
                    needed = needed.saturating_sub(ran);
                    add(&mut freed, added);
                }
            }
            if needed > free {
                return false;
            }
            add(&mut free, freed);
        }
        true
    }

    /// Runs a program, and sends its outputs.
    fn run(&mut self, rank: usize, Candidate { turn, start, .. }: Candidate) {
        let problem = self.problem;
        let overhead = problem.costs.overhead;
        let reads = problem.reads(turn.stage(), turn.compute).iter();
        let received = reads.filter(|read| read.sent.is_some()).count() as u64;
        let start = start.saturating_add(overhead.saturating_mul(received));
        let mut free = start.saturating_add(problem.time(turn));
        let k = count(&mut self.counts[turn.stage()], turn.compute);
        for made in problem.made(turn.stage(), turn.compute) {
            self.arrivals[made.message + k] = match made.sent {
                Some(sent) => problem.send(&mut free, &mut self.link_free[sent.link], sent),
                None => 0,
            };
            self.is_stale[made.reader] = true;
        }
        self.work[rank] = self.work[rank].saturating_sub(problem.time(turn));
        self.free[rank] = free;
        self.is_stale[rank] = true;
        self.lists[rank].push(turn);
    }
}
