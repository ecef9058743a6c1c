//! Lowering: from compute actions to all actions that a rank executes.

use std::collections::BTreeMap;

use tinderbox_ids::{RankIndex, StageIndex};

use crate::action::{Action, Message};
use crate::dependencies::{Dependencies, Edge, Tie};
use crate::lists::{Form, Schedule, ScheduleMode, stages_by_rank};
use crate::task::Task;

/// Adds sends, receives, reduces and updates to the compute actions of a schedule.
///
/// - A send is directly after the program that computes the values, a receive directly before the
///   program that reads them. Links buffer, so an early send costs nothing and a late receive waits
///   least. No compute action waits that could run. A runtime posts all receives of a step before
///   it runs the list.
/// - Stages on one rank need no message.
/// - A stage's gradients are reduced and its parameters updated directly after its last backward, while
///   other stages of the rank, and other ranks, still compute. If a stage on the same rank shares
///   the parameters, both are also after the last backward of that stage. Tied values are received last, so two stages
///   that own each other's ties do not wait for each other.
/// - With a clip by the norm of all gradients, every stage sends its norms to all other ranks after
///   its reduce. The updates are at the end, after the norms of all other stages.
/// - With replicas, everything after the reduces is at the end: first all sums, at last all gathers. A reduce and an
///   update only send, so replicas that run other lists never wait for each other in a cycle. A replica without
///   micro-batches reduces at once.
///
/// Actions other than compute are derived again, so lowering twice equals lowering once. A list
/// that cannot run lowers to a list that [`verify`](crate::verify) rejects. Linear in actions and
/// messages.
pub fn lower(schedule: &Schedule, dependencies: &Dependencies) -> Schedule {
    let lowering = Lowering::new(schedule, dependencies);
    let ranks = (0..schedule.world_size()).map(RankIndex::new);
    schedule.with_lists(Form::Lowered, ranks.map(|rank| lowering.list(rank)))
}

/// Derives the actions other than compute from a schedule's map and the dependencies.
pub(crate) struct Lowering<'a> {
    schedule: &'a Schedule,
    dependencies: &'a Dependencies,
    stages: BTreeMap<RankIndex, Vec<StageIndex>>,
}

impl<'a> Lowering<'a> {
    pub(crate) fn new(schedule: &'a Schedule, dependencies: &'a Dependencies) -> Self {
        Self {
            schedule,
            dependencies,
            stages: stages_by_rank(&schedule.stage_to_rank),
        }
    }

    /// Returns the whole list of one rank, from its compute actions.
    fn list(&self, rank: RankIndex) -> Vec<Action> {
        let actions = self.schedule.actions(rank).iter();
        let computes = actions.filter(|action| !action.tasks().is_empty());
        let is_training = self.schedule.mode == ScheduleMode::Training;
        let mut last: BTreeMap<StageIndex, usize> = BTreeMap::new();
        for (position, action) in computes.clone().enumerate() {
            let tasks = action.tasks().iter();
            let backwards = tasks.filter(|task| task.compute.ends_backward());
            last.extend(backwards.map(|task| (task.stage, position)));
        }
        // The stages whose updates may run after each compute action.
        let mut ends: BTreeMap<usize, Vec<StageIndex>> = BTreeMap::new();
        for stage in self.stages_of(rank).filter(|_| is_training) {
            let ends_of_all = self.update_waits(stage).filter_map(|of| last.get(&of));
            if let Some(&end) = ends_of_all.max() {
                ends.entry(end).or_default().push(stage);
            }
        }
        let mut list = Vec::new();
        if self.schedule.micro_batches == 0 && is_training {
            list.extend(self.stages_of(rank).map(|stage| Action::Reduce { stage }));
        }
        for (position, action) in computes.enumerate() {
            for task in action.tasks() {
                let edges = self.dependencies.read_by(*task);
                let messages = edges.filter_map(|edge| self.message(edge, task));
                list.extend(messages.map(Action::Receive));
            }
            list.push(*action);
            for task in action.tasks() {
                let edges = self.dependencies.made_by(*task);
                let messages = edges.filter_map(|edge| self.message(edge, task));
                list.extend(messages.map(Action::Send));
            }
            for stage in ends.get(&position).into_iter().flatten() {
                list.extend(self.end_stage(*stage));
            }
        }
        if is_training {
            list.extend(self.end_step(rank));
        }
        list.shrink_to_fit();
        list
    }

