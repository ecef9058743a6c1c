//! Replicas whose lists differ never wait for each other in a cycle.

use std::collections::{BTreeMap, BTreeSet};

use super::{rich, v_shaped, zero_bubble};
use crate::{
    Action, Dependencies, LinkModel, Message, Schedule, ScheduleKind, ScheduleMode, gpipe, lower,
    lower_over, one_f_one_b, verify,
};

/// Whether lists of two replicas run to the end together: a sum waits for the reduces of all replicas, their norms for all
/// sums, a gather for all updates.
fn run_together(replicas: [&Schedule; 2]) -> bool {
    let mut done: BTreeSet<(usize, Action)> = BTreeSet::new();
    let mut heads = replicas.map(|schedule| vec![0; schedule.ranks.len()]);
    loop {
        let before = done.len();
        for (replica, schedule) in replicas.iter().enumerate() {
            for (rank, list) in schedule.ranks.iter().enumerate() {
                let head = &mut heads[replica][rank];
                while let Some(action) = list.get(*head) {
                    let of_both = |action| vec![(0, action), (1, action)];
                    let awaited = match *action {
                        Action::Receive(message) => vec![(replica, Action::Send(message))],
                        Action::Sum { stage } => of_both(Action::Reduce { stage }),
                        Action::Send(Message::Norm { from: stage, .. }) => {
                            of_both(Action::Sum { stage })
                        }
                        Action::Gather { stage } => of_both(Action::Update { stage }),
                        _ => Vec::new(),
                    };
                    if !awaited.iter().all(|one| done.contains(one)) {
                        break;
                    }
                    done.insert((replica, *action));
                    *head += 1;
                }
            }
        }
        if done.len() == before {
            let mut ends = replicas.iter().zip(&heads);
            return ends.all(|(schedule, heads)| {
                let mut lists = heads.iter().zip(&schedule.ranks);
                lists.all(|(head, list)| *head == list.len())
            });
        }
    }
}

/// Every swap of two actions that the verifier accepts.
fn accepted(schedule: &Schedule, dependencies: &Dependencies) -> Vec<Schedule> {
    let mut found = vec![schedule.clone()];
    for (rank, list) in schedule.ranks.iter().enumerate() {
        for first in 0..list.len() {
            for second in first + 1..list.len() {
                let mut swapped = schedule.clone();
                swapped.ranks[rank].swap(first, second);
                if verify(&swapped, dependencies).is_ok() {
                    found.push(swapped);
                }
            }
        }
    }
    found
}

#[test]
fn lists_that_are_accepted_alone_run_together() {
    for schedule in [gpipe(2, 1), one_f_one_b(2, 2), v_shaped(), zero_bubble()] {
        for dependencies in [Dependencies::chain(schedule.stages), rich(schedule.stages)] {
            for dependencies in [dependencies.clone(), dependencies.with_global_norm()] {
                let dependencies = dependencies.with_replicas();
                let lowered = lower(&schedule, &dependencies);
                let all = accepted(&lowered, &dependencies);
                for pair in all.windows(2) {
                    for other in [&pair[1], &lowered] {
                        assert!(run_together([&pair[0], other]), "{}\n{other}", pair[0]);
                    }
                }
            }
        }
    }
}

/// A wait for other replicas before a list has sent all of its own would be a cycle here.
#[test]
fn replicas_of_different_lengths_run_together() {
    for kind in ScheduleKind::ALL {
        let chunks = kind.chunks().least();
        let chain = Dependencies::chain(2 * chunks);
        let dependencies = chain.with_global_norm().with_replicas();
        let map = kind.placement().stage_to_rank(2, chunks);
        let lists = [0, 2, 4, 6].map(|micro_batches| match micro_batches {
            0 => Schedule::idle(ScheduleMode::Training, &map),
            _ => kind.generate(2, chunks, micro_batches).unwrap(),
        });
        let lists = lists.map(|schedule| lower(&schedule, &dependencies));
        for first in &lists {
            verify(first, &dependencies).unwrap();
            for second in &lists {
                assert!(run_together([first, second]), "{first}\n{second}");
            }
        }
    }
}

/// On links on which sends wait, in the order of `lower_over`.
#[test]
fn the_order_for_every_link_model_lets_replicas_run() {
    let models = ["unbounded", "messages:1", "rendezvous", "queue"];
    let models = models.map(|text| text.parse::<LinkModel>().unwrap());
    for kind in ScheduleKind::ALL {
        let chunks = kind.chunks().least();
        let schedule = kind.generate(2, chunks, 4).unwrap();
        let plain = rich(schedule.stages).with_replicas();
        for dependencies in [plain.clone(), plain.with_global_norm()] {
            for model in models {
                let lowered = lower_over(&schedule, &dependencies, model, &BTreeMap::new());
                let lowered = lowered.unwrap_or_else(|error| panic!("{kind} {model}: {error}"));
                assert!(run_together([&lowered, &lowered]), "{lowered}");
            }
        }
    }
}

#[test]
fn the_test_finds_a_cycle() {
    let list = |text| Schedule::parse("cycle", text).unwrap();
    let first = list("0F0 0B0 0R0 0S 1F0 1B0 1R1 1S");
    let second = list("1F0 1B0 1R1 1S 0F0 0B0 0R0 0S");
    assert!(!run_together([&first, &second]));
    assert!(run_together([&first, &first]));
}
