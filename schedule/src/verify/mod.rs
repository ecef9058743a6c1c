//! The verifier: rejects lists that cannot run, and names the action.

mod symbolic;
mod table;

use std::collections::BTreeMap;

use crate::action::{Action, Compute, Message, Task};
use crate::dependencies::{Dependencies, Edge, Tie};
use crate::error::{Rule, VerifyError};
use crate::index::{GroupIndex, MicroBatchIndex, RankIndex, StageIndex};
use crate::lists::{Form, Schedule, ScheduleMode};

use table::Table;

/// Checks that every rank can run its list to the end, and that the step is then complete.
///
/// A list that passes has every action once, on the rank of its stage, each after what it needs;
/// every send has its receive; gradients are summed in micro-batch order; and ranks never wait for each
/// other in a cycle. Compute-only lists are checked with their dependencies implied. Linear in
/// actions and in edges times micro-batches, times logarithms of the numbers of edges and ranks; a
/// clip by the norm of all gradients has as many messages as stages times ranks.
///
/// # Errors
///
/// The first fault found, as a [`VerifyError`].
pub fn verify(schedule: &Schedule, dependencies: &Dependencies) -> Result<(), VerifyError> {
    verified_order(schedule, dependencies).map(|_| ())
}

/// Returns rank and position of every action, in an order in which a valid schedule can run them.
pub(crate) fn verified_order(
    schedule: &Schedule,
    dependencies: &Dependencies,
) -> Result<Vec<(RankIndex, usize)>, VerifyError> {
    check_counts(schedule, dependencies)?;
    let checks = Checks {
        table: Table::build(schedule, dependencies)?,
    };
    checks.backwards()?;
    checks.edges()?;
    if schedule.mode == ScheduleMode::Training && schedule.form == Form::Lowered {
        checks.updates()?;
        checks.ties()?;
        if dependencies.has_global_norm() {
            checks.norms()?;
        }
    }
    symbolic::run(&checks.table)
}

/// Checks everything except the lists.
fn check_counts(schedule: &Schedule, dependencies: &Dependencies) -> Result<(), VerifyError> {
    let Schedule {
        stages,
        micro_batches,
        ..
    } = *schedule;
    if stages == 0 || micro_batches == 0 {
        return Err(VerifyError::Empty {
            stages,
            micro_batches,
        });
    }
    if schedule.stage_to_rank.len() != stages {
        let found = schedule.stage_to_rank.len();
        return Err(VerifyError::StageMap {
            expected: stages,
            found,
        });
    }
    let world_size = schedule.world_size();
    for (stage, &rank) in schedule.stage_to_rank.iter().enumerate() {
        if rank.index() >= world_size {
            let stage = StageIndex::new(stage);
            return Err(VerifyError::NoSuchRank {
                stage,
                rank,
                world_size,
            });
        }
    }
    if dependencies.stages() != stages {
        let found = dependencies.stages();
        return Err(VerifyError::Dependencies {
            expected: stages,
            found,
        });
    }
    let joins = |a: StageIndex, b: StageIndex| a != b && a.index().max(b.index()) < stages;
    for &edge in dependencies.edges() {
        if !joins(edge.from.stage, edge.to.stage) {
            return Err(VerifyError::Edge { edge, stages });
        }
    }
    for &tie in dependencies.ties() {
        if !joins(tie.owner, tie.replica) {
            return Err(VerifyError::Tie { tie, stages });
        }
    }
    Ok(())
}

/// Checks with the table only: that actions exist, and their order on each rank.
struct Checks<'a> {
    table: Table<'a>,
}

