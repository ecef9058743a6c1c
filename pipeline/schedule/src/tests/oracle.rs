//! A second, slow definition of when lists can run, to test the verifier.
//!
//! It only uses the prerequisites of each action, and tries all ranks until none advances.

use std::collections::HashSet;

use crate::{
    Action, Compute, Dependencies, Endpoint, Form, Message, MicroBatchIndex, Schedule,
    ScheduleMode, StageIndex, Task, Tie,
};

/// Returns whether the lists run to the end.
pub(super) fn completes(schedule: &Schedule, dependencies: &Dependencies) -> bool {
    let all: HashSet<Action> = schedule.ranks.iter().flatten().copied().collect();
    let mut done = HashSet::new();
    let mut heads = vec![0; schedule.ranks.len()];
    loop {
        let before = done.len();
        for (rank, list) in schedule.ranks.iter().enumerate() {
            while let Some(action) = list.get(heads[rank]) {
                let needs = needs(action, &all, schedule, dependencies);
                if !needs.iter().all(|need| done.contains(need)) {
                    break;
                }
                done.insert(*action);
                heads[rank] += 1;
            }
        }
        if done.len() == before {
            let mut lists = heads.iter().zip(&schedule.ranks);
            return lists.all(|(head, list)| *head == list.len());
        }
    }
}

/// Returns all actions that have to run before the given one.
fn needs(
    action: &Action,
    all: &HashSet<Action>,
    schedule: &Schedule,
    dependencies: &Dependencies,
) -> Vec<Action> {
    let together = |a: StageIndex, b: StageIndex| schedule.rank_of(a) == schedule.rank_of(b);
    let end = |end: Endpoint, k| {
        let is_end = |task: &Task| end.is_run_by(task) && task.micro_batch == k;
        let found = all.iter().find(|action| action.tasks().iter().any(is_end));
        *found.expect("the lists before the mutation were complete")
    };
    // The actions that a predicate selects.
    let those = |is_one: &dyn Fn(&Action) -> bool| -> Vec<Action> {
        all.iter().copied().filter(is_one).collect()
    };
    let gradients = |of: StageIndex| {
        let ends = |a: &Action| a.tasks().iter().any(|t| t.compute.ends_backward());
        those(&|a| ends(a) && a.stage() == of)
    };
    let ends = |stage, micro_batch| {
        let compute = Compute::WeightGradient;
        end(Endpoint { stage, compute }, micro_batch)
    };
    // The actions of a letter on the rank of a stage.
    let of_rank = |stage: StageIndex, letter: char| {
        those(&|a| {
            let word = a.to_string();
            let word = word.trim_start_matches(|c: char| c.is_ascii_digit());
            let is_of_letter = word.starts_with(letter) && !word.contains(['<', '>']);
            is_of_letter && together(a.stage(), stage)
        })
    };
    match *action {
        Action::Overlap(tasks) => {
            let each = tasks.into_iter().map(Action::Compute);
            let needs = each.flat_map(|one| needs(&one, all, schedule, dependencies));
            needs.collect()
        }
        Action::Compute(task) => {
            let micro_batch = task.micro_batch;
            let mut list = Vec::new();
            for edge in dependencies.read_by(task) {
                if schedule.mode == ScheduleMode::ForwardOnly && !edge.is_forward() {
                    continue;
                }
                if together(edge.from.stage, edge.to.stage) || schedule.form == Form::ComputeOnly {
                    list.push(end(edge.from, micro_batch));
                } else {
                    list.push(Action::Receive(Message::Values { edge, micro_batch }));
                }
            }
            let before = match task.compute {
                Compute::Forward => None,
                Compute::Backward | Compute::InputGradient => Some(Endpoint::forward(task.stage)),
                Compute::WeightGradient => Some(Endpoint::backward(task.stage)),
            };
            list.extend(before.map(|before| end(before, micro_batch)));
            if task.compute.ends_backward() && micro_batch.index() > 0 {
                let before = MicroBatchIndex::new(micro_batch.index() - 1);
                list.push(ends(task.stage, before));
            }
            // What the backward frees is sent before, if it is sent at all.
            if task.compute.ends_backward() && schedule.form == Form::Lowered {
                let edges = dependencies.edges().iter().copied();
                let from = Endpoint::forward(task.stage);
                for edge in edges.filter(|edge| edge.from == from) {
                    if !together(edge.from.stage, edge.to.stage) {
                        list.push(Action::Send(Message::Values { edge, micro_batch }));
                    }
                }
            }
            list
        }
        Action::Send(Message::Values { edge, micro_batch }) => vec![end(edge.from, micro_batch)],
        Action::Send(Message::Norm { from, .. }) => {
            let reduces = those(&|a| *a == Action::Reduce { stage: from });
            [reduces, of_rank(from, 'S')].concat()
        }
        Action::Receive(message @ Message::Norm { to, .. }) => {
            [of_rank(to, 'S'), vec![Action::Send(message)]].concat()
        }
        Action::Send(Message::Tie(Tie { owner: stage, .. })) => {
            let gathers = those(&|a| *a == Action::Gather { stage });
            [gathers, vec![Action::Update { stage }]].concat()
        }
        Action::Receive(message @ Message::Values { .. }) => vec![Action::Send(message)],
        Action::Receive(message @ Message::Tie(tie)) => {
            let mut list = vec![Action::Send(message), Action::Update { stage: tie.copy }];
            if dependencies.has_replicas() {
                list.extend(of_rank(tie.copy, 'U'));
            }
            list
        }
        Action::Reduce { stage, .. } => gradients(stage),
        Action::Sum { stage } => {
            let is_sent = |a: &Action| matches!(a, Action::Send(Message::Values { .. }));
            let sends = those(&|a| is_sent(a) && together(a.stage(), stage));
            [sends, of_rank(stage, 'R')].concat()
        }
        Action::Gather { stage } => of_rank(stage, 'U'),
        Action::Update { stage } => {
            let wanted = |a: &Action| match dependencies.has_global_norm() {
                true => together(a.stage(), stage),
                false => a.stage() == stage,
            };
            let mut list = those(&|a| matches!(a, Action::Reduce { .. }) && wanted(a));
            list.extend(those(&|a| *a == Action::Sum { stage }));
            list.extend(those(&|a| match a {
                Action::Receive(Message::Norm { to, .. }) => together(*to, stage),
                _ => false,
            }));
            for tie in dependencies.ties().iter().filter(|tie| tie.owner == stage) {
                if together(tie.owner, tie.copy) {
                    list.extend(gradients(tie.copy));
                }
            }
            list
        }
    }
}
