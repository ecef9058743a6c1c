//! Mailboxes and the abort, without a driver.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tinderbox_ids::RankIndex;
use tinderbox_world::link::{Abort, Channels, Mailbox, MailboxError, mailboxes};

use crate::channels::{Fault, Model};
use crate::checker::{found, try_all_orders, try_orders};

type Ends = Vec<Mailbox<u32, u32, Model>>;

fn rank(number: usize) -> RankIndex {
    RankIndex::new(number)
}

fn machine(ranks: usize) -> (Model, Abort<&'static str, Model>, Ends) {
    faulty_machine(ranks, Fault::None)
}

fn faulty_machine(ranks: usize, fault: Fault) -> (Model, Abort<&'static str, Model>, Ends) {
    let model = Model::new(fault);
    let abort = Abort::new(model.clone());
    let ends = mailboxes(ranks, &abort, Duration::from_secs(1));
    (model, abort, ends)
}

/// Two ranks send to a third under the same keys, in another order than the order of the polls.
#[test]
fn messages_are_matched_in_any_order_of_arrival() {
    try_orders(2, 1000, || {
        let (model, _, mut ends) = machine(3);
        let mut receiver = ends.remove(0);
        for end in ends {
            let body = move || {
                for key in [2, 0, 1] {
                    let value = 10 * end.rank().index() as u32 + key;
                    end.send(rank(0), key, value).unwrap();
                }
            };
            model.spawn("sends".into(), body).unwrap();
        }
        for (from, key) in [(2, 1), (1, 0), (1, 1), (2, 0), (2, 2), (1, 2)] {
            let value = receiver.poll(rank(from), key).unwrap();
            assert_eq!(value, 10 * from as u32 + key);
        }
        assert_eq!(receiver.unclaimed().count(), 0);
        model.settle();
    });
}

/// One rank is about to wait and the other fails.
fn abort_while_waiting(fault: Fault) -> usize {
    try_all_orders(200_000, move || {
        let (model, abort, mut ends) = faulty_machine(2, fault);
        let failing = abort.clone();
        let thread = model
            .spawn("fails".into(), move || failing.trigger("failed"))
            .unwrap();
        let error = ends[0].poll(rank(1), 0).unwrap_err();
        assert_eq!(error, MailboxError::Aborted);
        // Everything after this point has one order.
        model.join(thread);
        assert_eq!(abort.take_reason(), Some("failed"));
    })
}

/// In every order the wait ends; if a wait checks too early, one order shows it.
#[test]
fn an_abort_never_misses_a_rank_about_to_wait() {
    let orders = abort_while_waiting(Fault::None);
    assert!(orders > 10, "{orders} orders");
    let missed = found(|| {
        abort_while_waiting(Fault::LooksBeforeItRegisters);
    });
    assert!(missed.is_some_and(|text| text.contains("deadlock")));
}

/// A rank stops all ranks and then drops its mailbox: a rank that sends to it receives the stop, never an error about
/// the mailbox.
#[test]
fn a_mailbox_dropped_after_a_stop_is_not_the_reason() {
    let orders = try_all_orders(200_000, || {
        let (model, abort, mut ends) = machine(2);
        let ending = ends.pop().unwrap();
        let ends_early = move || {
            abort.trigger("failed");
            drop(ending);
        };
        let thread = model.spawn("ends".into(), ends_early).unwrap();
        let sent = ends[0].send(rank(1), 0, 0);
        assert!(
            matches!(sent, Ok(()) | Err(MailboxError::Aborted)),
            "{sent:?}"
        );
        model.join(thread);
    });
    assert!(orders > 10, "{orders} orders");
}

/// Two ranks fail at once: in every order one reason is stored, and after its own failure each rank finds the signal
/// fired.
#[test]
fn of_two_failures_one_is_kept() {
    let first = Arc::new(AtomicUsize::new(0));
    let times = first.clone();
    let orders = try_all_orders(100_000, move || {
        let (model, abort, _ends) = machine(0);
        let failing = abort.clone();
        let other = model
            .spawn("fails".into(), move || failing.trigger("first"))
            .unwrap();
        abort.trigger("second");
        assert!(abort.is_triggered());
        model.join(other);
        let reason = abort.take_reason().unwrap();
        times.fetch_add(usize::from(reason == "first"), Ordering::Relaxed);
        assert_eq!(abort.take_reason(), None);
    });
    let first = first.load(Ordering::Relaxed);
    assert!(0 < first && first < orders, "{first} of {orders}");
}

/// A message, the abort and the deadline race: each of them ends the wait in some order, and a late message is not
/// lost.
#[test]
fn a_wait_ends_by_message_abort_or_time() {
    let ended = Arc::new([const { AtomicUsize::new(0) }; 3]);
    let count = ended.clone();
    try_orders(3, 1000, move || {
        let (model, abort, mut ends) = machine(2);
        let sender = ends.pop().unwrap();
        model.run_clock(1);
        let sending = move || {
            // Fails when the abort was first.
            let _ = sender.send(rank(0), 7, 70);
        };
        model.spawn("sends".into(), sending).unwrap();
        model
            .spawn("fails".into(), move || abort.trigger("failed"))
            .unwrap();
        let way = match ends[0].poll(rank(1), 7) {
            Ok(70) => 0,
            Err(MailboxError::Aborted) => 1,
            Err(MailboxError::Timeout { key: 7, .. }) => 2,
            other => panic!("{other:?}"),
        };
        count[way].fetch_add(1, Ordering::Relaxed);
        model.settle();
    });
    let ended: Vec<_> = ended.iter().map(|n| n.load(Ordering::Relaxed)).collect();
    assert!(ended.iter().all(|&times| times > 0), "{ended:?}");
}
