//! The evaluator: the makespan of the lists of a search, without lowering them. The actions at the end of a stage and of a
//! step are from `lower`.
//!
//! It returns the makespan that [`simulate`](crate::simulate()) returns for the same lists, exactly, and
//! rejects lists that [`verify`](crate::verify()) rejects, and lists above a memory limit.

use crate::action::{Action, Message};
use crate::arithmetic::{add, sum};

use super::problem::{Lists, NOT_MADE, Problem, Sent, Turn, WEIGHT, count, kind, next};

/// No message: the action began when the previous one on its rank ended.
pub(super) const NO_MESSAGE: usize = usize::MAX;

/// Computes makespans of lists. The arrays are reused from one run to the next.
pub(super) struct Evaluator<'a> {
    problem: &'a Problem<'a>,
    /// The number of entries timed so far, the measure of effort.
    pub turns: u64,
    /// Per message, its arrival; within a rank, zero once it is computed.
    arrivals: Vec<u64>,
    /// Per message, the position of its producer in the list of its rank.
    pub made_at: Vec<usize>,
    /// Per stage, the numbers of forwards, input gradients and weight gradients that have run.
    counts: Vec<[usize; 3]>,
    ranks: Vec<RankState>,
    link_free: Vec<u64>,
    ready: Vec<usize>,
    /// Per rank and entry of the last run, the message that it waited for, or [`NO_MESSAGE`].
    pub causes: Vec<Vec<usize>>,
    /// The arrivals of the messages that are sent once per step: of each tie, then of the norms of each stage on each rank.
    once: Vec<u64>,
    /// Per rank, the time at which it has sent its gradients and parameters to its replicas.
    exchange_free: Vec<u64>,
    /// Per stage, the arrival of its gradients or parameters at the replicas.
    exchanged: Vec<u64>,
}

/// The state of one rank.
#[derive(Debug, Clone, Copy, Default)]
struct RankState {
    head: usize,
    free: u64,
    /// Bytes held in addition to the resident ones.
    held: u64,
    /// The work of the entries that have not run.
    remaining: u64,
    /// The message that it waits for.
    blocked_on: usize,
}

/// The reason why a run ended before the end of its lists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stop {
    /// The head waits for a message.
    Blocked(usize),
    /// The lists cannot run, or not in time.
    Refused,
}

impl<'a> Evaluator<'a> {
    /// Creates an evaluator for lists of one problem.
    pub fn new(problem: &'a Problem<'a>) -> Self {
        let dependencies = problem.dependencies;
        let norms = match dependencies.has_global_norm() {
            true => problem.stages() * problem.ranks,
            false => 0,
        };
        Self {
            problem,
            turns: 0,
            arrivals: vec![NOT_MADE; problem.messages()],
            made_at: vec![0; problem.messages()],
            counts: vec![[0; 3]; problem.stages()],
            ranks: vec![RankState::default(); problem.ranks],
            link_free: vec![0; problem.ranks * problem.ranks],
            ready: Vec::with_capacity(problem.ranks),
            causes: vec![Vec::new(); problem.ranks],
            once: vec![NOT_MADE; dependencies.ties().len() + norms],
            exchange_free: vec![0; problem.ranks],
            exchanged: vec![0; problem.stages()],
        }
    }

    /// Returns the makespan of the lists, or `None` if they cannot run, exceed a memory limit, or
    /// take longer than `cutoff`. Linear in entries and messages.
    pub fn makespan(&mut self, lists: &Lists, cutoff: u64) -> Option<u64> {
        self.reset(lists);
        while let Some(rank) = self.ready.pop() {
            while self.ranks[rank].head < lists[rank].len() {
                match self.advance(rank, &lists[rank], cutoff) {
                    Ok(()) => {}
                    Err(Stop::Blocked(message)) => {
                        self.ranks[rank].blocked_on = message;
                        break;
                    }
                    Err(Stop::Refused) => return None,
                }
            }
        }
        let is_complete = |stage: &[usize; 3]| *stage == [self.problem.micro_batches; 3];
        if !self.counts.iter().all(is_complete) {
            return None;
        }
        let makespan = self.end_step();
        (makespan <= cutoff).then_some(makespan)
    }

