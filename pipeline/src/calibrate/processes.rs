//! Measures ranks that are processes, and the links between them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use burn::tensor::Device;
use bytes::Bytes;
use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, unbounded};
use tinderbox_fake::is_host;
use tinderbox_planner::{Machine, RankModel};
use tinderbox_world::{Buffer, Channel, Failure, Handler, World, WorldError};

use super::threads::{TURNS, calibrate, median, nanoseconds};
use crate::CalibrateError;
use crate::schedule::{LinkCosts, Network, RankIndex};

/// Round trips of a measurement of a link.
const TRIPS: usize = 20;

/// How long the other end of a link may be silent.
const SILENCE: Duration = Duration::from_secs(60);

/// Measures a machine, or several, whose ranks are the processes of a world, each with `threads` threads: what
/// [`calibrate`] measures, of every process while all others run too, and the latency and the rate of the links between
/// processes of one machine and of two. All processes call this, and get the same. Takes some ten seconds.
///
/// The speed of a rank is the speed of its matrix products, in units of the first rank's.
///
/// # Errors
///
/// As [`calibrate`], and [`CalibrateError::World`] when a process is lost.
pub fn calibrate_world(
    world: &World,
    device: &Device,
    threads: usize,
) -> Result<Machine, CalibrateError> {
    let name = tinderbox_world::machine();
    let names = world.all_gather(name.clone())?;
    let machine_of = numbered(&names);
    let own = calibrate(device, 1, threads);
    world.agree(own.as_ref().map(drop))?;
    let own = own?;
    let all = world.all_gather(own.to_json())?;
    let all = all.iter().map(|json| Machine::from_json(json));
    let all: Vec<Machine> = all.collect::<Result<_, _>>()?;

    let link = Link::open(world);
    let measure = |is_between: bool| -> Result<Option<LinkCosts>, CalibrateError> {
        let mut others = (1..world.size()).filter(|rank| (machine_of[*rank] != 0) == is_between);
        match others.next() {
            None => Ok(None),
            Some(other) => Ok(Some(link.measure(world, RankIndex::new(other))?)),
        }
    };
    let (within, between) = (measure(false)?, measure(true)?);

    let first = &all[0];
    let ranks = all.iter().zip(&machine_of).map(|(machine, of)| {
        // Each process may have a GPU of its own.
        let sharers = machine_of.iter().filter(|other| *other == of).count() as u64;
        let sharers = if is_host(device) { sharers } else { 1 };
        let flops = u128::from(machine.rates.flops_per_s) * 1000;
        let speed = flops / u128::from(first.rates.flops_per_s.max(1));
        let memory = machine.rank(RankIndex::new(0)).memory_bytes;
        RankModel {
            memory_bytes: memory.map(|bytes| bytes / sharers),
            speed_permille: u64::try_from(speed).unwrap_or(u64::MAX).max(1),
        }
    });
    let mut machine = Machine::of_ranks(ranks.collect())?;
    (machine.rates, machine.action_ns) = (first.rates, first.action_ns);
    machine.link = within.or(between).unwrap_or(first.link);
    machine.network = between.map(|link| Network { machine_of, link });
    // What was measured is the first process' own.
    let json = world.from_first(|| Ok::<_, CalibrateError>(machine.to_json()))?;
    Ok(Machine::from_json(&json)?)
}

/// The number of each machine, in the order of their first ranks.
fn numbered(names: &[String]) -> Vec<usize> {
    let mut known = BTreeMap::new();
    let numbers = names.iter().map(|name| {
        let next = known.len();
        *known.entry(name).or_insert(next)
    });
    numbers.collect()
}

/// Passes pieces of frames to the thread that measures.
struct Inbox(Sender<Vec<Buffer>>);

impl Handler for Inbox {
    fn received(&self, _: RankIndex, _: &[u8], pieces: Vec<Buffer>) {
        // The measurement may have failed.
        let _ = self.0.send(pieces);
    }

    /// The next call of the world reports it.
    fn failed(&self, _: &Failure) {}
}

struct Link {
    channel: Channel,
    received: Receiver<Vec<Buffer>>,
}

impl Link {
    fn open(world: &World) -> Self {
        let (sender, received) = unbounded();
        let channel = world.open(Arc::new(Inbox(sender)));
        Self { channel, received }
    }

    /// Measures the link between the first rank and another one, while the others wait.
    fn measure(&self, world: &World, other: RankIndex) -> Result<LinkCosts, CalibrateError> {
        world.barrier()?;
        let first = RankIndex::new(0);
        let measured = match world.rank() {
            rank if rank == first => self.trips(world, other),
            rank if rank == other => self.trips(world, first),
            _ => Ok([Duration::ZERO; 2]),
        };
        world.agree(measured.as_ref().map(drop))?;
        let [latency, per_mib] = measured?;
        Ok(LinkCosts {
            latency: nanoseconds(latency),
            ticks_per_mib: nanoseconds(per_mib),
            ..LinkCosts::default()
        })
    }

    /// The time of one way of a few bytes, and how much longer a MiB takes. The first rank begins.
    fn trips(&self, world: &World, other: RankIndex) -> Result<[Duration; 2], CalibrateError> {
        let pieces = [8, 1 << 20].map(|length| Bytes::from(vec![1; length]));
        let (mut small, mut longer) = (Vec::new(), Vec::new());
        // Both lengths in each turn, because other load changes meanwhile. The first turn allocates memory.
        for turn in 0..=TURNS {
            let mut times = [Duration::ZERO; 2];
            for (piece, time) in pieces.iter().zip(&mut times) {
                let started = Instant::now();
                for _ in 0..TRIPS {
                    if world.is_first() {
                        self.channel.send(other, &[1], vec![piece.clone()]);
                    }
                    self.receive(world)?;
                    if !world.is_first() {
                        self.channel.send(other, &[1], vec![piece.clone()]);
                    }
                }
                *time = started.elapsed() / (2 * TRIPS as u32);
            }
            if turn > 0 {
                small.push(times[0]);
                longer.push(times[1].saturating_sub(times[0]));
            }
        }
        Ok([median(small), median(longer)])
    }

    fn receive(&self, world: &World) -> Result<(), CalibrateError> {
        const LOOK: Duration = Duration::from_millis(100);
        let started = Instant::now();
        loop {
            match self.received.recv_timeout(LOOK) {
                Ok(_) => return Ok(()),
                Err(RecvTimeoutError::Disconnected) => return Err(CalibrateError::Silent),
                Err(RecvTimeoutError::Timeout) => {}
            }
            if let Some(failure) = world.failure() {
                return Err(WorldError::Failed(failure).into());
            }
            if started.elapsed() > SILENCE {
                return Err(CalibrateError::Silent);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn machines_are_numbered_by_their_first_ranks() {
        let names = ["b", "b", "a", "b", "c", "a"].map(str::to_owned);
        assert_eq!(numbered(&names), [0, 0, 1, 0, 2, 1]);
    }
}
