//! An engine between the threads of one process.

use std::collections::BTreeMap;
use std::panic::resume_unwind;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};

use bytes::Bytes;
use parking_lot::Mutex;
use tinderbox_simulation::Random;
use tinderbox_world::link::Thread;
use tinderbox_world::{
    Close, Decoder, Engine, Environment, Events, Frame, Launcher, Local, Outbox, Priority,
    RankIndex, Started, World, WorldError, WorldOptions,
};

/// The delays of frames.
#[derive(Debug, Clone, Copy, Default)]
pub struct Delays {
    /// The seed of the random numbers.
    pub seed: u64,
    /// The longest time of a frame. Each frame takes a random part of it.
    pub most: Duration,
}

/// An item that arrives at a rank.
#[derive(Debug)]
pub(crate) enum Item {
    Frame(Vec<Bytes>),
    /// The connection ended.
    End(String),
}

impl Item {
    /// Reports the item to the rank at which it arrives.
    pub(crate) fn arrive(self, from: RankIndex, events: &dyn Events) {
        match self {
            Self::Frame(slices) => {
                let mut decoder = Decoder::default();
                let pushed = slices.iter().try_for_each(|slice| decoder.push(slice));
                while let Some(frame) = decoder.next_frame() {
                    events.alive(from);
                    events.received(from, frame);
                }
                if let Err(error) = pushed {
                    events.lost(from, error.to_string());
                }
            }
            Self::End(reason) => events.lost(from, reason),
        }
    }
}

/// Returns all ranks except one.
pub(crate) fn others(own: RankIndex, size: usize) -> impl Iterator<Item = RankIndex> {
    let ranks = (0..size).map(RankIndex::new);
    ranks.filter(move |rank| *rank != own)
}

/// Joins the world of an engine.
pub(crate) fn join(engine: Box<dyn Engine>, options: WorldOptions) -> Result<World, WorldError> {
    let environment = Environment {
        launcher: Launcher::Torchrun,
        rank: engine.rank(),
        size: engine.size(),
        local: None,
        meeting: None,
    };
    World::over(&environment, options, engine)
}

/// A rank of an engine between threads of one process. Frames are encoded and decoded, as by other engines.
#[derive(Debug)]
pub struct Threads {
    rank: RankIndex,
    inbox: Receiver<Sent>,
    net: Net,
}

/// An item on its way to a rank: its sender, its time of arrival, and the item. `None` ends the receiver.
type Sent = Option<(RankIndex, Instant, Item)>;

/// The connections between the threads, to break them.
#[derive(Debug, Clone)]
pub struct Net(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    barrier: Barrier,
    delays: Delays,
    /// The senders to all ranks.
    inboxes: Vec<Sender<Sent>>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    random: Random,
    /// The arrival of the last frame, for each sender and receiver.
    last: Vec<Instant>,
    is_cut: Vec<bool>,
    /// The items that stopped ranks have not sent.
    held: Vec<Option<Vec<(RankIndex, Sent)>>>,
    /// Whether no connection is ever idle, so that idle frames never arrive.
    is_busy: bool,
    /// The additional time of a frame for each MiB.
    per_mib: Duration,
}

impl Threads {
    /// Creates the ranks of a world, and the connections between them.
    pub fn world(size: usize, delays: Delays) -> (Vec<Self>, Net) {
        let (inboxes, receivers): (Vec<_>, Vec<_>) = (0..size).map(|_| channel()).unzip();
        let net = Net(Arc::new(Shared {
            barrier: Barrier::new(size),
            delays,
            inboxes,
            state: Mutex::new(State {
                random: Random::new(delays.seed),
                last: vec![Instant::now(); size * size],
                is_cut: vec![false; size * size],
                held: (0..size).map(|_| None).collect(),
                is_busy: false,
                per_mib: Duration::ZERO,
            }),
        }));
        let engine = |(rank, inbox)| Self {
            rank: RankIndex::new(rank),
            inbox,
            net: net.clone(),
        };
        (receivers.into_iter().enumerate().map(engine).collect(), net)
    }

    /// Runs a program as every rank of a world, each on its own thread, and returns the result of each. A panic of the
    /// program is resumed after all ranks have ended.
    ///
    /// # Errors
    ///
    /// When a rank can't join, as [`World::over`].
    pub fn run<R: Send>(
        size: usize,
        delays: Delays,
        options: &WorldOptions,
        program: impl Fn(World, &Net) -> R + Sync,
    ) -> Result<Vec<R>, WorldError> {
        let (engines, net) = Self::world(size, delays);
        thread::scope(|scope| {
            let ranks = engines.into_iter().map(|engine| {
                let (net, program, options) = (&net, &program, options.clone());
                scope.spawn(move || Ok(program(join(Box::new(engine), options)?, net)))
            });
            let ranks: Vec<_> = ranks.collect();
            let ended = ranks.into_iter().map(|rank| rank.join());
            let results = ended.map(|result| result.unwrap_or_else(|panic| resume_unwind(panic)));
            results.collect()
        })
    }
}

impl Net {
    fn size(&self) -> usize {
        self.0.inboxes.len()
    }

    /// Cuts the connection of two ranks. Both notice.
    pub fn cut(&self, a: RankIndex, b: RankIndex) {
        self.end_all([(a, b), (b, a)], "its connection was cut");
    }

