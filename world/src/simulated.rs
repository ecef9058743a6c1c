//! An engine between the processes of a simulation, with faults, for tests.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use tinderbox_schedule::RankIndex;
use tinderbox_simulation::{Event, Handle, Process, Report, Simulation, SimulationError};

use crate::engine::{Close, Engine, Events, Outbox, Started};
use crate::environment::{Environment, Launcher, Local};
use crate::error::WorldError;
use crate::frame::{Decoder, Frame, Limits};
use crate::options::WorldOptions;
use crate::threads::Delays;
use crate::world::World;

/// The end of a connection, and frames that wait until it is idle, may take so many times as long as other frames.
const LATE: u32 = 8;

/// Each frame takes up to a random one of so many halvings of the longest time.
const OCTAVES: u32 = 8;

/// A rank of an engine between processes of a simulation: each is fibers of the process with the number of its rank.
/// Frames are encoded and decoded, as by other engines.
#[derive(Debug)]
pub struct Simulated {
    rank: RankIndex,
    net: SimulatedNet,
}

/// The connections between simulated processes, to break them. Clones are the same connections.
#[derive(Clone)]
pub struct SimulatedNet {
    simulation: Handle,
    size: usize,
    /// The longest time that a frame takes.
    most: Duration,
    /// A process has joined.
    joined: Event,
    state: Arc<Mutex<State>>,
}

struct State {
    joined: usize,
    processes: Vec<Peer>,
    /// Per sender and receiver.
    connections: Vec<Connection>,
}

#[derive(Clone, Default)]
struct Peer {
    /// Where it receives; `None` before it joins and after it has closed.
    events: Option<Arc<dyn Events>>,
    /// What its frames take longer, at most.
    slow: Duration,
}

/// What is on its way from one process to another.
struct Connection {
    is_open: bool,
    lanes: [Lane; 2],
}

/// Frames that arrive in order. Frames of one lane may overtake those of the other.
#[derive(Clone, Copy)]
enum Order {
    Sent = 0,
    Idle = 1,
}

struct Lane {
    /// Each with the time when it arrives.
    items: VecDeque<(Duration, Item)>,
    /// When the last one arrives.
    last: Duration,
    decoder: Decoder,
}

enum Item {
    Frame(Vec<Bytes>),
    /// The connection ended.
    End(String),
}

impl Simulated {
    /// Creates the ranks of a world in a simulation, and what breaks their connections. Each frame takes a random time up
    /// to `most`.
    #[must_use]
    pub fn world(simulation: &Handle, size: usize, most: Duration) -> (Vec<Self>, SimulatedNet) {
        let lane = || Lane {
            items: VecDeque::new(),
            last: Duration::ZERO,
            decoder: Decoder::new(Limits::default()),
        };
        let connection = |_| Connection {
            is_open: true,
            lanes: [lane(), lane()],
        };
        let net = SimulatedNet {
            simulation: simulation.clone(),
            size,
            most,
            joined: simulation.event(),
            state: Arc::new(Mutex::new(State {
                joined: 0,
                processes: vec![Peer::default(); size],
                connections: (0..size * size).map(connection).collect(),
            })),
        };
        let engine = |rank| Self {
            rank: RankIndex::new(rank),
            net: net.clone(),
        };
        ((0..size).map(engine).collect(), net)
    }

    /// Runs a program as every rank of a world, each as a process of one simulation with the seed of the delays, and
    /// returns what each returns.
    ///
    /// # Errors
    ///
    /// The first panic of a rank; ranks that wait forever.
    ///
    /// # Panics
    ///
    /// Within a simulation.
    pub fn run<R: Send>(
        size: usize,
        delays: Delays,
        options: &WorldOptions,
        program: impl Fn(World, &SimulatedNet) -> R + Sync,
    ) -> Result<(Vec<R>, Report), SimulationError> {
        let results: Vec<Mutex<Option<R>>> = (0..size).map(|_| Mutex::default()).collect();
        let mut simulation = Simulation::new(delays.seed);
        let (engines, net) = Self::world(&simulation.handle(), size, delays.most);
        for (engine, result) in engines.into_iter().zip(&results) {
            let (net, program, rank) = (net.clone(), &program, engine.rank);
            let name = format!("rank-{rank}");
            simulation.start(net.process(rank), name, move || {
                let world = engine.join(options.clone());
                let world = world.expect("the processes of a simulation can join");
                let done = program(world, &net);
                *locked(result) = Some(done);
            });
        }
        let report = simulation.run()?;
        let results = results.into_iter().map(Mutex::into_inner);
        let results = results.filter_map(|result| result.unwrap_or_else(PoisonError::into_inner));
        Ok((results.collect(), report))
    }