    fn stages_of(&self, rank: RankIndex) -> impl Iterator<Item = StageIndex> {
        self.stages.get(&rank).into_iter().flatten().copied()
    }

    /// Returns the stages of a stage's rank whose last backwards its update waits for: the stages that share its parameters,
    /// and itself.
    pub(crate) fn update_waits(&self, stage: StageIndex) -> impl Iterator<Item = StageIndex> {
        let ties = self.dependencies.ties().iter();
        let shared =
            ties.filter(move |tie| tie.owner == stage && !self.schedule.are_apart(stage, tie.copy));
        shared.map(|tie| tie.copy).chain([stage])
    }

    /// Returns the message of an edge of a task, if the edge joins two ranks.
    fn message(&self, edge: Edge, task: &Task) -> Option<Message> {
        let micro_batch = task.micro_batch;
        let is_apart = self.schedule.are_apart(edge.from.stage, edge.to.stage);
        (is_apart && self.schedule.has_edge(edge)).then_some(Message::Values { edge, micro_batch })
    }

    /// Returns the actions after the last backward of a stage.
    pub(crate) fn end_stage(&self, stage: StageIndex) -> Vec<Action> {
        let mut list = vec![Action::Reduce { stage }];
        let dependencies = self.dependencies;
        match (dependencies.has_replicas(), dependencies.has_global_norm()) {
            (true, _) => {}
            (false, true) => self.send_norms(stage, &mut list),
            (false, false) => {
                list.push(Action::Update { stage });
                self.send_ties(stage, &mut list);
            }
        }
        list
    }

    fn send_norms(&self, stage: StageIndex, list: &mut Vec<Action>) {
        // The lowest stage of a rank represents all its stages.
        let from = stage;
        let lowest = self.stages.values();
        let others = lowest.filter_map(|stages| stages.first().copied());
        let others = others.filter(|to| self.schedule.are_apart(from, *to));
        list.extend(others.map(|to| Action::Send(Message::Norm { from, to })));
    }

    fn send_ties(&self, stage: StageIndex, list: &mut Vec<Action>) {
        let ties = self.ties().filter(|tie| tie.owner == stage);
        list.extend(ties.map(|tie| Action::Send(Message::Tie(tie))));
    }

    /// Returns the actions at the end of the list of a rank.
    pub(crate) fn end_step(&self, rank: RankIndex) -> Vec<Action> {
        let mut list = Vec::new();
        let stages = || self.stages_of(rank);
        let has_replicas = self.dependencies.has_replicas();
        let has_norm = self.dependencies.has_global_norm();
        if has_replicas {
            list.extend(stages().map(|stage| Action::Sum { stage }));
            for stage in stages().filter(|_| has_norm) {
                self.send_norms(stage, &mut list);
            }
        }
        if has_norm && let Some(to) = stages().next() {
            let all = (0..self.schedule.stage_to_rank.len()).map(StageIndex::new);
            let others = all.filter(|from| self.schedule.are_apart(*from, to));
            list.extend(others.map(|from| Action::Receive(Message::Norm { from, to })));
        }
        if has_replicas {
            list.extend(stages().map(|stage| Action::Update { stage }));
        }
        for stage in stages().filter(|_| has_replicas || has_norm) {
            list.push(match has_replicas {
                true => Action::Gather { stage },
                false => Action::Update { stage },
            });
            self.send_ties(stage, &mut list);
        }
        let ties = self.ties();
        let copied = ties.filter(|tie| self.schedule.rank_of(tie.copy) == Some(rank));
        list.extend(copied.map(|tie| Action::Receive(Message::Tie(tie))));
        list
    }

    /// Returns the ties between two ranks.
    fn ties(&self) -> impl Iterator<Item = Tie> + '_ {
        let all = self.dependencies.ties().iter().copied();
        all.filter(|tie| self.schedule.are_apart(tie.owner, tie.copy))
    }
}

#[cfg(test)]
mod tests {
    use crate::{Endpoint, forward_only, one_f_one_b};

    use super::*;

