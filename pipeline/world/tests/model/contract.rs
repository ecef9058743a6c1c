//! The observable rules of `Channels`, for the threads of the process, for a simulation and for the model.

use std::sync::Arc;
use std::time::Duration;

use tinderbox_simulation::{Process, Simulation};
use tinderbox_world::link::{Channels, Disconnected, Host, Received};

use crate::channels::{Fault, Model};
use crate::checker::try_orders;

const SOON: Duration = Duration::from_millis(1);

/// `run_clock` lets time pass from now on.
fn check<C: Channels>(channels: &C, run_clock: impl FnOnce()) {
    waits_end_by_the_first_of_signal_message_close_and_time(channels, run_clock);
    a_firing_wakes_all_waiting_threads(channels);
    messages_arrive_once_and_in_their_senders_order(channels);
    a_value_is_changed_by_one_thread_at_a_time(channels);
}

fn waits_end_by_the_first_of_signal_message_close_and_time<C: Channels>(
    channels: &C,
    run_clock: impl FnOnce(),
) {
    let stop = channels.signal();
    let forever = channels.deadline(Duration::MAX);
    let (sender, receiver) = channels.channel();
    let soon = channels.deadline(SOON);
    run_clock();
    assert_eq!(
        channels.receive(&receiver, &stop, soon),
        Received::TimedOut::<u32>
    );
    channels.send(&sender, 1).unwrap();
    assert_eq!(
        channels.receive(&receiver, &stop, soon),
        Received::Message(1),
        "a message that is present is received even after the deadline"
    );
    channels.send(&sender, 2).unwrap();
    drop(sender.clone());
    assert_eq!(
        channels.receive(&receiver, &stop, forever),
        Received::Message(2)
    );
    channels.send(&sender, 3).unwrap();
    drop(sender);
    assert_eq!(
        channels.receive(&receiver, &stop, forever),
        Received::Message(3),
        "a message outlives its sender"
    );
    assert_eq!(
        channels.receive(&receiver, &stop, forever),
        Received::Closed
    );
    assert!(!channels.is_fired(&stop));
    channels.fire(&stop);
    channels.fire(&stop.clone());
    assert!(channels.is_fired(&stop));
    let (sender, receiver) = channels.channel();
    channels.send(&sender, 4).unwrap();
    assert_eq!(
        channels.receive(&receiver, &stop, forever),
        Received::Stopped,
        "the signal takes precedence over a message"
    );
    drop(receiver);
    assert_eq!(channels.send(&sender, 5), Err(Disconnected));
}

fn a_firing_wakes_all_waiting_threads<C: Channels>(channels: &C) {
    let stop = channels.signal();
    let waits = |number: usize| {
        let (stop, waiter) = (stop.clone(), channels.clone());
        let body = move || {
            let (_open, receiver) = waiter.channel::<()>();
            let forever = waiter.deadline(Duration::MAX);
            assert_eq!(waiter.receive(&receiver, &stop, forever), Received::Stopped);
        };
        channels.spawn(format!("waits-{number}"), body).unwrap()
    };
    let threads: Vec<_> = (0..2).map(waits).collect();
    channels.fire(&stop);
    threads.into_iter().for_each(|thread| channels.join(thread));
}

fn messages_arrive_once_and_in_their_senders_order<C: Channels>(channels: &C) {
    let (sender, receiver) = channels.channel();
    for number in 0..2 {
        let (sender, of_thread) = (sender.clone(), channels.clone());
        let body = move || {
            for message in 0..3 {
                of_thread.send(&sender, (number, message)).unwrap();
            }
        };
        channels.spawn(format!("sends-{number}"), body).unwrap();
    }
    drop(sender);
    let (never, forever) = (channels.signal(), channels.deadline(Duration::MAX));
    let mut got = vec![Vec::new(); 2];
    while let Received::Message((number, message)) = channels.receive(&receiver, &never, forever) {
        got[number].push(message);
    }
    assert_eq!(got, [[0, 1, 2], [0, 1, 2]]);
}

fn a_value_is_changed_by_one_thread_at_a_time<C: Channels>(channels: &C) {
    let cell = Arc::new(channels.cell(0));
    let adds = |number: usize| {
        let (cell, of_thread) = (cell.clone(), channels.clone());
        let body = move || of_thread.with(&cell, |value| *value += 1);
        channels.spawn(format!("adds-{number}"), body).unwrap()
    };
    let threads: Vec<_> = (0..3).map(adds).collect();
    threads.into_iter().for_each(|thread| channels.join(thread));
    assert_eq!(channels.with(&cell, |value| *value), 3);
}

#[test]
fn threads_satisfy_the_contract() {
    for _ in 0..200 {
        check(&Host, || {});
    }
    let endless = Host.deadline(Duration::MAX);
    assert!(endless > Host.deadline(Duration::from_secs(1 << 29)));
}

#[test]
fn a_simulation_satisfies_the_contract() {
    for seed in 0..200 {
        let mut simulation = Simulation::new(seed);
        simulation.start(Process::new(0), "main", || {
            check(&Host, || {});
            assert!(Host.deadline(Duration::MAX) > Host.deadline(Duration::from_secs(1 << 29)));
        });
        simulation.run().unwrap();
    }
}

#[test]
fn the_model_satisfies_the_contract() {
    try_orders(1, 300, || {
        let model = Model::new(Fault::None);
        check(&model, || model.run_clock(1));
        model.settle();
    });
}