    /// Joins the world, in a fiber of the process of this rank.
    ///
    /// # Errors
    ///
    /// As [`World::over`].
    pub fn join(self, options: WorldOptions) -> Result<World, WorldError> {
        let environment = Environment {
            launcher: Launcher::Torchrun,
            rank: self.rank,
            size: self.net.size,
            local: None,
            meeting: None,
        };
        World::over(&environment, options, Box::new(self))
    }
}

impl SimulatedNet {
    /// Returns the process of a rank. A rank is what the engine calls it, before any regrouping.
    #[must_use]
    pub const fn process(&self, rank: RankIndex) -> Process {
        Process::new(rank.index())
    }

    /// Kills a process: from now on, nothing that it sends arrives, and nothing arrives at it. What it has sent before may
    /// arrive. A random number decides whether its connections end, as if its machine continued, or the others miss its
    /// heartbeats.
    ///
    /// Its fibers continue until their calls fail: they see a network without anybody else.
    pub fn kill(&self, rank: RankIndex) {
        let is_noticed = self.simulation.random(2) == 0;
        let reason = is_noticed.then_some("its process was killed");
        self.isolate(rank, reason);
    }

    /// Pauses a process, as by SIGSTOP: it does nothing for some time, and frames to it wait. If that is longer than the
    /// heartbeats allow, the others give it up, and it comes back.
    pub fn pause(&self, rank: RankIndex, duration: Duration) {
        self.simulation.pause(self.process(rank), duration);
    }

    /// From now on, each frame of a process takes longer, by a random time up to `most`.
    pub fn slow(&self, rank: RankIndex, most: Duration) {
        self.state().processes[rank.index()].slow = most;
    }

