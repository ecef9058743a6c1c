//! Processes that continue after others were lost.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Barrier, Mutex};
use std::time::{Duration, Instant};

use bytes::Bytes;
use tinderbox_engines::{Delays, Net};
use tinderbox_world::{
    Buffer, Channel, Failure, Handler, RankIndex, World, WorldError, WorldOptions,
};

use crate::support::{endless, on_threads, options, rank};

/// Forwards frames to a channel.
struct Forward(Mutex<Sender<(RankIndex, Vec<u8>)>>);

impl Handler for Forward {
    fn received(&self, from: RankIndex, header: &[u8], _: Vec<Buffer>) {
        let _ = self.0.lock().unwrap().send((from, header.to_vec()));
    }

    fn failed(&self, _: &Failure) {}
}

fn opened(world: &World) -> (Channel, Receiver<(RankIndex, Vec<u8>)>) {
    let (sender, frames) = channel();
    (world.open(Arc::new(Forward(Mutex::new(sender)))), frames)
}

/// Every rank sends its number to all others, and receives their numbers.
fn exchange(world: &World) {
    let (channel, frames) = opened(world);
    let own = world.rank();
    for to in channel.others() {
        channel.send(
            to,
            &[own.index() as u8],
            vec![Bytes::from(vec![1; 1 << 16])],
        );
    }
    for _ in channel.others() {
        let (from, header) = frames.recv_timeout(Duration::from_secs(10)).unwrap();
        assert_eq!(header, [from.index() as u8]);
    }
    let expected: Vec<usize> = (0..world.size()).collect();
    assert_eq!(world.all_gather(own.index()).unwrap(), expected);
    assert_eq!(
        world
            .from_first(|| Ok::<_, WorldError>(own.index()))
            .unwrap(),
        0
    );
}

/// Kills a rank, and checks that the remaining ranks continue.
fn survive(size: usize, killed: usize, delays: Delays, options: &WorldOptions) {
    let all = Barrier::new(size);
    let found = on_threads(size, delays, options, |world, net: &Net| {
        let was = world.rank();
        let clone = world.clone();
        let (old, _frames) = opened(&world);
        exchange(&world);
        // From now on, all ranks have all frames that they wait for.
        all.wait();
        if was == rank(killed) {
            net.kill(was);
            return None;
        }
        let error = loop {
            // Some ranks may still complete a call.
            if let Err(error) = world.barrier() {
                break error;
            }
        };
        assert!(matches!(error, WorldError::Failed(_)), "{error}");
        let began = Instant::now();
        world.regroup().unwrap();
        let took = began.elapsed();
        assert!(took < Duration::from_secs(1), "{took:?}");
        // No rank receives frames of the generation before.
        old.send(rank(0), b"old", Vec::new());
        old.fail("late");
        drop(old);
        exchange(&world);
        exchange(&world);
        assert_eq!(world.generation(), 1);
        assert_eq!(world.failure(), None);
        assert_eq!((clone.rank(), clone.size()), (world.rank(), size - 1));
        Some((was.index(), world.rank().index()))
    });
    let left = (0..size).filter(|was| *was != killed);
    let expected: Vec<(usize, usize)> = left.zip(0..).collect();
    let found: Vec<(usize, usize)> = found.into_iter().flatten().collect();
    assert_eq!(found, expected);
}

#[test]
fn remaining_ranks_continue() {
    for size in 2..5 {
        for killed in 0..size {
            survive(size, killed, Delays::default(), &options());
        }
    }
    for seed in 0..20 {
        let most = Duration::from_millis(3);
        survive(4, seed as usize % 4, Delays { seed, most }, &options());
    }
}

/// The longest timeouts cause no overflow.
#[test]
fn endless_timeouts_are_no_panic() {
    survive(3, 1, Delays::default(), &endless());
}

/// One after the other is lost, down to a single process.
#[test]
fn a_world_shrinks_to_one() {
    let all = [4, 3, 2].map(Barrier::new);
    let found = on_threads(4, Delays::default(), &options(), |world, net: &Net| {
        let was = world.rank();
        for (lost, all) in [2, 0, 3].into_iter().zip(&all) {
            exchange(&world);
            all.wait();
            if was == rank(lost) {
                net.kill(was);
                return 0;
            }
            while world.barrier().is_ok() {}
            world.regroup().unwrap();
        }
        exchange(&world);
        world.size()
    });
    assert_eq!(found, [0, 1, 0, 0]);
}

/// A rank that others have given up, and that returns: it is notified, and none of its frames arrive.
#[test]
fn a_rank_that_returns_is_left_out() {
    let [all, continued, returned] = [3; 3].map(Barrier::new);
    let found = on_threads(3, Delays::default(), &options(), |world, net: &Net| {
        let was = world.rank();
        let (old, _frames) = opened(&world);
        exchange(&world);
        all.wait();
        if was == rank(0) {
            net.stop(was);
            while world.barrier().is_ok() {}
            // A frame that it sends meanwhile arrives late.
            old.send(rank(1), b"late", Vec::new());
            continued.wait();
            net.resume(was);
            let error = world.regroup().unwrap_err();
            returned.wait();
            return error.to_string();
        }
        let error = loop {
            if let Err(error) = world.barrier() {
                break error;
            }
        };
        assert!(error.to_string().contains("no sign of life"), "{error}");
        world.regroup().unwrap();
        let (channel, frames) = opened(&world);
        continued.wait();
        returned.wait();
        exchange(&world);
        assert!(frames.try_recv().is_err());
        drop(channel);
        exchange(&world);
        String::new()
    });
    insta::assert_snapshot!(found[0], @"the other processes have given this one up and continue as generation 1 of their world: it was silent for longer than they wait, or its connections ended; end this process, or start it in a new run");
}

/// Two ranks that have lost each other: one of them continues with the others, the lower one if both know it when they ask.
#[test]
fn a_broken_connection_leaves_one_of_two_out() {
    let all = Barrier::new(4);
    let found = on_threads(4, Delays::default(), &options(), |world, net: &Net| {
        let was = world.rank();
        exchange(&world);
        all.wait();
        if was == rank(0) {
            net.cut(rank(1), rank(2));
        }
        while world.barrier().is_ok() {}
        match world.regroup() {
            Ok(()) => {
                exchange(&world);
                format!("{} of {}", world.rank(), world.size())
            }
            Err(error) => error.to_string(),
        }
    });
    let is_out = |text: &&String| text.contains("have given this one up");
    let (out, left): (Vec<&String>, Vec<&String>) = found.iter().partition(is_out);
    assert_eq!(left, ["0 of 3", "1 of 3", "2 of 3"]);
    assert!([&found[1], &found[2]].contains(&out[0]), "{found:?}");
}

/// Without regrouping, the failure stays.
#[test]
fn fewer_than_half_do_not_continue() {
    let all = Barrier::new(3);
    let found = on_threads(3, Delays::default(), &options(), |world, net: &Net| {
        let was = world.rank();
        exchange(&world);
        all.wait();
        if was != rank(1) {
            net.kill(was);
            return String::new();
        }
        while world.barrier().is_ok() {}
        // Until both others are lost.
        std::thread::sleep(Duration::from_millis(100));
        world.regroup().unwrap_err().to_string()
    });
    let error = &found[1];
    assert!(
        error.starts_with("1 of 3 processes are left (rank "),
        "{error}"
    );
}
