//! An engine between the processes of a simulation, with faults, for tests.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tinderbox_schedule::RankIndex;
use tinderbox_simulation::{Event, Handle, Process, Report, Simulation, SimulationError};

use crate::engine::{Close, Engine, Events, Outbox, Started};
use crate::environment::Local;
use crate::error::WorldError;
use crate::frame::Frame;
use crate::members::others;
use crate::options::WorldOptions;
use crate::threads::{Delays, Item, join};
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
#[derive(Clone, derive_more::Debug)]
pub struct SimulatedNet {
    #[debug(skip)]
    simulation: Handle,
    size: usize,
    /// The longest time that a frame takes.
    most: Duration,
    /// A process has joined.
    #[debug(skip)]
    joined: Event,
    #[debug(skip)]
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    joined: usize,
    processes: Vec<Peer>,
    /// What is on its way from one process to another.
    lanes: BTreeMap<Way, Lane>,
    /// The senders and receivers whose connections have ended.
    ended: BTreeSet<(RankIndex, RankIndex)>,
}

/// A sender, a receiver and a lane.
type Way = (RankIndex, RankIndex, Order);

#[derive(Clone, Default)]
struct Peer {
    /// Where it receives; `None` before it joins and after it has closed.
    events: Option<Arc<dyn Events>>,
    /// What its frames take longer, at most.
    slow: Duration,
}

/// Frames that arrive in order. Frames of one lane may overtake those of the other.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Order {
    Sent,
    Idle,
}

#[derive(Default)]
struct Lane {
    /// Each with the time when it arrives.
    items: VecDeque<(Duration, Item)>,
    /// When the last one arrives.
    last: Duration,
}

impl State {
    /// Loses what is on its way.
    fn clear(&mut self, from: RankIndex, to: RankIndex) {
        for order in [Order::Sent, Order::Idle] {
            self.lanes.remove(&(from, to, order));
        }
    }

    /// Loses all but a random number of the frames that arrive first.
    fn lose_last(&mut self, way: Way, simulation: &Handle) {
        let items = &mut self.lanes.entry(way).or_default().items;
        let arrive = simulation.random(items.len() as u64 + 1);
        items.truncate(arrive as usize);
    }
}

