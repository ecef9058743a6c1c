//! Worlds of threads.

use std::net::TcpListener;
use std::thread;
use std::time::Duration;

use tinderbox_schedule::RankIndex;
use tinderbox_world::testing::{Delays, Net, Threads};
use tinderbox_world::{Engine, Environment, Grpc, Launcher, Meeting, World, WorldOptions};

pub(crate) fn rank(index: usize) -> RankIndex {
    RankIndex::new(index)
}

/// Heartbeats of 50 ms, calls that wait for 20 s.
pub(crate) fn options() -> WorldOptions {
    let mut options = WorldOptions::default();
    options.heartbeat = Duration::from_millis(50);
    options.call_timeout = Duration::from_secs(20);
    options
}

pub(crate) fn environment(index: usize, size: usize) -> Environment {
    Environment {
        launcher: Launcher::Torchrun,
        rank: rank(index),
        size,
        local: None,
        meeting: None,
    }
}

/// A free port of this machine.
pub(crate) fn meeting() -> Meeting {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let host = "127.0.0.1".to_owned();
    Meeting { host, port }
}

pub(crate) fn met(index: usize, size: usize, meeting: &Meeting) -> Environment {
    Environment {
        meeting: Some(meeting.clone()),
        ..environment(index, size)
    }
}

pub(crate) fn grpc_engines(
    size: usize,
    meeting: &Meeting,
    options: &WorldOptions,
) -> Vec<Box<dyn Engine>> {
    let engine = |index| {
        let engine = Grpc::new(&met(index, size, meeting), options).unwrap();
        Box::new(engine) as Box<dyn Engine>
    };
    (0..size).map(engine).collect()
}

/// Runs a program on every rank of a world of threads, and returns what each returns.
pub(crate) fn on_threads<R: Send>(
    size: usize,
    delays: Delays,
    options: &WorldOptions,
    program: impl Fn(World, &Net) -> R + Sync,
) -> Vec<R> {
    let (engines, net) = Threads::world(size, delays);
    thread::scope(|scope| {
        let ranks = engines.into_iter().enumerate().map(|(index, engine)| {
            let (net, program, options) = (&net, &program, options.clone());
            scope.spawn(move || {
                let environment = environment(index, size);
                let world = World::over(&environment, options, Box::new(engine)).unwrap();
                program(world, net)
            })
        });
        let ranks: Vec<_> = ranks.collect();
        let results = ranks.into_iter().map(|rank| rank.join().unwrap());
        results.collect()
    })
}
