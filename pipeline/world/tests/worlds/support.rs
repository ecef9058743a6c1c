//! Worlds of threads.

use std::time::Duration;

use tinderbox_engines::{Delays, Net, Threads};
use tinderbox_ids::RankIndex;
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

/// The longest timeouts, which are without an end.
pub(crate) fn endless() -> WorldOptions {
    let mut options = options();
    options.call_timeout = Duration::MAX;
    options.join_timeout = Duration::MAX;
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

pub(crate) fn meeting() -> Meeting {
    Meeting::on_this_machine().unwrap()
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

/// Runs a program as every rank of a world of threads.
pub(crate) fn on_threads<R: Send>(
    size: usize,
    delays: Delays,
    options: &WorldOptions,
    program: impl Fn(World, &Net) -> R + Sync,
) -> Vec<R> {
    Threads::run(size, delays, options, program).unwrap()
}
