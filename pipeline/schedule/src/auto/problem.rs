//! The inputs of a search in dense arrays, so that a list is timed in a few nanoseconds per action.

use tinderbox_ids::{MicroBatchIndex, RankIndex, StageIndex};

use crate::action::Action;
use crate::arithmetic::sum;
use crate::dependencies::{Dependencies, Edge};
use crate::lists::{Schedule, ScheduleMode};
use crate::lower::Lowering;
use crate::simulate::Costs;
use crate::task::{Compute, Task};

/// One entry of a rank's list during the search: a program of a stage, without its micro-batch.
///
/// Every stage runs each of its programs in ascending micro-batch order. The micro-batch is therefore the
/// number of entries of that kind before this one, and an entry can move without a new label.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Turn {
    /// The stage, below the number of stages.
    pub stage: StageIndex,
    /// The program.
    pub compute: Compute,
    /// Whether it is the forward of an overlapped pair; the backward is the next entry.
    pub is_paired: bool,
}

impl Turn {
    /// Creates an entry that is not part of a pair.
    pub const fn new(stage: StageIndex, compute: Compute) -> Self {
        Self {
            stage,
            compute,
            is_paired: false,
        }
    }

    /// Returns the stage, for indexing.
    pub const fn stage(self) -> usize {
        self.stage.index()
    }
}

/// The arrival time of a message that does not exist yet.
pub(super) const NOT_MADE: u64 = u64::MAX;

/// The list of each rank.
pub(super) type Lists = Vec<Vec<Turn>>;

/// An edge of the problem.
#[derive(Debug, Clone, Copy)]
pub(super) struct Values {
    /// The first of the edge's messages; the message of micro-batch `k` is `k` further.
    pub message: usize,
    /// The transfer of the values, if the reader is on another rank.
    pub sent: Option<Sent>,
    /// The rank that reads the values.
    pub reader: usize,
}

/// A transfer between two ranks.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sent {
    /// The pair of ranks, for indexing.
    pub link: usize,
    /// Ticks that the link is busy.
    pub transfer: u64,
    /// Ticks from the end of the transfer to the arrival.
    pub latency: u64,
}

/// Returns the bytes that a rank with some stages holds under every list: the resident bytes, and the maximum bytes that
/// one of its programs holds in addition.
pub(super) fn fixed_bytes(costs: &Costs, stages: &[usize]) -> u64 {
    let costs = || stages.iter().map(|&stage| &costs.stages[stage]);
    let transient = costs().map(|stage| stage.transient_bytes).max();
    let resident = costs().map(|stage| stage.resident_bytes);
    sum(resident.chain(transient))
}

/// The step to schedule: dependencies, costs and limits, as arrays.
pub(super) struct Problem<'a> {
    pub dependencies: &'a Dependencies,
    pub costs: &'a Costs,
    pub stage_to_rank: &'a [RankIndex],
    pub micro_batches: usize,
    /// The number of ranks.
    pub ranks: usize,
    /// The stages of each rank, in ascending order.
    pub stages_of: Vec<Vec<usize>>,
    /// The bytes that each rank may hold for its micro-batches: its limit less [`fixed_bytes`], at least zero.
    pub budgets: Vec<u64>,
    /// Per stage and program, its ticks with the overhead of the action.
    pub times: Vec<[u64; 4]>,
    /// The edges that a stage's program reads, per stage and program.
    reads: Vec<Vec<Values>>,
    /// The edges that carry the outputs of a stage's program.
    made: Vec<Vec<Values>>,
    /// For each stage, the stages of its rank whose last backwards its update waits for.
    pub update_waits: Vec<Vec<usize>>,
    /// The actions after the last backward of each stage.
    pub ends: Vec<Vec<Action>>,
    /// The actions at the end of each rank's list.
    pub tails: Vec<Vec<Action>>,
    /// For each stage, the ticks for which its rank sends to its replicas, and the latency.
    pub exchanges: Vec<(u64, u64)>,
}