impl Simulated {
    /// Creates the ranks of a world in a simulation, and what breaks their connections. Each frame takes a random time up
    /// to `most`.
    pub fn world(simulation: &Handle, size: usize, most: Duration) -> (Vec<Self>, SimulatedNet) {
        let net = SimulatedNet {
            simulation: simulation.clone(),
            size,
            most,
            joined: simulation.event(),
            state: Arc::new(Mutex::new(State {
                processes: vec![Peer::default(); size],
                ..State::default()
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
        let mut results: Vec<Option<R>> = (0..size).map(|_| None).collect();
        let mut simulation = Simulation::new(delays.seed);
        let (engines, net) = Self::world(&simulation.handle(), size, delays.most);
        for (engine, result) in engines.into_iter().zip(&mut results) {
            let (net, program, rank) = (net.clone(), &program, engine.rank);
            let name = format!("rank-{rank}");
            simulation.start(net.process(rank), name, move || {
                let world = engine.join(options.clone());
                let world = world.expect("the processes of a simulation can join");
                *result = Some(program(world, &net));
            });
        }
        let report = simulation.run()?;
        Ok((results.into_iter().flatten().collect(), report))
    }

    /// Joins the world, in a fiber of the process of this rank.
    ///
    /// # Errors
    ///
    /// As [`World::over`].
    pub fn join(self, options: WorldOptions) -> Result<World, WorldError> {
        join(self, options)
    }
}

impl SimulatedNet {
    /// Returns the process of a rank. A rank is what the engine calls it, before any regrouping.
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
        self.state.lock().processes[rank.index()].slow = most;
    }

    /// Ends the connection of two ranks. Both notice, each after a random time. What was on its way may be lost.
    pub fn cut(&self, a: RankIndex, b: RankIndex) {
        for (from, to) in [(a, b), (b, a)] {
            self.end(from, to, Some("its connection was cut"));
        }
    }

    /// Ends all connections of a process. The others notice if there is a reason.
    fn isolate(&self, rank: RankIndex, reason: Option<&str>) {
        for other in others(rank, self.size) {
            self.end(rank, other, reason);
            self.end(other, rank, None);
            self.state.lock().clear(other, rank);
        }
    }

    /// Ends what one process sends to another: of what is on its way, only the first frames may arrive.
    fn end(&self, from: RankIndex, to: RankIndex, reason: Option<&str>) {
        let mut state = self.state.lock();
        if !state.ended.insert((from, to)) {
            return;
        }
        for order in [Order::Sent, Order::Idle] {
            state.lose_last((from, to, order), &self.simulation);
        }
        drop(state);
        if let Some(reason) = reason {
            let end = Item::End(reason.to_owned());
            let most = self.most.saturating_mul(LATE);
            self.put((from, to, Order::Sent), most, end);
        }
    }

    fn send(&self, from: RankIndex, to: RankIndex, order: Order, frame: Frame) {
        let state = self.state.lock();
        if state.ended.contains(&(from, to)) {
            return;
        }
        let slow = state.processes[from.index()].slow;
        drop(state);
        let most = match order {
            Order::Sent => self.most,
            Order::Idle => self.most.saturating_mul(LATE),
        };
        let most = most.saturating_add(slow);
        self.put((from, to, order), most, Item::new(frame));
    }

    /// Lets something arrive after a random time up to `most`, mostly much less: what one connection delays, others overtake.
    fn put(&self, way: Way, most: Duration, item: Item) {
        let most = most / (1 << self.simulation.random(u64::from(OCTAVES)));
        let arrives = self.simulation.now() + self.simulation.random_time(most);
        let mut state = self.state.lock();
        let lane = state.lanes.entry(way).or_default();
        lane.last = arrives.max(lane.last);
        let at = lane.last;
        lane.items.push_back((at, item));
        drop(state);
        let net = self.clone();
        let arrive = move || net.arrive(way);
        self.simulation.at(self.process(way.1), at, arrive);
    }

    /// Delivers the first item of a lane, if it is due: it may have been lost.
    fn arrive(&self, way: Way) {
        let (from, to, _) = way;
        let mut state = self.state.lock();
        let Some(events) = state.processes[to.index()].events.clone() else {
            return;
        };
        let now = self.simulation.now();
        let items = &mut state.lanes.entry(way).or_default().items;
        let Some((_, item)) = items.pop_front_if(|(at, _)| *at <= now) else {
            return;
        };
        if let Item::End(_) = item {
            state.clear(from, to);
        }
        // What receives a frame may send others.
        drop(state);
        item.arrive(from, &*events);
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
        let mut state = net.state.lock();
        state.processes[rank.index()].events = Some(events);
        state.joined += 1;
        drop(state);
        net.simulation.notify(net.joined);
        while net.state.lock().joined < net.size {
            net.simulation.wait(&[net.joined], None);
        }
        // The ranks do not begin their heartbeats at the same moment.
        net.simulation.sleep(net.simulation.random_time(net.most));
        let local = Local {
            rank: rank.index(),
            size: net.size,
        };
        Ok(Started {
            outbox: Box::new(SimulatedOutbox { rank, net }),
            local: Some(local),
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
        let mut state = self.net.state.lock();
        for to in (0..self.net.size).map(RankIndex::new) {
            state.lose_last((self.rank, to, Order::Idle), &self.net.simulation);
        }
    }

    fn close(&self, _: Close) {
        self.net.isolate(self.rank, Some("its process has ended"));
        self.net.state.lock().processes[self.rank.index()].events = None;
    }
}
