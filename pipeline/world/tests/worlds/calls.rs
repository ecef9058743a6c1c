//! Calls that all ranks make.

use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use tinderbox_engines::Delays;
use tinderbox_world::{Buffer, Failure, Handler, RankIndex, World, WorldError, WorldOptions};

use crate::support::{on_threads, options, rank};

const SLOW: Delays = Delays {
    seed: 3,
    most: Duration::from_millis(5),
};

#[test]
fn all_ranks_get_the_value_of_the_first() {
    let made = AtomicUsize::new(0);
    let results = on_threads(3, SLOW, &options(), |world, _| {
        let plan = world.from_first(|| {
            made.fetch_add(1, Ordering::Relaxed);
            Ok::<_, io::Error>(format!("of rank {}", world.rank()))
        });
        (
            plan.unwrap(),
            world.all_gather(world.rank().index() * 2).unwrap(),
        )
    });
    assert_eq!(made.into_inner(), 1);
    assert!(
        results
            .iter()
            .all(|result| *result == ("of rank 0".to_owned(), vec![0, 2, 4]))
    );
}

/// A value whose form leaves out fields.
#[test]
fn values_have_their_file_form() {
    #[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
    struct Plan {
        #[serde(default, skip_serializing_if = "Option::is_none")]
        name: Option<String>,
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        stages: Vec<f64>,
        last: u64,
    }
    let plan = Plan {
        name: None,
        stages: vec![f64::INFINITY],
        last: u64::MAX,
    };
    let results = on_threads(2, Delays::default(), &options(), |world, _| {
        let first = world
            .from_first(|| Ok::<_, io::Error>(plan.clone()))
            .unwrap();
        (first, world.all_gather(plan.clone()).unwrap())
    });
    assert!(
        results
            .iter()
            .all(|(first, all)| *first == plan && *all == [plan.clone(), plan.clone()])
    );
}

/// Many calls in a row are matched correctly, whatever the delays.
#[test]
fn calls_are_matched_by_their_number() {
    for seed in 0..5 {
        let delays = Delays { seed, ..SLOW };
        on_threads(4, delays, &options(), |world, _| {
            for round in 0..40 {
                let all = world.all_gather((round, world.rank().index())).unwrap();
                assert_eq!(all, (0..4).map(|rank| (round, rank)).collect::<Vec<_>>());
                if round % 7 == 0 {
                    world.barrier().unwrap();
                }
            }
        });
    }
}

#[test]
fn an_error_of_the_first_rank_is_reported_to_all() {
    let results = on_threads(3, Delays::default(), &options(), |world, _| {
        let failed = world.from_first(|| Err::<(), _>(io::Error::other("no such model")));
        // The world continues.
        world.barrier().unwrap();
        failed.unwrap_err().to_string()
    });
    let expected = "rank 0 could not compute the value that all ranks wait for: no such model";
    assert!(results.iter().all(|text| text == expected), "{results:?}");
}

#[test]
fn ranks_agree_before_anything_changes() {
    let results = on_threads(3, SLOW, &options(), |world, _| {
        world.agree(Ok::<(), io::Error>(())).unwrap();
        let own = match world.rank().index() {
            1 => Err(io::Error::other("the shard is damaged")),
            _ => Ok(()),
        };
        world.agree(own).unwrap_err().to_string()
    });
    let expected = "rank 1 can't continue: the shard is damaged";
    assert!(results.iter().all(|text| text == expected), "{results:?}");
}

