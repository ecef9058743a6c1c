//! A second, slow definition of when lists can run, to test the verifier.
//!
//! It only uses the prerequisites of each action, and tries all ranks until none advances.

use std::collections::HashSet;

use crate::{
    Action, Compute, Dependencies, Endpoint, Form, Message, MicroBatchIndex, Schedule,
    ScheduleMode, StageIndex, Task,
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
            return heads
                .iter()
                .zip(&schedule.ranks)
                .all(|(head, list)| *head == list.len());
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
    let gradients = |of: StageIndex| {
        let ends = all
            .iter()
            .filter(move |a| a.tasks().iter().any(|t| t.compute.ends_backward()));
        ends.filter(move |a| a.stage() == of)
            .copied()
            .collect::<Vec<_>>()
    };
    let ends = |stage, micro_batch| {
        let compute = Compute::WeightGradient;
        end(Endpoint { stage, compute }, micro_batch)
    };
    // The actions of a letter on the rank of a stage.
    let of_rank = |stage: StageIndex, letter: char| -> Vec<Action> {
        let of_letter = all.iter().filter(|a| {
            let word = a.to_string();
            let word = word.trim_start_matches(|c: char| c.is_ascii_digit());
            word.starts_with(letter) && !word.contains(['<', '>'])
        });
        of_letter
            .filter(|a| together(a.stage(), stage))
            .copied()
            .collect()
    };
    match *action {
        Action::Overlap(tasks) => {
            let each = tasks.map(Action::Compute);
            let needs = each
                .iter()
                .flat_map(|one| needs(one, all, schedule, dependencies));
            needs.collect()
        }
        Action::Compute(task) => {
            let mut list = Vec::new();
            for edge in dependencies.read_by(task) {
                if schedule.mode == ScheduleMode::ForwardOnly && !edge.is_forward() {
                    continue;
                }
                if together(edge.from.stage, edge.to.stage) || schedule.form == Form::ComputeOnly {
                    list.push(end(edge.from, task.micro_batch));
                } else {
                    let message = Message::Values {
                        edge,
                        micro_batch: task.micro_batch,
                    };
                    list.push(Action::Receive(message));
                }
            }
            match task.compute {
                Compute::Forward => {}
                Compute::Backward | Compute::InputGradient => {
                    list.push(end(Endpoint::forward(task.stage), task.micro_batch));
                }
                Compute::WeightGradient => {
                    list.push(end(Endpoint::backward(task.stage), task.micro_batch));
                }
            }
            if task.compute.ends_backward() && task.micro_batch.index() > 0 {
                let before = MicroBatchIndex::new(task.micro_batch.index() - 1);
                list.push(ends(task.stage, before));
            }
            // What the backward frees is sent before, if it is sent at all.
            if task.compute.ends_backward() && schedule.form == Form::Lowered {
                let edges = dependencies.edges().iter().copied();
                let from = Endpoint::forward(task.stage);
                for edge in edges.filter(|edge| edge.from == from) {
                    if !together(edge.from.stage, edge.to.stage) {
                        list.push(Action::Send(Message::Values {
                            edge,
                            micro_batch: task.micro_batch,
                        }));
                    }
                }
            }
            list
        }
        Action::Send(Message::Values { edge, micro_batch }) => vec![end(edge.from, micro_batch)],
        Action::Send(Message::Norm { from, .. }) => {
            let reduces = all
                .iter()
                .filter(|a| matches!(a, Action::Reduce { .. }) && a.stage() == from);
            reduces.copied().chain(of_rank(from, 'S')).collect()
        }
        Action::Receive(message @ Message::Norm { to, .. }) => {
            let sums = of_rank(to, 'S').into_iter();
            sums.chain([Action::Send(message)]).collect()
        }
        Action::Send(Message::Tie(tie)) => {
            let gathers = of_rank(tie.owner, 'G').into_iter();
            let own = gathers.filter(|gather| gather.stage() == tie.owner);
            own.chain([Action::Update { stage: tie.owner }]).collect()
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
            let sends = all.iter().filter(|a| {
                matches!(a, Action::Send(Message::Values { .. })) && together(a.stage(), stage)
            });
            sends.copied().chain(of_rank(stage, 'R')).collect()
        }
        Action::Gather { stage } => of_rank(stage, 'U'),
        Action::Update { stage } => {
            let reduces = all.iter().filter(|a| matches!(a, Action::Reduce { .. }));
            let wanted = |a: &&Action| match dependencies.has_global_norm() {
                true => together(a.stage(), stage),
                false => a.stage() == stage,
            };
            let mut list: Vec<_> = reduces.filter(wanted).copied().collect();
            let sums = of_rank(stage, 'S').into_iter();
            list.extend(sums.filter(|sum| sum.stage() == stage));
            let norms = all.iter().filter(|a| match a {
                Action::Receive(Message::Norm { to, .. }) => together(*to, stage),
                _ => false,
            });
            list.extend(norms);
            for tie in dependencies.ties().iter().filter(|tie| tie.owner == stage) {
                if together(tie.owner, tie.copy) {
                    list.extend(gradients(tie.copy));
                }
            }
            list
        }
    }
}
