//! Ranks that fail, stop, or are cut off: all others report them soon.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::mpsc::{Sender, channel};
use std::time::{Duration, Instant};

use tinderbox_engines::{Delays, Net};
use tinderbox_world::{Buffer, Channel, Failure, Handler, RankIndex, World};

use crate::support::{on_threads, options, rank};

/// Forwards failures to a channel.
struct Forward(Mutex<Sender<Failure>>);

impl Handler for Forward {
    fn received(&self, _: RankIndex, _: &[u8], _: Vec<Buffer>) {}

    fn failed(&self, failure: &Failure) {
        let _ = self.0.lock().unwrap().send(failure.clone());
    }
}

/// Runs a fault on rank 1 of three, and returns the reports of the others. Each reports within a second of the fault.
fn reported(fault: impl Fn(World, Channel, &Net) + Sync) -> Vec<String> {
    let results = on_threads(3, Delays::default(), &options(), |world, net| {
        let (sender, failures) = channel();
        let channel = world.open(Arc::new(Forward(Mutex::new(sender))));
        let own = world.rank();
        channel.report(move || Some(format!("`{own}F3` of round 7")));
        world.barrier().unwrap();
        // A heartbeat sends the report of this rank to the others.
        std::thread::sleep(Duration::from_millis(200));
        world.barrier().unwrap();
        let began = Instant::now();
        if own == rank(1) {
            // All have passed the barrier by then.
            std::thread::sleep(Duration::from_millis(100));
            fault(world, channel, net);
            return None;
        }
        let failure = failures.recv_timeout(Duration::from_secs(5)).unwrap();
        assert!(
            began.elapsed() < Duration::from_secs(1),
            "{:?}",
            began.elapsed()
        );
        assert_eq!(world.failure().unwrap(), failure);
        // Every later call reports it as well.
        assert_eq!(
            world.barrier().unwrap_err().to_string(),
            failure.to_string()
        );
        Some(failure.to_string())
    });
    results.into_iter().flatten().collect()
}

/// Waits until the others have reported this rank, so that they do not notice its end instead.
fn linger() {
    std::thread::sleep(Duration::from_millis(900));
}

#[test]
fn a_rank_that_fails_reports_why() {
    let texts = reported(|_, channel, _| channel.fail("the loss is NaN"));
    let expected = "rank 1 failed: the loss is NaN; it was last in `1F3` of round 7";
    assert_eq!(texts, [expected; 2]);
}

#[test]
fn a_panic_is_reported_to_all() {
    let texts = reported(|world, channel, _| {
        let panics = catch_unwind(AssertUnwindSafe(move || {
            let _world = world;
            let _channel = channel;
            panic!("injected");
        }));
        assert!(panics.is_err());
    });
    let expected = "rank 1 failed: its program panicked; it was last in `1F3` of round 7";
    assert_eq!(texts, [expected; 2]);
}

#[test]
fn a_rank_whose_connections_end_is_lost() {
    let texts = reported(|world, _, net| {
        net.kill(world.rank());
        linger();
    });
    for text in &texts {
        assert!(
            text.starts_with("rank 1 is lost: its connection was cut"),
            "{texts:?}"
        );
        assert!(
            text.ends_with("; it was last in `1F3` of round 7"),
            "{texts:?}"
        );
    }
}

#[test]
fn a_rank_that_is_stopped_is_lost() {
    let texts = reported(|world, _, net| {
        net.stop(world.rank());
        linger();
    });
    for text in texts {
        assert!(
            text.starts_with("rank 1 is lost: it has shown no sign of life for "),
            "{text}"
        );
        assert!(
            text.ends_with("; it was last in `1F3` of round 7"),
            "{text}"
        );
    }
}

/// A pause below the limit, and delays, lose no rank.
#[test]
fn a_short_pause_is_no_failure() {
    let delays = Delays {
        seed: 1,
        most: Duration::from_millis(20),
    };
    on_threads(2, delays, &options(), |world, net| {
        world.barrier().unwrap();
        if world.is_first() {
            net.stop(world.rank());
            std::thread::sleep(Duration::from_millis(250));
            net.resume(world.rank());
        }
        world.barrier().unwrap();
        assert_eq!(world.failure(), None);
    });
}

/// A cut between two ranks: every rank names one of them, the first one that it is notified of; no rank waits.
#[test]
fn a_cut_connection_ends_all() {
    let results = on_threads(3, Delays::default(), &options(), |world, net| {
        world.barrier().unwrap();
        // All have passed it by then.
        std::thread::sleep(Duration::from_millis(100));
        if world.is_first() {
            net.cut(rank(0), rank(2));
        }
        let began = Instant::now();
        let failed = std::iter::repeat_with(|| world.barrier())
            .find_map(Result::err)
            .unwrap();
        assert!(began.elapsed() < Duration::from_secs(1));
        failed.to_string()
    });
    for text in &results {
        let ends = ["rank 0 is lost: ", "rank 2 is lost: "];
        assert!(ends.iter().any(|start| text.starts_with(start)), "{text}");
    }
}

/// Ranks that end at different times, each as soon as it can: no end is a failure.
#[test]
fn an_end_is_no_failure() {
    for seed in 0..20 {
        let delays = Delays {
            seed,
            most: Duration::from_millis(3),
        };
        on_threads(4, delays, &options(), |world, _| {
            world.barrier().unwrap();
            std::thread::sleep(Duration::from_millis(world.rank().index() as u64 * 7));
            assert_eq!(world.failure(), None);
        });
    }
}
