//! Every engine passes the conformance suite.

use std::collections::BTreeMap;
use std::thread;
use std::time::Duration;

use tinderbox_engines::{Delays, Threads};
use tinderbox_world::Engine;
use tinderbox_world::testing::check_engine;

use crate::support::{endless, grpc_engines, meeting, options};

/// Runs the suite with one thread per rank.
pub(crate) fn check(engines: Vec<Box<dyn Engine>>) {
    thread::scope(|scope| {
        let ranks: Vec<_> = engines
            .into_iter()
            .map(|engine| scope.spawn(|| check_engine(engine)))
            .collect();
        for rank in ranks {
            rank.join().unwrap().unwrap();
        }
    });
}

#[test]
fn threads() {
    // At the same time, because each world waits for seconds.
    thread::scope(|scope| {
        for (size, most) in [(1, 0), (2, 0), (3, 0), (4, 3)] {
            let delays = Delays {
                seed: size,
                most: Duration::from_millis(most),
            };
            scope.spawn(move || {
                let (engines, _) = Threads::world(size as usize, delays);
                check(
                    engines
                        .into_iter()
                        .map(|engine| Box::new(engine) as Box<dyn Engine>)
                        .collect(),
                );
            });
        }
    });
}

#[test]
fn grpc() {
    const SIZES: usize = 4;
    // A port is free until its world listens there, so it may be returned twice.
    let mut meetings = BTreeMap::new();
    while meetings.len() < SIZES {
        let meeting = meeting();
        meetings.insert(meeting.port, meeting);
    }
    thread::scope(|scope| {
        for (size, meeting) in (1..=SIZES).zip(meetings.into_values()) {
            scope.spawn(move || check(grpc_engines(size, &meeting, &options())));
        }
    });
}

/// Ranks may wait for each other without a limit.
#[test]
fn grpc_with_endless_timeouts() {
    check(grpc_engines(3, &meeting(), &endless()));
}

/// The same with a token, and on all addresses of the machine.
#[test]
fn grpc_with_a_token() {
    let mut options = options();
    options.token = Some("a secret, with \u{fc}".to_owned());
    check(grpc_engines(3, &meeting(), &options));
}