    fn reset(&mut self, lists: &Lists) {
        self.arrivals.fill(NOT_MADE);
        self.counts.fill([0; 3]);
        self.link_free.fill(0);
        self.exchange_free.fill(0);
        self.once.fill(NOT_MADE);
        self.ready.clear();
        self.ready.extend((0..self.problem.ranks).rev());
        for (rank, state) in self.ranks.iter_mut().enumerate() {
            let work = lists[rank].iter().filter(|turn| !turn.is_paired);
            let work = work.map(|turn| self.problem.time(*turn));
            *state = RankState {
                remaining: sum(work),
                blocked_on: NO_MESSAGE,
                ..RankState::default()
            };
            self.causes[rank].clear();
        }
    }

    /// Runs the head of a list: an entry, or an overlapped pair.
    fn advance(&mut self, rank: usize, list: &[Turn], cutoff: u64) -> Result<(), Stop> {
        let position = self.ranks[rank].head;
        let first = list[position];
        let turns = list.get(position..=position + usize::from(first.is_paired));
        let turns = turns.ok_or(Stop::Refused)?;
        let last = turns[turns.len() - 1];
        self.turns += 1;
        let mut begin = (self.ranks[rank].free, NO_MESSAGE);
        for turn in turns {
            let k = next(self.counts[turn.stage()], turn.compute);
            let k = k.filter(|k| *k < self.problem.micro_batches);
            begin = self.receive(*turn, k.ok_or(Stop::Refused)?, begin)?;
        }
        let (start, cause) = begin;
        let mut end = start.saturating_add(self.problem.time(last));
        if first.is_paired {
            // A pair has the overhead of one action.
            add(&mut end, self.problem.costs.stages[first.stage()].forward);
        }
        let state = &mut self.ranks[rank];
        state.head += turns.len();
        state.free = end;
        state.remaining = state.remaining.saturating_sub(self.problem.time(last));
        if end.saturating_add(state.remaining) > cutoff {
            return Err(Stop::Refused);
        }
        for turn in turns {
            self.causes[rank].push(cause);
            let state = &mut self.ranks[rank];
            state.held = self.problem.held_after(state.held, *turn);
            if state.held > self.problem.budgets[rank] {
                return Err(Stop::Refused);
            }
        }
        for (position, turn) in (position..).zip(turns) {
            self.send(rank, *turn, position);
        }
        for turn in turns {
            count(&mut self.counts[turn.stage()], turn.compute);
        }
        self.end_stage(rank, last);
        Ok(())
    }

    /// Waits for the inputs of a program. Returns its earliest start, and the message that arrives last.
    fn receive(&self, turn: Turn, k: usize, begin: (u64, usize)) -> Result<(u64, usize), Stop> {
        let (mut start, mut cause) = begin;
        for read in self.problem.reads(turn.stage(), turn.compute) {
            let message = read.message + k;
            let arrival = self.arrivals[message];
            if arrival == NOT_MADE {
                return Err(Stop::Blocked(message));
            }
            if read.sent.is_some() {
                if arrival > start {
                    (start, cause) = (arrival, message);
                }
                start = start.saturating_add(self.problem.costs.overhead);
            }
        }
        Ok((start, cause))
    }

    /// Sends the outputs of a program, and wakes the rank that waits for them.
    fn send(&mut self, rank: usize, turn: Turn, position: usize) {
        let k = self.counts[turn.stage()][kind(turn.compute)];
        for made in self.problem.made(turn.stage(), turn.compute) {
            let message = made.message + k;
            self.made_at[message] = position;
            self.arrivals[message] = match made.sent {
                Some(sent) => self.transfer(rank, sent),
                None => 0,
            };
            let reader = &mut self.ranks[made.reader];
            if reader.blocked_on == message {
                reader.blocked_on = NO_MESSAGE;
                self.ready.push(made.reader);
            }
        }
    }