    /// Ends the connection of two ranks. Both notice, each after a random time. What was on its way may be lost.
    pub fn cut(&self, a: RankIndex, b: RankIndex) {
        for (from, to) in [(a, b), (b, a)] {
            self.end(from, to, Some("its connection was cut"));
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        locked(&self.state)
    }

    const fn pair(&self, from: RankIndex, to: RankIndex) -> usize {
        from.index() * self.size + to.index()
    }

    /// Ends all connections of a process. The others notice if there is a reason.
    fn isolate(&self, rank: RankIndex, reason: Option<&str>) {
        let others = (0..self.size).map(RankIndex::new);
        for other in others.filter(|other| *other != rank) {
            self.end(rank, other, reason);
            self.end(other, rank, None);
            for lane in &mut self.state().connections[self.pair(other, rank)].lanes {
                lane.items.clear();
            }
        }
    }

    /// Ends what one process sends to another: of what is on its way, only the first frames may arrive.
    fn end(&self, from: RankIndex, to: RankIndex, reason: Option<&str>) {
        let mut state = self.state();
        let connection = &mut state.connections[self.pair(from, to)];
        if !std::mem::take(&mut connection.is_open) {
            return;
        }
        for lane in &mut connection.lanes {
            let arrive = self.simulation.random(lane.items.len() as u64 + 1);
            lane.items.truncate(arrive as usize);
        }
        drop(state);
        if let Some(reason) = reason {
            let end = Item::End(reason.to_owned());
            self.put((from, to), Order::Sent, self.most.saturating_mul(LATE), end);
        }
    }

    fn send(&self, from: RankIndex, to: RankIndex, order: Order, frame: Frame) {
        let state = self.state();
        let connection = state.connections.get(self.pair(from, to));
        if connection.is_none_or(|connection| !connection.is_open) {
            return;
        }
        let slow = state.processes[from.index()].slow;
        drop(state);
        let most = match order {
            Order::Sent => self.most,
            Order::Idle => self.most.saturating_mul(LATE),
        };
        let frame = Item::Frame(frame.into_slices().collect());
        self.put((from, to), order, most.saturating_add(slow), frame);
    }

    /// Lets something arrive after a random time up to `most`, mostly much less: what one connection delays, others overtake.
    fn put(&self, (from, to): (RankIndex, RankIndex), order: Order, most: Duration, item: Item) {
        let most = most / (1 << self.simulation.random(u64::from(OCTAVES)));
        let arrives = self.simulation.now() + self.simulation.random_time(most);
        let mut state = self.state();
        let lane = &mut state.connections[self.pair(from, to)].lanes[order as usize];
        lane.last = arrives.max(lane.last);
        let at = lane.last;
        lane.items.push_back((at, item));
        drop(state);
        let net = self.clone();
        let arrive = move || net.arrive(from, to, order);
        self.simulation.at(self.process(to), at, arrive);
    }

    /// Delivers the first item of a lane, if it is due: it may have been lost.
    fn arrive(&self, from: RankIndex, to: RankIndex, order: Order) {
        let mut state = self.state();
        let Some(events) = state.processes[to.index()].events.clone() else {
            return;
        };
        let lanes = &mut state.connections[self.pair(from, to)].lanes;
        let lane = &mut lanes[order as usize];
        let now = self.simulation.now();
        let Some((_, item)) = lane.items.pop_front_if(|(at, _)| *at <= now) else {
            return;
        };
        let (mut frames, mut lost) = (Vec::new(), None);
        match item {
            Item::Frame(slices) => {
                for slice in slices {
                    let pushed = lane.decoder.push(&slice);
                    lost = lost.or(pushed.err().map(|error| error.to_string()));
                }
                frames.extend(std::iter::from_fn(|| lane.decoder.next_frame()));
            }
            Item::End(reason) => {
                lanes.iter_mut().for_each(|lane| lane.items.clear());
                lost = Some(reason);
            }
        }
        // What receives a frame may send others.
        drop(state);
        for frame in frames {
            events.heard(from);
            events.received(from, frame);
        }
        if let Some(reason) = lost {
            events.lost(from, reason);
        }
    }
}

impl Engine for Simulated {
    fn name(&self) -> &'static str {
        "simulation"
    }

    fn rank(&self) -> RankIndex {
        self.rank
    }

    fn size(&self) -> usize {
        self.net.size
    }

    fn start(self: Box<Self>, events: Arc<dyn Events>) -> Result<Started, WorldError> {
        let Self { rank, net } = *self;
        let mut state = net.state();
        state.processes[rank.index()].events = Some(events);
        state.joined += 1;
        drop(state);
        net.simulation.notify(net.joined);
        while net.state().joined < net.size {
            net.simulation.wait(&[net.joined], None);
        }
        // The ranks do not begin their heartbeats at the same moment.
        net.simulation.sleep(net.simulation.random_time(net.most));
        let (rank_on_machine, size) = (rank.index(), net.size);
        Ok(Started {
            outbox: Box::new(SimulatedOutbox { rank, net }),
            local: Some(Local {
                rank: rank_on_machine,
                size,
            }),
        })
    }
}

struct SimulatedOutbox {
    rank: RankIndex,
    net: SimulatedNet,
}

impl Outbox for SimulatedOutbox {
    fn send(&self, to: RankIndex, frame: Frame) {
        self.net.send(self.rank, to, Order::Sent, frame);
    }

    fn send_when_idle(&self, to: RankIndex, frame: Frame) {
        self.net.send(self.rank, to, Order::Idle, frame);
    }

    fn forget_idle(&self) {
        let (size, own) = (self.net.size, self.rank.index());
        let mut state = self.net.state();
        for connection in &mut state.connections[own * size..(own + 1) * size] {
            let lane = &mut connection.lanes[Order::Idle as usize];
            let sent = self.net.simulation.random(lane.items.len() as u64 + 1);
            lane.items.truncate(sent as usize);
        }
    }

    fn close(&self, _: Close) {
        self.net.isolate(self.rank, Some("its process has ended"));
        self.net.state().processes[self.rank.index()].events = None;
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl fmt::Debug for SimulatedNet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SimulatedNet")
            .field("size", &self.size)
            .field("most", &self.most)
            .finish_non_exhaustive()
    }
}
