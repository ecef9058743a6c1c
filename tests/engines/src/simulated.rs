//! An engine between the processes of a simulation.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tinderbox_simulation::{Event, Handle, Process, Report, Simulation, SimulationError};
use tinderbox_world::{
    Close, Engine, Events, Frame, Local, Outbox, Priority, RankIndex, Started, World, WorldError,
    WorldOptions,
};

use crate::threads::{Delays, Item, join, others};

/// The end of a connection and idle frames may take this many times as long as other frames.
const LATE: u32 = 8;

/// The longest time is halved a random number of times, below this number, for each frame.
const OCTAVES: u32 = 8;

/// A rank of an engine between processes of a simulation. The fibers of a rank belong to the process with the number of the
/// rank. Frames are encoded and decoded, as by other engines.
#[derive(Debug)]
pub struct Simulated {
    rank: RankIndex,
    net: SimulatedNet,
}

/// The connections between simulated processes, to break them. Clones are the same connections.
#[derive(Clone, derive_more::Debug)]
#[debug("SimulatedNet {{ size: {size}, most: {most:?}, .. }}")]
pub struct SimulatedNet {
    simulation: Handle,
    size: usize,
    /// The longest time of a frame.
    most: Duration,
    /// Notified when a process has joined.
    joined: Event,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    joined: usize,
    processes: Vec<Peer>,
    /// The items on their way from one process to another.
    lanes: BTreeMap<Way, Lane>,
    /// The senders and receivers whose connections have ended.
    ended: BTreeSet<(RankIndex, RankIndex)>,
}

/// A sender, a receiver and a priority.
type Way = (RankIndex, RankIndex, Priority);

#[derive(Clone, Default)]
struct Peer {
    /// The receiver of its frames; `None` before it joins and after it has closed.
    events: Option<Arc<dyn Events>>,
    /// The longest additional time of its frames.
    slow: Duration,
}

#[derive(Default)]
struct Lane {
    /// The items with their times of arrival.
    items: VecDeque<(Duration, Item)>,
    /// The arrival of the last one.
    last: Duration,
}

impl State {
    /// Loses all items on their way.
    fn clear(&mut self, from: RankIndex, to: RankIndex) {
        for priority in [Priority::Normal, Priority::Idle] {
            self.lanes.remove(&(from, to, priority));
        }
    }

    /// Loses all items except a random number of the first ones.
    fn lose_last(&mut self, way: Way, simulation: &Handle) {
        let items = &mut self.lanes.entry(way).or_default().items;
        let arrive = simulation.random(items.len() as u64 + 1);
        items.truncate(arrive as usize);
    }
}

impl Simulated {
    /// Creates the ranks of a world in a simulation, and the connections between them. Each frame takes a random time up to
    /// `most`.
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
    /// returns the result of each.
    ///
    /// # Errors
    ///
    /// When a rank panics, or ranks wait forever.
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
    /// The errors of [`World::over`].
    pub fn join(self, options: WorldOptions) -> Result<World, WorldError> {
        join(Box::new(self), options)
    }
}

impl SimulatedNet {
    /// Returns the process of a rank. A rank is the rank of the engine, before any regrouping.
    pub const fn process(&self, rank: RankIndex) -> Process {
        Process::new(rank.index())
    }

    /// Kills a process: from now on, no new frame of it arrives, and no frame arrives at it. Frames that it has sent before may
    /// arrive. A random number decides whether its connections end, as if its machine continued, or the others miss its
    /// heartbeats.
    ///
    /// Its fibers continue until their calls fail: to them, all other processes are silent.
    pub fn kill(&self, rank: RankIndex) {
        let is_noticed = self.simulation.random(2) == 0;
        let reason = is_noticed.then_some("its process was killed");
        self.isolate(rank, reason);
    }

    /// Pauses a process for some time, as SIGSTOP does. Frames to it wait. If the time is longer than the heartbeats allow, the
    /// others give the process up before it continues.
    pub fn pause(&self, rank: RankIndex, duration: Duration) {
        self.simulation.pause(self.process(rank), duration);
    }

    /// Slows a process down: from now on, each of its frames takes longer, by a random time up to `most`.
    pub fn slow(&self, rank: RankIndex, most: Duration) {
        self.state.lock().processes[rank.index()].slow = most;
    }

    /// Ends the connection of two ranks. Both notice, each after a random time. Frames on their way may be lost.
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

    /// Ends one direction of a connection. Of the frames on their way, only the first ones may arrive.
    fn end(&self, from: RankIndex, to: RankIndex, reason: Option<&str>) {
        let mut state = self.state.lock();
        if !state.ended.insert((from, to)) {
            return;
        }
        for priority in [Priority::Normal, Priority::Idle] {
            state.lose_last((from, to, priority), &self.simulation);
        }
        drop(state);
        if let Some(reason) = reason {
            let end = Item::End(reason.to_owned());
            let most = self.most.saturating_mul(LATE);
            self.put((from, to, Priority::Normal), most, end);
        }
    }

    fn send(&self, from: RankIndex, to: RankIndex, frame: Frame, priority: Priority) {
        let state = self.state.lock();
        if state.ended.contains(&(from, to)) {
            return;
        }
        let slow = state.processes[from.index()].slow;
        drop(state);
        let most = match priority {
            Priority::Normal => self.most,
            Priority::Idle => self.most.saturating_mul(LATE),
        };
        let most = most.saturating_add(slow);
        let item = Item::Frame(frame.into_slices().collect());
        self.put((from, to, priority), most, item);
    }

    /// Lets an item arrive after a random time up to `most`, mostly much less, so that other connections overtake it.
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
        // The receiver of a frame may send other frames.
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
        let (rank, net) = (self.rank, &self.net);
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
        let (index, size) = (rank.index(), net.size);
        Ok(Started {
            outbox: self,
            local: Some(Local { rank: index, size }),
        })
    }
}

impl Outbox for Simulated {
    fn send(&self, to: RankIndex, frame: Frame, priority: Priority) {
        self.net.send(self.rank, to, frame, priority);
    }

    fn forget_idle(&self) {
        let mut state = self.net.state.lock();
        for to in (0..self.net.size).map(RankIndex::new) {
            state.lose_last((self.rank, to, Priority::Idle), &self.net.simulation);
        }
    }

    fn close(&self, _: Close) {
        self.net.isolate(self.rank, Some("its process has ended"));
        self.net.state.lock().processes[self.rank.index()].events = None;
    }
}
