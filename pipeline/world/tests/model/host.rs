//! Crews of fibers: the protocol in virtual time.

use std::sync::Arc;
use std::time::Duration;

use tinderbox_ids::RankIndex;
use tinderbox_simulation::{Process, Simulation, current};
use tinderbox_world::link::{
    Abort, Awaited, Channels, Crew, CrewError, Host, Instant, Mailbox, Member, Received, Thread,
};
use tinderbox_world::link::{Receiver, Sender, mailboxes};

const MINUTE: Duration = Duration::from_secs(60);

type Request = (u64, Sender<(RankIndex, u64)>);
type Link = Mailbox<u64, u64, Host>;

/// Ranks pass a number around a ring, and each sleeps for that number of minutes. The last rank fails at a zero.
fn serve(link: &mut Link, requests: &Receiver<Request>, ranks: usize, abort: &Abort<String, Host>) {
    let simulation = current().expect("a rank is a fiber");
    let (never, forever) = (Host.signal(), Host.deadline(Duration::MAX));
    while let Received::Message((number, reply)) = Host.receive(requests, &never, forever) {
        let own = link.rank().index();
        if number == 0 && own + 1 == ranks {
            return abort.trigger("a zero".to_owned());
        }
        simulation.sleep(MINUTE * number as u32);
        let next = RankIndex::new((own + 1) % ranks);
        let before = RankIndex::new((own + ranks - 1) % ranks);
        let sent = link.send(next, number, number + own as u64);
        match sent.and_then(|()| link.poll(before, number)) {
            Ok(got) => drop(Host.send(&reply, (link.rank(), got))),
            Err(error) => return abort.trigger(error.to_string()),
        }
    }
}

/// Runs a driver of three ranks that wait up to five minutes for each other.
fn drive(seed: u64, driver: impl FnOnce(&mut Crew<Request, String, Host>) + Send) -> Duration {
    let mut simulation = Simulation::new(seed);
    simulation.start(Process::new(0), "driver", || {
        let abort = Abort::<String, Host>::default();
        let member = |link: Link| {
            let abort = abort.clone();
            let body = move |link: &mut Link, requests: &Receiver<Request>| {
                serve(link, requests, 3, &abort);
            };
            Member { link, body }
        };
        let members = mailboxes(3, &abort, 5 * MINUTE).into_iter().map(member);
        let lost = |rank| format!("rank {rank} is lost");
        let first = RankIndex::new(0);
        let mut crew = Crew::start_at(first, &abort, members.collect(), lost).unwrap();
        driver(&mut crew);
    });
    simulation.run().unwrap().elapsed
}

#[test]
fn ranks_are_fibers_and_minutes_are_virtual() {
    for seed in 0..50 {
        let elapsed = drive(seed, |crew| {
            for number in 1..4 {
                let replies = crew.ask_while(4 * MINUTE, || false, |_, reply| (number, reply));
                assert_eq!(replies.unwrap(), [number + 2, number, number + 1]);
            }
        });
        assert_eq!(elapsed, 6 * MINUTE);
    }
}

#[test]
fn a_rank_that_fails_ends_all() {
    for seed in 0..50 {
        drive(seed, |crew| {
            let error = crew.ask_while(MINUTE, || false, |_, reply| (0, reply));
            let error = error.unwrap_err();
            assert!(matches!(error, CrewError::Failed { reason } if reason == "a zero"));
            let again = crew.ask_while(MINUTE, || false, |_, reply| (1, reply));
            assert!(matches!(again, Err(CrewError::Stopped)));
        });
    }
}

#[test]
fn a_rank_that_is_stuck_is_named_after_the_timeout() {
    for seed in 0..50 {
        let elapsed = drive(seed, |crew| {
            let make = |rank: RankIndex, reply| (1 + 5 * rank.index() as u64, reply);
            let error = crew.ask_while(MINUTE, || false, make);
            let error = error.unwrap_err();
            assert!(matches!(error, CrewError::Timeout { rank, .. } if rank.index() == 0));
            let now = current().unwrap().now();
            assert!(now < 2 * MINUTE, "{now:?}");
        });
        // Detached, it continues until its operation returns.
        assert_eq!(elapsed, 11 * MINUTE);
    }
}

/// Checks a value that one thread waits for and another changes.
fn check_awaited() {
    let value = Arc::new(Awaited::new(0));
    assert_eq!(
        value.wait_for(Duration::ZERO, |value| (*value == 0).then_some("there")),
        Some("there")
    );
    assert_eq!(
        value.wait_for(Duration::from_millis(5), |value| (*value == 1)
            .then_some(())),
        None
    );
    let changed = value.clone();
    let body = move || {
        for number in 1..=3 {
            changed.change(|value| *value = number);
        }
    };
    let began = Instant::now();
    let thread = Thread::spawn("changes", body).unwrap();
    let found = value.wait_for(MINUTE, |value| (*value == 3).then_some(*value));
    assert_eq!(found, Some(3));
    assert!(began.elapsed() < MINUTE, "the last change woke nobody");
    thread.join();
}

#[test]
fn a_change_wakes_waiting_threads() {
    for seed in 0..50 {
        check_awaited();
        let mut simulation = Simulation::new(seed);
        simulation.start(Process::new(0), "main", check_awaited);
        simulation.run().unwrap();
    }
}