impl<'a> Problem<'a> {
    /// Creates the arrays of a step. Stages, map, dependencies and costs must be consistent.
    pub fn new(
        stage_to_rank: &'a [RankIndex],
        micro_batches: usize,
        dependencies: &'a Dependencies,
        costs: &'a Costs,
        limits: &[u64],
    ) -> Self {
        let last = stage_to_rank.iter().max();
        let ranks = last.map_or(0, |last| last.index() + 1);
        let mut stages_of = vec![Vec::new(); ranks];
        for (stage, rank) in stage_to_rank.iter().enumerate() {
            stages_of[rank.index()].push(stage);
        }
        let budgets = stages_of.iter().enumerate().map(|(rank, stages)| {
            let fixed = fixed_bytes(costs, stages);
            let limit = limits.get(rank);
            limit.map_or(u64::MAX, |limit| limit.saturating_sub(fixed))
        });
        let times = costs.stages.iter().map(|stage| {
            Compute::ALL.map(|compute| stage.time(compute).saturating_add(costs.overhead))
        });
        let exchange = |(stage, rank): (usize, &RankIndex)| {
            costs.exchange(StageIndex::new(stage), *rank, ranks)
        };
        let placed = Schedule::idle(ScheduleMode::Training, stage_to_rank);
        let lowering = Lowering::new(&placed, dependencies);
        let stages = (0..stage_to_rank.len()).map(StageIndex::new);
        let waits = |stage| lowering.update_waits(stage).map(StageIndex::index);
        let every_rank = (0..ranks).map(RankIndex::new);
        let mut problem = Self {
            update_waits: stages.clone().map(|stage| waits(stage).collect()).collect(),
            ends: stages.map(|stage| lowering.end_stage(stage)).collect(),
            tails: every_rank.map(|rank| lowering.end_step(rank)).collect(),
            exchanges: stage_to_rank.iter().enumerate().map(exchange).collect(),
            dependencies,
            costs,
            stage_to_rank,
            micro_batches,
            ranks,
            budgets: budgets.collect(),
            times: times.collect(),
            stages_of,
            reads: Vec::new(),
            made: Vec::new(),
        };
        problem.enter_edges();
        problem
    }

    /// Returns the number of stages.
    pub fn stages(&self) -> usize {
        self.stage_to_rank.len()
    }

    /// Returns the rank of a stage.
    pub fn rank_of(&self, stage: usize) -> usize {
        self.stage_to_rank[stage].index()
    }

    /// Returns the number of messages between programs, also of programs on one rank.
    pub fn messages(&self) -> usize {
        self.dependencies.edges().len() * self.micro_batches
    }

    /// Returns the edges that a stage's program reads, in the order in which they are received.
    pub fn reads(&self, stage: usize, compute: Compute) -> &[Values] {
        &self.reads[stage * 4 + compute.slot()]
    }

    /// Returns the edges that carry the outputs of a stage's program, in the order in which they are sent.
    pub fn made(&self, stage: usize, compute: Compute) -> &[Values] {
        &self.made[stage * 4 + compute.slot()]
    }

    /// Returns the ticks of a program with its overhead.
    pub fn time(&self, turn: Turn) -> u64 {
        self.times[turn.stage()][turn.compute.slot()]
    }

    /// Returns the minimum ticks of a stage's backward, in one part or in two.
    pub fn least_backward(&self, stage: usize) -> u64 {
        let [_, whole, input, weight] = self.times[stage];
        whole.min(input.saturating_add(weight))
    }

    /// Returns the minimum ticks of a stage for a micro-batch.
    pub fn least_work(&self, stage: usize) -> u64 {
        let [forward, ..] = self.times[stage];
        forward.saturating_add(self.least_backward(stage))
    }

    /// Sends a message of a rank that is free at a time, and returns when it arrives.
    pub fn send(&self, free: &mut u64, link_free: &mut u64, sent: Sent) -> u64 {
        *free = free.saturating_add(self.costs.overhead);
        *link_free = (*link_free).max(*free).saturating_add(sent.transfer);
        let arrival = link_free.saturating_add(sent.latency);
        arrival.min(NOT_MADE - 1)
    }

    /// Returns the transfer of a message of some bytes.
    pub fn sent(&self, from: usize, to: usize, bytes: u64) -> Sent {
        let ends = [from, to].map(RankIndex::new);
        let costs = self.costs.link_between(ends[0], ends[1], self.ranks);
        Sent {
            link: from * self.ranks + to,
            transfer: costs.transfer(bytes),
            latency: costs.latency,
        }
    }

    /// Returns the bytes that a rank holds after an entry, given the bytes before it.
    pub fn held_after(&self, held: u64, turn: Turn) -> u64 {
        self.costs.stages[turn.stage()].held_after(held, turn.compute)
    }

    /// Returns the maximum bytes that each rank holds in addition to the resident bytes.
    pub fn peaks(&self, lists: &Lists) -> Vec<u64> {
        let peak = |list: &Vec<Turn>| {
            let (mut held, mut peak) = (0, 0);
            for turn in list {
                held = self.held_after(held, *turn);
                peak = peak.max(held);
            }
            peak
        };
        lists.iter().map(peak).collect()
    }