    /// Cuts all connections of a rank at once, as if its process were killed.
    pub fn kill(&self, rank: RankIndex) {
        let pairs = others(rank, self.size()).flat_map(|other| [(rank, other), (other, rank)]);
        self.end_all(pairs, "its connection was cut");
    }

    /// Stops a rank: from now on, none of its frames arrive, as if its process were stopped. No connection ends.
    pub fn stop(&self, rank: RankIndex) {
        self.0.state.lock().held[rank.index()] = Some(Vec::new());
    }

    /// Continues after [`stop`](Self::stop): the frames that the rank has sent since then arrive.
    pub fn resume(&self, rank: RankIndex) {
        let held = self.0.state.lock().held[rank.index()].take();
        for (to, item) in held.into_iter().flatten() {
            self.put(to, item);
        }
    }

    /// Sets whether connections are never idle. If so, idle frames do not arrive.
    pub fn set_busy(&self, is_busy: bool) {
        self.0.state.lock().is_busy = is_busy;
    }

    /// Sets the additional time of a frame for each MiB.
    pub fn set_time_per_mib(&self, per_mib: Duration) {
        self.0.state.lock().per_mib = per_mib;
    }

    /// Ends connections, each from a sender to a receiver.
    fn end_all(&self, pairs: impl IntoIterator<Item = (RankIndex, RankIndex)>, reason: &str) {
        let mut state = self.0.state.lock();
        for (from, to) in pairs {
            let pair = self.pair(from, to);
            if !std::mem::replace(&mut state.is_cut[pair], true) {
                let end = Item::End(reason.to_owned());
                self.put(to, Some((from, state.last[pair], end)));
            }
        }
    }

    fn put(&self, to: RankIndex, sent: Sent) {
        // A rank that has closed reads nothing.
        let _ = self.0.inboxes[to.index()].send(sent);
    }

    fn pair(&self, from: RankIndex, to: RankIndex) -> usize {
        from.index() * self.size() + to.index()
    }

    fn send(&self, from: RankIndex, to: RankIndex, frame: Frame, priority: Priority) {
        let pair = self.pair(from, to);
        let most = self.0.delays.most.as_nanos() as u64;
        let mut state = self.0.state.lock();
        let is_late = priority == Priority::Idle && state.is_busy;
        if is_late || state.is_cut.get(pair) != Some(&false) {
            return;
        }
        let slices: Vec<Bytes> = frame.into_slices().collect();
        let bytes: usize = slices.iter().map(Bytes::len).sum();
        let mib = bytes as f64 / f64::from(1 << 20);
        let delay = Duration::from_nanos(state.random.below(most)) + state.per_mib.mul_f64(mib);
        let at = state.last[pair].max(Instant::now() + delay);
        state.last[pair] = at;
        let sent = Some((from, at, Item::Frame(slices)));
        match &mut state.held[from.index()] {
            Some(held) => held.push((to, sent)),
            None => self.put(to, sent),
        }
    }
}

impl Engine for Threads {
    fn name(&self) -> &'static str {
        "threads"
    }

    fn rank(&self) -> RankIndex {
        self.rank
    }

    fn size(&self) -> usize {
        self.net.size()
    }

    fn start(self: Box<Self>, events: Arc<dyn Events>) -> Result<Started, WorldError> {
        let (index, size) = (self.rank.index(), self.net.size());
        let Self { rank, inbox, net } = *self;
        net.0.barrier.wait();
        let thread = Thread::spawn(format!("carry-{rank}"), move || carry(&inbox, &*events));
        let thread = thread.map_err(|error| WorldError::engine("threads", "its thread", error))?;
        let thread = Mutex::new(Some(thread));
        Ok(Started {
            outbox: Box::new(ThreadsOutbox { rank, net, thread }),
            local: Some(Local { rank: index, size }),
        })
    }
}

/// Delivers what arrives for a rank, each item at its time and the items of one sender in order.
fn carry(inbox: &Receiver<Sent>, events: &dyn Events) {
    // Ordered by time, then by the order of the sends.
    let mut waiting: BTreeMap<(Instant, usize), (RankIndex, Item)> = BTreeMap::new();
    for number in 0.. {
        while let Some(first) = waiting.first_entry()
            && first.key().0 <= Instant::now()
        {
            let (from, item) = first.remove();
            item.arrive(from, events);
        }
        let next = waiting.first_key_value().map(|((at, _), _)| *at);
        let sent = match next {
            Some(at) => inbox.recv_timeout(at.saturating_duration_since(Instant::now())),
            None => inbox.recv().map_err(RecvTimeoutError::from),
        };
        match sent {
            Ok(Some((from, at, item))) => drop(waiting.insert((at, number), (from, item))),
            Err(RecvTimeoutError::Timeout) => {}
            Ok(None) | Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

struct ThreadsOutbox {
    rank: RankIndex,
    net: Net,
    thread: Mutex<Option<Thread>>,
}

impl Outbox for ThreadsOutbox {
    fn send(&self, to: RankIndex, frame: Frame, priority: Priority) {
        self.net.send(self.rank, to, frame, priority);
    }

    fn close(&self, _: Close) {
        let pairs = others(self.rank, self.net.size()).map(|other| (self.rank, other));
        self.net.end_all(pairs, "its process has ended");
        self.net.put(self.rank, None);
        let thread = self.thread.lock().take();
        thread.into_iter().for_each(Thread::join);
    }
}
