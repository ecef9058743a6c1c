//! A driver that waits as long as its ranks make progress.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tinderbox_ids::RankIndex;
use tinderbox_world::link::{Abort, Channels, Crew, CrewError, Member, Received};

use crate::channels::{Fault, Model, Receiver, Sender};
use crate::checker::try_orders;

/// One tick.
const TIMEOUT: Duration = Duration::from_secs(1);
/// Work items of each rank.
const PIECES: usize = 3;

type Reply = Sender<(RankIndex, usize)>;

/// The result of a call, and what the driver observed at each check.
struct Ended {
    result: Result<Vec<usize>, CrewError<usize>>,
    looks: Vec<bool>,
}

/// Two ranks count their work items, for a driver that checks the count; the second is stuck after `stuck` items.
fn call(ticks: u64, stuck: Option<usize>) -> Ended {
    let model = Model::new(Fault::None);
    model.run_clock(ticks);
    let abort: Abort<usize, Model> = Abort::new(model.clone());
    let count = Arc::new(model.cell(0_usize));
    let member = |rank: usize| {
        let (model, abort, count) = (model.clone(), abort.clone(), count.clone());
        let body = move |link: &mut RankIndex, requests: &Receiver<Reply>| {
            let (never, forever) = (model.signal(), model.deadline(Duration::MAX));
            while let Received::Message(reply) = model.receive(requests, &never, forever) {
                for piece in 0..PIECES {
                    if stuck == Some(piece) && rank == 1 {
                        let (_sender, nothing) = model.channel::<()>();
                        let end = model.receive(&nothing, abort.signal(), forever);
                        assert_eq!(end, Received::Stopped);
                        return;
                    }
                    model.with(&count, |count| *count += 1);
                }
                // The driver may have stopped waiting.
                let _ = model.send(&reply, (*link, rank));
            }
        };
        Member {
            link: RankIndex::new(rank),
            body,
        }
    };
    let members = (0..2).map(member).collect();
    let first = RankIndex::new(0);
    let mut crew = Crew::start_at(first, &abort, members, |rank| rank.index()).unwrap();
    let (mut looks, mut seen) = (Vec::new(), 0);
    let look = || {
        let now = model.with(&count, |count| *count);
        let progressed = std::mem::replace(&mut seen, now) != now;
        looks.push(progressed);
        progressed
    };
    let result = crew.ask_while(TIMEOUT, look, |_, reply| reply);
    drop(crew);
    model.settle();
    Ended { result, looks }
}

/// In every order the driver ends a call only after a check that found no progress since the previous one, and never a
/// call that was replied to.
#[test]
fn a_call_ends_by_its_replies_or_when_all_stall() {
    let seen = Arc::new(Mutex::new(BTreeSet::new()));
    for ticks in 1..=4 {
        let seen = seen.clone();
        try_orders(12, 300, move || {
            let Ended { result, looks } = call(ticks, None);
            let progressed = looks.iter().filter(|look| **look).count();
            let way = match result {
                Ok(replies) => {
                    assert_eq!(replies, [0, 1]);
                    assert_eq!(progressed, looks.len(), "it continued after every check");
                    if progressed == 0 {
                        "in time"
                    } else {
                        "after its timeout"
                    }
                }
                Err(CrewError::Timeout { timeout, .. }) => {
                    assert_eq!(timeout, TIMEOUT);
                    assert_eq!(looks.last(), Some(&false));
                    assert_eq!(progressed, looks.len() - 1, "the first such check ends it");
                    "stalled"
                }
                other => panic!("{other:?}"),
            };
            seen.lock().unwrap().insert(way);
        });
    }
    assert_eq!(seen.lock().unwrap().len(), 3, "{seen:?}");
}

/// A rank that never replies is not waited for forever, however much progress was made before.
#[test]
fn a_rank_that_is_stuck_ends_the_call() {
    for stuck in 0..PIECES {
        // A check for each item, one without progress, and one for those that are joined.
        let ticks = 2 * PIECES as u64 + 2;
        try_orders(13, 200, move || match call(ticks, Some(stuck)) {
            Ended {
                result: Err(CrewError::Timeout { .. }),
                looks,
            } => assert_eq!(looks.last(), Some(&false)),
            Ended { result, .. } => panic!("{result:?}"),
        });
    }
}
