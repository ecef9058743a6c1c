//! The checks find faults: each protocol here has one.

use crate::channels::Fault;
use crate::checker::{found, try_orders};
use crate::exchange::{Case, Failure, Reason};
use tinderbox_world::link::CrewError;

/// The panic message of a search over a case in which only rank 1 fails.
fn search(case: Case) -> Option<String> {
    found(|| {
        try_orders(9, 2000, move || match case.run() {
            Err(CrewError::Failed {
                reason: Reason::Injected(1) | Reason::Lost(1),
            }) => {}
            other => panic!("ended by {other:?}"),
        });
    })
}

fn sound() -> Case {
    Case::new(3, 1).failing(1, 0, Failure::Says)
}

fn check(case: Case, expected: &str) {
    let fault = search(case.clone()).unwrap_or_else(|| panic!("nothing found in {case:?}"));
    assert!(fault.contains(expected), "{fault}");
}

#[test]
fn nothing_is_found_where_nothing_is_wrong() {
    assert_eq!(search(sound()), None);
    assert_eq!(search(Case::new(3, 1).failing(1, 0, Failure::Silent)), None);
}

/// The signal may fire after a rank has checked it and before the rank sleeps.
#[test]
fn a_wake_up_that_is_lost_is_found() {
    let fault = Fault::LooksBeforeItRegisters;
    check(Case { fault, ..sound() }, "deadlock");
}

#[test]
fn a_signal_that_wakes_one_of_many_is_found() {
    let fault = Fault::WakesOne;
    check(Case { fault, ..sound() }, "deadlock");
}

/// A woken rank may report first, or the driver finds no reason.
#[test]
fn a_signal_before_its_reason_is_found() {
    let case = Case::new(3, 1).failing(1, 0, Failure::WakesThenSays);
    check(case, "ended by");
}

/// The mailbox of a rank that ends is dropped before the rank has reported: a rank that sends to it fails first.
#[test]
fn a_mailbox_dropped_before_the_reason_is_found() {
    let mut case = Case::new(3, 1).failing(1, 0, Failure::Silent);
    case.mailbox_outlives_body = false;
    check(case, "Closed");
}