    /// Returns the values of an edge of the dependencies.
    pub fn values(&self, edge: Edge) -> Values {
        let [from, reader] = [edge.from, edge.to].map(|end| self.rank_of(end.stage.index()));
        let bytes = self.costs.message_bytes.get(&edge).copied().unwrap_or(0);
        Values {
            message: self.dependencies.position(edge).unwrap_or(0) * self.micro_batches,
            sent: (reader != from).then(|| self.sent(from, reader, bytes)),
            reader,
        }
    }

    fn enter_edges(&mut self) {
        let values = |edge: Edge| self.values(edge);
        let (mut reads, mut made) = (Vec::new(), Vec::new());
        for (stage, compute) in (0..self.stages()).flat_map(|s| Compute::ALL.map(|c| (s, c))) {
            let task = Task::new(StageIndex::new(stage), compute, MicroBatchIndex::new(0));
            reads.push(self.dependencies.read_by(task).map(values).collect());
            made.push(self.dependencies.made_by(task).map(values).collect());
        }
        (self.reads, self.made) = (reads, made);
    }

    /// Returns the lists of a schedule, if it has these stages and micro-batches and every stage runs each
    /// of its programs in ascending micro-batch order.
    pub fn lists_of(&self, schedule: &Schedule) -> Option<Lists> {
        let mut counts = vec![[0; 3]; self.stages()];
        let mut lists = vec![Vec::new(); self.ranks];
        for (list, actions) in lists.iter_mut().zip(&schedule.ranks) {
            for action in actions {
                let tasks = action.tasks();
                for (index, task) in tasks.iter().enumerate() {
                    let counts = counts.get_mut(task.stage.index())?;
                    if count(counts, task.compute) != task.micro_batch.index() {
                        return None;
                    }
                    list.push(Turn {
                        is_paired: tasks.len() == 2 && index == 0,
                        ..Turn::new(task.stage, task.compute)
                    });
                }
            }
        }
        Some(lists)
    }

    /// Returns the schedule of the lists.
    pub fn schedule_of(&self, name: &str, lists: &Lists) -> Schedule {
        let mut counts = vec![[0; 3]; self.stages()];
        let mut label = |turn: Turn| {
            let micro_batch = count(&mut counts[turn.stage()], turn.compute);
            Task::new(turn.stage, turn.compute, MicroBatchIndex::new(micro_batch))
        };
        let mut actions = |list: &Vec<Turn>| {
            let mut actions = Vec::with_capacity(list.len());
            let mut turns = list.iter();
            while let Some(&turn) = turns.next() {
                let first = label(turn);
                match turns.as_slice().first() {
                    Some(&second) if turn.is_paired => {
                        turns.next();
                        actions.push(Action::Overlap([first, label(second)]));
                    }
                    _ => actions.push(Action::Compute(first)),
                }
            }
            actions
        };
        let ranks = lists.iter().map(&mut actions).collect();
        let map = self.stage_to_rank.to_vec();
        Schedule::training(name, map, self.micro_batches, ranks)
    }
}

/// The three kinds of work of a stage on a micro-batch: `F`, then the part of the backward that
/// others wait for (an `I`, or a whole `B`), then the rest (a `W`, or nothing after a `B`).
pub(super) const FORWARD: usize = 0;
pub(super) const INPUT: usize = 1;
pub(super) const WEIGHT: usize = 2;

/// Returns the kind of a program's work.
pub(super) const fn kind(compute: Compute) -> usize {
    match compute {
        Compute::Forward => FORWARD,
        Compute::Backward | Compute::InputGradient => INPUT,
        Compute::WeightGradient => WEIGHT,
    }
}

/// Counts a program of a stage, in its forwards, input gradients or weight gradients, and returns its
/// micro-batch. A whole backward counts as both of its parts.
pub(super) const fn count(counts: &mut [usize; 3], compute: Compute) -> usize {
    counts[WEIGHT] += matches!(compute, Compute::Backward) as usize;
    let counted = &mut counts[kind(compute)];
    *counted += 1;
    *counted - 1
}

/// Returns the micro-batch of a stage's next program, given the numbers of forwards, input gradients and weight gradients
/// that have run; `None` if the program can't be next.
pub(super) fn next(counts: [usize; 3], compute: Compute) -> Option<usize> {
    let [forwards, inputs, weights] = counts;
    let is_legal = match compute {
        Compute::Forward => true,
        Compute::Backward => inputs < forwards && inputs == weights,
        Compute::InputGradient => inputs < forwards,
        Compute::WeightGradient => weights < inputs,
    };
    is_legal.then_some(counts[kind(compute)])
}