    #[test]
    fn a_chain() {
        let lowered = lower(&one_f_one_b(2, 2), &Dependencies::chain(2));
        insta::assert_snapshot!(lowered, @r"
        0F0 0F0>1F0 0F1 0F1>1F1 0B0<1B0 0B0 0B1<1B1 0B1 0R0 0U
        1F0<0F0 1F0 1B0 1B0>0B0 1F1<0F1 1F1 1B1 1B1>0B1 1R1 1U
        ");
    }

    #[test]
    fn evaluation_sends_forward_values_only() {
        let lowered = lower(&forward_only(3, 2), &with_skip_and_tie());
        insta::assert_snapshot!(lowered, @r"
        0F0 0F0>1F0 0F0>2F0 0F1 0F1>1F1 0F1>2F1
        1F0<0F0 1F0 1F0>2F0 1F1<0F1 1F1 1F1>2F1
        2F0<0F0 2F0<1F0 2F0 2F1<0F1 2F1<1F1 2F1
        ");
    }

    #[test]
    fn a_skip_is_sent_directly_to_its_consumer_and_a_tie_is_last() {
        let lowered = lower(&one_f_one_b(3, 1), &with_skip_and_tie());
        insta::assert_snapshot!(lowered, @r"
        0F0 0F0>1F0 0F0>2F0 0B0<1B0 0B0<2B0 0B0 0R0 0U 0U>2U
        1F0<0F0 1F0 1F0>2F0 1B0<2B0 1B0 1B0>0B0 1R1 1U
        2F0<0F0 2F0<1F0 2F0 2B0 2B0>0B0 2B0>1B0 2R2 2U 2U<0U
        ");
    }

    #[test]
    fn stages_on_one_rank_exchange_nothing() {
        let schedule = Schedule::parse("v", "0F0 3F0 3B0 0B0\n1F0 2F0 2B0 1B0").unwrap();
        let lowered = lower(&schedule, &Dependencies::chain(4));
        insta::assert_snapshot!(lowered, @r"
        0F0 0F0>1F0 3F0<2F0 3F0 3B0 3B0>2B0 3R3 3U 0B0<1B0 0B0 0R0 0U
        1F0<0F0 1F0 2F0 2F0>3F0 2B0<3B0 2B0 2R2 2U 1B0 1B0>0B0 1R1 1U
        ");
    }

    #[test]
    fn a_split_backward_sends_from_its_first_half() {
        let schedule = Schedule::parse("zb", "0F0 0I0 0W0\n1F0 1I0 1W0").unwrap();
        let lowered = lower(&schedule, &Dependencies::chain(2));
        insta::assert_snapshot!(lowered, @r"
        0F0 0F0>1F0 0B0<1B0 0I0 0W0 0R0 0U
        1F0<0F0 1F0 1I0 1B0>0B0 1W0 1R1 1U
        ");
    }

    #[test]
    fn a_clip_by_the_norm_of_all_gradients_comes_before_the_first_update() {
        let dependencies = with_skip_and_tie().with_global_norm();
        let lowered = lower(&one_f_one_b(3, 1), &dependencies);
        insta::assert_snapshot!(lowered, @r"
        0F0 0F0>1F0 0F0>2F0 0B0<1B0 0B0<2B0 0B0 0R0 0N>1N 0N>2N 0N<1N 0N<2N 0U 0U>2U
        1F0<0F0 1F0 1F0>2F0 1B0<2B0 1B0 1B0>0B0 1R1 1N>0N 1N>2N 1N<0N 1N<2N 1U
        2F0<0F0 2F0<1F0 2F0 2B0 2B0>0B0 2B0>1B0 2R2 2N>0N 2N>1N 2N<0N 2N<1N 2U 2U<0U
        ");
        crate::verify(&lowered, &dependencies).unwrap();
    }

    #[test]
    fn replicas_send_at_once_and_wait_at_the_end() {
        let schedule = Schedule::parse("v", "0F0 3F0 3B0 0B0\n1F0 2F0 2B0 1B0").unwrap();
        let dependencies = Dependencies::chain(4).with_replicas();
        let lowered = lower(&schedule, &dependencies);
        insta::assert_snapshot!(lowered, @r#"
        0F0 0F0>1F0 3F0<2F0 3F0 3B0 3B0>2B0 3R3 0B0<1B0 0B0 0R0 0S 3S 0U 3U 0G 3G
        1F0<0F0 1F0 2F0 2F0>3F0 2B0<3B0 2B0 2R2 1B0 1B0>0B0 1R1 1S 2S 1U 2U 1G 2G
        "#);
        crate::verify(&lowered, &dependencies).unwrap();

        let dependencies = with_skip_and_tie().with_global_norm().with_replicas();
        let lowered = lower(&one_f_one_b(3, 1), &dependencies);
        insta::assert_snapshot!(lowered, @r#"
        0F0 0F0>1F0 0F0>2F0 0B0<1B0 0B0<2B0 0B0 0R0 0S 0N>1N 0N>2N 0N<1N 0N<2N 0U 0G 0U>2U
        1F0<0F0 1F0 1F0>2F0 1B0<2B0 1B0 1B0>0B0 1R1 1S 1N>0N 1N>2N 1N<0N 1N<2N 1U 1G
        2F0<0F0 2F0<1F0 2F0 2B0 2B0>0B0 2B0>1B0 2R2 2S 2N>0N 2N>1N 2N<0N 2N<1N 2U 2G 2U<0U
        "#);
        crate::verify(&lowered, &dependencies).unwrap();
    }

    /// A batch may have fewer samples than there are replicas.
    #[test]
    fn a_replica_without_micro_batches_takes_part_in_the_sums() {
        let dependencies = with_skip_and_tie().with_global_norm().with_replicas();
        let empty = Schedule::idle(ScheduleMode::Training, &[0, 1, 2].map(RankIndex::new));
        let lowered = lower(&empty, &dependencies);
        insta::assert_snapshot!(lowered, @r#"
        0R0 0S 0N>1N 0N>2N 0N<1N 0N<2N 0U 0G 0U>2U
        1R1 1S 1N>0N 1N>2N 1N<0N 1N<2N 1U 1G
        2R2 2S 2N>0N 2N>1N 2N<0N 2N<1N 2U 2G 2U<0U
        "#);
        crate::verify(&lowered, &dependencies).unwrap();
        let alone = with_skip_and_tie();
        let lowered = lower(&empty, &alone);
        assert!(matches!(
            crate::verify(&lowered, &alone),
            Err(crate::VerifyError::Empty { .. })
        ));
    }

    #[test]
    fn an_overlapped_pair_receives_before_and_sends_after_it() {
        let text = "0F0 3F0 0F1&3B0 3F1 3B1 0B0 0B1\n1F0 2F0 1F1 2F1&2B0 1B0 2B1 1B1";
        let schedule = Schedule::parse("pair", text).unwrap();
        let lowered = lower(&schedule, &Dependencies::chain(4));
        insta::assert_snapshot!(lowered, @r"
        0F0 0F0>1F0 3F0<2F0 3F0 0F1&3B0 0F1>1F1 3B0>2B0 3F1<2F1 3F1 3B1 3B1>2B1 3R3 3U 0B0<1B0 0B0 0B1<1B1 0B1 0R0 0U
        1F0<0F0 1F0 2F0 2F0>3F0 1F1<0F1 1F1 2B0<3B0 2F1&2B0 2F1>3F1 1B0 1B0>0B0 2B1<3B1 2B1 2R2 2U 1B1 1B1>0B1 1R1 1U
        ");
        crate::verify(&lowered, &Dependencies::chain(4)).unwrap();
    }

    #[test]
    fn lowering_twice_is_lowering_once() {
        let once = lower(&one_f_one_b(3, 4), &with_skip_and_tie());
        assert_eq!(lower(&once, &with_skip_and_tie()), once);
    }

    /// Three stages; stage 2 also reads a value of stage 0, and shares a parameter with it.
    fn with_skip_and_tie() -> Dependencies {
        let [first, last] = [0, 2].map(StageIndex::new);
        let skip = Edge::new(Endpoint::forward(first), Endpoint::forward(last));
        let gradient = Edge::new(Endpoint::backward(last), Endpoint::backward(first));
        let chain = Dependencies::chain(3);
        let edges = chain.edges().iter().copied().chain([skip, gradient]);
        Dependencies::new(
            3,
            edges,
            [Tie {
                owner: first,
                copy: last,
            }],
        )
    }
}