impl Checks<'_> {
    /// Checks that every stage has a forward and, in training, a whole or split backward after it per
    /// micro-batch, and sums its gradients in micro-batch order.
    fn backwards(&self) -> Result<(), VerifyError> {
        let schedule = self.table.schedule;
        for stage in (0..schedule.stages).map(StageIndex::new) {
            let mut last = None;
            for micro_batch in (0..schedule.micro_batches).map(MicroBatchIndex::new) {
                let task = |compute| Task {
                    stage,
                    compute,
                    micro_batch,
                };
                let forward = self.require(task(Compute::Forward))?;
                if schedule.mode == ScheduleMode::ForwardOnly {
                    continue;
                }
                let end = self.backward(stage, micro_batch, forward)?;
                if let Some(last) = last {
                    self.order(stage, last, end, Rule::GradientOrder)?;
                }
                last = Some(end);
            }
        }
        Ok(())
    }

    /// Checks the backward of one micro-batch and returns where it ends.
    fn backward(
        &self,
        stage: StageIndex,
        micro_batch: MicroBatchIndex,
        forward: usize,
    ) -> Result<usize, VerifyError> {
        let task = |compute| Task {
            stage,
            compute,
            micro_batch,
        };
        let find = |compute| self.table.task(stage, compute, micro_batch);
        let parts = (find(Compute::InputGradient), find(Compute::WeightGradient));
        if let (None, None) = parts {
            let whole = self.require(task(Compute::Backward))?;
            self.order(stage, forward, whole, Rule::BackwardAfterForward)?;
            return Ok(whole);
        }
        if let (Some(whole), Some(part)) = (find(Compute::Backward), parts.0.or(parts.1)) {
            let rank = self.table.rank(stage);
            let at = self.table.place(rank, part);
            let whole = Box::new(self.table.place(rank, whole));
            return Err(VerifyError::TwoBackwards { at, whole });
        }
        let input = self.require(task(Compute::InputGradient))?;
        let weight = self.require(task(Compute::WeightGradient))?;
        self.order(stage, forward, input, Rule::BackwardAfterForward)?;
        self.order(stage, input, weight, Rule::WeightAfterInput)?;
        Ok(weight)
    }

    /// Checks that every edge between two ranks has its messages, and every edge within a rank its order.
    fn edges(&self) -> Result<(), VerifyError> {
        let Schedule {
            micro_batches,
            form,
            ..
        } = *self.table.schedule;
        let edges = self.table.dependencies.edges().iter().copied();
        for edge in edges.filter(|edge| self.table.schedule.has_edge(*edge)) {
            let is_sent = self
                .table
                .schedule
                .are_apart(edge.from.stage, edge.to.stage);
            for micro_batch in (0..micro_batches).map(MicroBatchIndex::new) {
                // Both exist: `backwards` has checked every program that can be an endpoint.
                let (Some(producer), Some(consumer)) = (
                    self.table.end(edge.from, micro_batch),
                    self.table.end(edge.to, micro_batch),
                ) else {
                    continue;
                };
                if !is_sent {
                    let rule = Rule::ConsumerAfterProducer;
                    self.order(edge.from.stage, producer, consumer, rule)?;
                } else if form == Form::Lowered {
                    let (send, receive) = self.pair(Message::Values { edge, micro_batch })?;
                    self.order(edge.from.stage, producer, send, Rule::SendAfterCompute)?;
                    self.order(edge.to.stage, receive, consumer, Rule::ComputeAfterReceive)?;
                    self.sent_before_free(edge, micro_batch, send)?;
                }
            }
        }
        Ok(())
    }

    /// Checks that the outputs of a forward are sent before the backward of its micro-batch ends and frees them.
    fn sent_before_free(
        &self,
        edge: Edge,
        micro_batch: MicroBatchIndex,
        send: usize,
    ) -> Result<(), VerifyError> {
        let find = |compute| self.table.task(edge.from.stage, compute, micro_batch);
        let end = find(Compute::Backward).or_else(|| find(Compute::WeightGradient));
        match end {
            Some(end) if edge.from.compute == Compute::Forward => {
                self.order(edge.from.stage, send, end, Rule::SendBeforeFree)
            }
            _ => Ok(()),
        }
    }

    /// Checks that every rank has the norms of all stages before its first update. There are as many messages as
    /// stages times ranks.
    fn norms(&self) -> Result<(), VerifyError> {
        let schedule = self.table.schedule;
        let mut first_updates: BTreeMap<RankIndex, usize> = BTreeMap::new();
        for stage in (0..schedule.stages).map(StageIndex::new) {
            let update = self.update(stage)?;
            let first = first_updates
                .entry(self.table.rank(stage))
                .or_insert(update);
            *first = update.min(*first);
        }
        for (rank, to) in self.table.representatives() {
            // Every rank with a stage has an update.
            let update = first_updates.get(&rank).copied().unwrap_or(0);
            for from in (0..schedule.stages).map(StageIndex::new) {
                let reduce = self.table.reduce(from).unwrap_or(0);
                if !schedule.are_apart(from, to) {
                    self.order(to, reduce, update, Rule::UpdateAfterNorms)?;
                    continue;
                }
                let (send, receive) = self.pair(Message::Norm { from, to })?;
                self.order(from, reduce, send, Rule::NormAfterReduce)?;
                self.order(to, receive, update, Rule::UpdateAfterNorms)?;
            }
        }
        Ok(())
    }

    /// Checks that every stage has its reduce and update after its last backward.
    fn updates(&self) -> Result<(), VerifyError> {
        for stage in (0..self.table.schedule.stages).map(StageIndex::new) {
            let last = self.last_backward(stage);
            let group = GroupIndex::new(stage.index());
            let reduce = self.table.reduce(stage);
            let reduce = self.present(stage, reduce, Action::Reduce { stage, group })?;
            let update = self.update(stage)?;
            self.order(stage, last, update, Rule::UpdateAfterBackward)?;
            self.order(stage, last, reduce, Rule::ReduceAfterBackward)?;
            self.order(stage, reduce, update, Rule::UpdateAfterReduce)?;
        }
        Ok(())
    }

    /// Checks that every tie sends new values to a stage after its last use of the old ones.
    fn ties(&self) -> Result<(), VerifyError> {
        for &tie in self.table.dependencies.ties() {
            let Tie { owner, replica } = tie;
            let update = self.update(owner)?;
            if self.table.schedule.are_apart(owner, replica) {
                let (send, receive) = self.pair(Message::Tie(tie))?;
                self.order(owner, update, send, Rule::SendAfterUpdate)?;
                self.order(
                    replica,
                    self.update(replica)?,
                    receive,
                    Rule::ReceiveAfterUpdate,
                )?;
            } else {
                self.order(
                    owner,
                    self.last_backward(replica),
                    update,
                    Rule::UpdateAfterReplica,
                )?;
            }
        }
        Ok(())
    }

    /// Returns where the last backward of a stage ends; the one of the last micro-batch, because gradients
    /// are summed in order.
    fn last_backward(&self, stage: StageIndex) -> usize {
        let last = MicroBatchIndex::new(self.table.schedule.micro_batches - 1);
        let find = |compute| self.table.task(stage, compute, last);
        find(Compute::Backward)
            .or_else(|| find(Compute::WeightGradient))
            .unwrap_or(0)
    }

    fn update(&self, stage: StageIndex) -> Result<usize, VerifyError> {
        self.present(stage, self.table.update(stage), Action::Update { stage })
    }

    fn require(&self, task: Task) -> Result<usize, VerifyError> {
        let position = self.table.task(task.stage, task.compute, task.micro_batch);
        self.present(task.stage, position, Action::Compute(task))
    }

    fn present(
        &self,
        stage: StageIndex,
        position: Option<usize>,
        action: Action,
    ) -> Result<usize, VerifyError> {
        let rank = self.table.rank(stage);
        position.ok_or(VerifyError::Missing { rank, action })
    }

    /// Returns the positions of a message's send and receive.
    fn pair(&self, message: Message) -> Result<(usize, usize), VerifyError> {
        let sender = self.table.rank(message.sender());
        let receiver = self.table.rank(message.receiver());
        let (send, receive) = (Action::Send(message), Action::Receive(message));
        match (self.table.send(message), self.table.receive(message)) {
            (Some(send), Some(receive)) => Ok((send, receive)),
            (Some(position), None) => {
                let at = self.table.place(sender, position);
                Err(VerifyError::Unpaired {
                    at,
                    rank: receiver,
                    missing: Box::new(receive),
                })
            }
            (None, Some(position)) => {
                let at = self.table.place(receiver, position);
                Err(VerifyError::Unpaired {
                    at,
                    rank: sender,
                    missing: Box::new(send),
                })
            }
            (None, None) => Err(VerifyError::Missing {
                rank: sender,
                action: send,
            }),
        }
    }

    /// Checks that of two actions of a stage's rank the first is before the second.
    fn order(
        &self,
        stage: StageIndex,
        first: usize,
        second: usize,
        rule: Rule,
    ) -> Result<(), VerifyError> {
        if first < second {
            return Ok(());
        }
        let rank = self.table.rank(stage);
        let early = self.table.place(rank, second);
        let late = Box::new(self.table.place(rank, first));
        Err(VerifyError::OutOfOrder { early, late, rule })
    }
}
