//! Driver and ranks, where one or two ranks fail.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tinderbox_world::link::{CrewError, MailboxError};

use crate::channels::{Fault, Model};
use crate::checker::try_orders;
use crate::exchange::{Case, Failure, Reason, lists};

/// Every step of every rank.
fn steps(ranks: usize, micro_batches: usize) -> Vec<(usize, usize)> {
    let lists = lists(ranks, micro_batches).into_iter().enumerate();
    lists
        .flat_map(|(rank, list)| (0..list.len()).map(move |step| (rank, step)))
        .collect()
}

/// Checks that the case ends by one of these reasons in every order.
fn check(seed: u64, orders: usize, case: Case, expected: Vec<Reason>) {
    try_orders(seed, orders, move || match case.run() {
        Err(CrewError::Failed { reason }) => {
            assert!(expected.contains(&reason), "{case:?} ended by {reason:?}");
        }
        other => panic!("{case:?} ended by {other:?}"),
    });
}

#[test]
fn an_exchange_ends_and_another_follows() {
    for (ranks, micro_batches) in [(2, 1), (2, 2), (3, 1), (3, 2)] {
        let case = Case::new(ranks, micro_batches);
        try_orders(4, 200, move || case.run().unwrap());
    }
}

/// A failure at every step of every rank: the driver reports that rank, all threads end, and the
/// crew rejects further requests.
#[test]
fn a_failure_at_every_step_is_named_and_ends_all() {
    for (ranks, micro_batches, orders) in [(2, 2, 100), (3, 2, 60)] {
        for (rank, step) in steps(ranks, micro_batches) {
            for (failure, reason) in [
                (Failure::Says, Reason::Injected(rank)),
                (Failure::Silent, Reason::Lost(rank)),
            ] {
                let case = Case::new(ranks, micro_batches).failing(rank, step, failure);
                check(5, orders, case, vec![reason]);
            }
        }
    }
}

#[test]
fn of_two_failures_one_is_named_and_all_end() {
    let steps = steps(3, 1);
    for (number, &(rank, step)) in steps.iter().enumerate() {
        for &(other, other_step) in &steps[..number] {
            if other == rank {
                continue;
            }
            let case = Case::new(3, 1).failing(rank, step, Failure::Says).failing(
                other,
                other_step,
                Failure::Silent,
            );
            let reasons = vec![Reason::Injected(rank), Reason::Lost(other)];
            check(6, 30, case, reasons);
        }
    }
}

/// Time passes at any point, and one rank fails: the error names the first of the two, and all threads end.
#[test]
fn a_deadline_may_pass_at_any_moment() {
    let seen = Arc::new(Mutex::new(BTreeSet::new()));
    for ticks in 1..=3 {
        let mut case = Case::new(3, 1).failing(1, 3, Failure::Says);
        case.ticks = ticks;
        let seen = seen.clone();
        try_orders(7, 300, move || {
            let way = match case.run() {
                Err(CrewError::Failed {
                    reason: Reason::Injected(1),
                }) => "the failure",
                Err(CrewError::Failed {
                    reason: Reason::Message(_, MailboxError::Timeout { .. }),
                }) => "a message that is late",
                Err(CrewError::Timeout { .. }) => "a reply that is late",
                other => panic!("{other:?}"),
            };
            seen.lock().unwrap().insert(way);
        });
    }
    assert_eq!(seen.lock().unwrap().len(), 3, "{seen:?}");
}

/// A message is lost, and only the driver's timeout passes: the driver reports it and stops the rank that waits.
#[test]
fn a_rank_that_would_wait_forever_is_ended_by_the_driver() {
    let mut case = Case::new(3, 1).failing(0, 0, Failure::Skips);
    case.rank_timeout = Duration::MAX;
    case.ticks = 2;
    try_orders(11, 300, move || match case.run() {
        Err(CrewError::Timeout { .. }) => {}
        other => panic!("{other:?}"),
    });
}

/// A new crew starts in the same environment after a failure.
#[test]
fn a_new_crew_starts_after_a_failure() {
    try_orders(8, 300, || {
        let model = Model::new(Fault::None);
        let failed = Case::new(2, 1).failing(0, 1, Failure::Says);
        assert!(failed.run_on(&model).is_err());
        Case::new(2, 1).run_on(&model).unwrap();
    });
}

/// A rank that can't be started is named, and the rank started before it ends.
#[test]
fn ranks_end_where_one_can_not_start() {
    let mut case = Case::new(3, 1);
    case.fault = Fault::RefusesAThread;
    try_orders(10, 100, move || match case.run() {
        Err(CrewError::Spawn { rank, .. }) => assert_eq!(rank.index(), 1),
        other => panic!("{other:?}"),
    });
}