    /// Sends a message and returns the time at which it arrives.
    fn transfer(&mut self, rank: usize, sent: Sent) -> u64 {
        let (free, link_free) = (&mut self.ranks[rank].free, &mut self.link_free[sent.link]);
        self.problem.send(free, link_free, sent)
    }

    /// Runs the actions after the last backward that a stage waits for, of each stage for which it has just run.
    fn end_stage(&mut self, rank: usize, turn: Turn) {
        let problem = self.problem;
        if !turn.compute.ends_backward() || !self.has_ended(turn.stage()) {
            return;
        }
        for &stage in &problem.stages_of[rank] {
            let waits = &problem.update_waits[stage];
            let is_last = waits.contains(&turn.stage());
            if is_last && waits.iter().all(|stage| self.has_ended(*stage)) {
                for action in &problem.ends[stage] {
                    self.act(rank, *action);
                }
            }
        }
    }

    /// Returns whether all backwards of a stage have run.
    fn has_ended(&self, stage: usize) -> bool {
        self.counts[stage][WEIGHT] == self.problem.micro_batches
    }

    /// Runs the actions at the end of every rank's list, and returns the time at which the last rank is done.
    fn end_step(&mut self) -> u64 {
        let tails = self.problem.tails.iter();
        let mut tails: Vec<&[Action]> = tails.map(Vec::as_slice).collect();
        // `lower` orders these actions so that two ranks never wait for each other.
        while tails.iter().any(|tail| !tail.is_empty()) {
            for (rank, tail) in tails.iter_mut().enumerate() {
                while let Some((action, rest)) = tail.split_first()
                    && self.act(rank, *action)
                {
                    *tail = rest;
                }
            }
        }
        self.ends().max().unwrap_or(0)
    }

    /// Runs an action that is no program, if the message that it waits for has been sent.
    fn act(&mut self, rank: usize, action: Action) -> bool {
        let problem = self.problem;
        let arrival = match action {
            Action::Send(message) => {
                let to = problem.rank_of(message.receiver().index());
                let arrival = self.transfer(rank, problem.sent(rank, to, 0));
                *self.arrival(message) = arrival;
                return true;
            }
            // The arrival of a sent message is less, because `Problem::send` limits it.
            Action::Receive(message) => match *self.arrival(message) {
                NOT_MADE => return false,
                arrival => arrival,
            },
            Action::Sum { stage } | Action::Gather { stage } => self.exchanged[stage.index()],
            _ => 0,
        };
        let free = &mut self.ranks[rank].free;
        *free = (*free).max(arrival);
        *free = free.saturating_add(problem.costs.time(&action));
        if let Action::Reduce { stage } | Action::Update { stage } = action {
            let (busy, latency) = problem.exchanges[stage.index()];
            let sent = &mut self.exchange_free[rank];
            *sent = (*sent).max(*free).saturating_add(busy);
            self.exchanged[stage.index()] = sent.saturating_add(latency);
        }
        true
    }

    /// Returns the arrival of a message that is sent once per step.
    fn arrival(&mut self, message: Message) -> &mut u64 {
        let problem = self.problem;
        let to = problem.rank_of(message.receiver().index());
        let ties = problem.dependencies.ties();
        let index = match message {
            Message::Tie(tie) => ties.partition_point(|of| *of < tie),
            _ => ties.len() + message.sender().index() * problem.ranks + to,
        };
        &mut self.once[index]
    }

    /// Returns the end of each rank in the last run.
    pub fn ends(&self) -> impl Iterator<Item = u64> + '_ {
        self.ranks.iter().map(|rank| rank.free)
    }
}