#[test]
fn other_calls_are_named() {
    let results = on_threads(2, Delays::default(), &options(), |world, _| {
        let error = match world.is_first() {
            true => world.barrier().unwrap_err(),
            false => world.all_gather(1).unwrap_err(),
        };
        error.to_string()
    });
    insta::assert_snapshot!(results.join("\n"), @r#"
    rank 1 calls `all_gather` while this one, 0, calls `barrier`: all ranks make the same calls in the same order
    rank 0 calls `barrier` while this one, 1, calls `all_gather`: all ranks make the same calls in the same order
    "#);
}

#[test]
fn a_rank_that_does_not_call_is_named() {
    let mut options = options();
    options.call_timeout = Duration::from_millis(300);
    let results = on_threads(2, Delays::default(), &options, |world, _| {
        // The first rank leaves without the call, or only after the other has given up.
        match world.is_first() {
            true => {
                let (_sender, never) = channel::<()>();
                let _ = never.recv_timeout(Duration::from_secs(1));
                String::new()
            }
            false => world.barrier().unwrap_err().to_string(),
        }
    });
    assert_eq!(
        results[1],
        "rank 0 has not called `barrier` within 300ms: do all ranks make the same calls in the same order?"
    );
    let results = on_threads(
        2,
        Delays::default(),
        &WorldOptions::default(),
        |world, _| match world.is_first() {
            true => String::new(),
            false => world.barrier().unwrap_err().to_string(),
        },
    );
    assert!(results[1].contains("it has left"), "{}", results[1]);
}

#[test]
fn a_world_of_one_makes_every_call_alone() {
    let world = World::alone();
    assert_eq!(world.from_first(|| Ok::<_, io::Error>(7)).unwrap(), 7);
    assert_eq!(world.all_gather("x".to_owned()).unwrap(), ["x"]);
    world.barrier().unwrap();
    let error = world.agree(Err(io::Error::other("full"))).unwrap_err();
    assert!(matches!(error, WorldError::Disagreement { .. }));
    assert!(world.is_first() && world.failure().is_none());
    world.fail("ignored");
}

/// Keeps the frames that arrive.
#[derive(Default)]
struct Keep(Mutex<Vec<Kept>>);

/// The sender, the header and the pieces of a frame.
type Kept = (RankIndex, Vec<u8>, Vec<Vec<u8>>);

impl Handler for Keep {
    fn received(&self, from: RankIndex, header: &[u8], pieces: Vec<Buffer>) {
        let pieces = pieces.iter().map(Buffer::to_vec).collect();
        self.0.lock().unwrap().push((from, header.to_vec(), pieces));
    }

    fn failed(&self, _: &Failure) {}
}

/// Frames that arrive before a channel is opened are kept in order, and each frame arrives in its channel.
#[test]
fn channels_are_separate_and_early_frames_wait() {
    on_threads(3, SLOW, &options(), |world, _| {
        let kept = [Arc::new(Keep::default()), Arc::new(Keep::default())];
        let send = |channel: &tinderbox_world::Channel, number: u8| {
            for to in channel.others() {
                for index in 0..20 {
                    channel.send(to, &[number, index], vec![Bytes::from(vec![index; 10])]);
                }
            }
        };
        let first = world.open(kept[0].clone());
        send(&first, 0);
        // The others may get frames of the second channel long before they open it.
        if world.rank().index() == 2 {
            world.barrier().unwrap();
        }
        let second = world.open(kept[1].clone());
        send(&second, 1);
        if world.rank().index() != 2 {
            world.barrier().unwrap();
        }
        world.barrier().unwrap();
        for (number, kept) in kept.iter().enumerate() {
            for from in first.others() {
                let all = kept.0.lock().unwrap();
                let of = all.iter().filter(|(rank, ..)| *rank == from);
                let found: Vec<(Vec<u8>, Vec<Vec<u8>>)> = of
                    .map(|(_, header, pieces)| (header.clone(), pieces.clone()))
                    .collect();
                let expected: Vec<(Vec<u8>, Vec<Vec<u8>>)> = (0..20)
                    .map(|index| (vec![number as u8, index], vec![vec![index; 10]]))
                    .collect();
                assert_eq!(found, expected);
            }
        }
        drop(first);
        world.barrier().unwrap();
        assert_eq!(second.rank(), world.rank());
        assert!(
            second
                .others()
                .all(|other| other != rank(world.rank().index()))
        );
    });
}
