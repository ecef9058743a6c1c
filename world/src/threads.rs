//! An engine between the threads of one process, with faults, for tests.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::panic::resume_unwind;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Barrier, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use bytes::Bytes;
use tinderbox_schedule::RankIndex;
use tinderbox_simulation::Random;

use crate::engine::{Close, Engine, Events, Outbox, Started};
use crate::environment::{Environment, Launcher, Local};
use crate::error::WorldError;
use crate::frame::{Decoder, Frame, Limits};
use crate::options::WorldOptions;
use crate::world::World;

/// What happens to frames between threads.
#[derive(Debug, Clone, Copy, Default)]
pub struct Delays {
    /// Where random numbers begin.
    pub seed: u64,
    /// The longest time that a frame takes; each takes a random part of it.
    pub most: Duration,
}

/// A rank of an engine between threads of one process. Frames are encoded and decoded, as by other engines.
#[derive(Debug)]
pub struct Threads {
    rank: RankIndex,
    inbox: Receiver<Item>,
    net: Net,
}

/// The connections between the threads, to break them.
#[derive(Debug, Clone)]
pub struct Net(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    barrier: Barrier,
    delays: Delays,
    /// What waits for each rank.
    inboxes: Vec<Sender<Item>>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    random: Random,
    /// Per sender and receiver, when its last frame arrives.
    last: Vec<Instant>,
    is_cut: Vec<bool>,
    /// What stopped ranks have not sent.
    held: Vec<Option<Vec<(usize, Item)>>>,
    /// Whether frames that wait for an idle connection never arrive.
    is_busy: bool,
}

#[derive(Debug)]
enum Item {
    Frame(usize, Instant, Vec<Bytes>),
    /// The connection to a rank ended.
    End(usize, Instant, String),
    Close,
}

impl Threads {
    /// Creates the ranks of a world, and what breaks their connections.
    #[must_use]
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
                held: vec![None; size]
                    .into_iter()
                    .map(|_: Option<()>| None)
                    .collect(),
                is_busy: false,
            }),
        }));
        let engine = |(rank, inbox)| Self {
            rank: RankIndex::new(rank),
            inbox,
            net: net.clone(),
        };
        (receivers.into_iter().enumerate().map(engine).collect(), net)
    }

    /// Runs a program as every rank of a world, each on a thread of its own, and returns what each returns. A panic of
    /// the program is passed on after all ranks have ended.
    ///
    /// # Errors
    ///
    /// A rank that could not join, as [`World::over`].
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
                let environment = Environment {
                    launcher: Launcher::Torchrun,
                    rank: engine.rank,
                    size,
                    local: None,
                    meeting: None,
                };
                scope.spawn(move || {
                    let world = World::over(&environment, options, Box::new(engine))?;
                    Ok(program(world, net))
                })
            });
            let ranks: Vec<_> = ranks.collect();
            let ended = ranks.into_iter().map(|rank| rank.join());
            let results = ended.map(|result| result.unwrap_or_else(|panic| resume_unwind(panic)));
            results.collect()
        })
    }
}

impl Net {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn size(&self) -> usize {
        self.0.inboxes.len()
    }

    /// Cuts the connection of two ranks. Both notice.
    pub fn cut(&self, a: RankIndex, b: RankIndex) {
        self.end_all(
            &[(a.index(), b.index()), (b.index(), a.index())],
            "its connection was cut",
        );
    }

    /// Cuts all connections of a rank at once, as if its process was killed.
    pub fn kill(&self, rank: RankIndex) {
        let rank = rank.index();
        let others = (0..self.size()).filter(|other| *other != rank);
        let pairs: Vec<_> = others
            .flat_map(|other| [(rank, other), (other, rank)])
            .collect();
        self.end_all(&pairs, "its connection was cut");
    }

    /// From now on, nothing that a rank sends arrives, as if its process was stopped. No connection ends.
    pub fn stop(&self, rank: RankIndex) {
        self.state().held[rank.index()] = Some(Vec::new());
    }

    /// Continues after [`stop`](Self::stop): what the rank has sent since then arrives.
    pub fn resume(&self, rank: RankIndex) {
        let held = self.state().held[rank.index()].take();
        for (to, item) in held.into_iter().flatten() {
            self.put(to, item);
        }
    }

    /// Sets whether connections are never idle: what is to be sent when they are does not arrive then.
    pub fn set_busy(&self, is_busy: bool) {
        self.state().is_busy = is_busy;
    }

    /// Ends connections, each from a sender to a receiver.
    fn end_all(&self, pairs: &[(usize, usize)], reason: &str) {
        let mut state = self.state();
        let mut ends = Vec::new();
        for &(from, to) in pairs {
            let pair = from * self.size() + to;
            if !std::mem::replace(&mut state.is_cut[pair], true) {
                ends.push((to, Item::End(from, state.last[pair], reason.to_owned())));
            }
        }
        drop(state);
        for (to, end) in ends {
            self.put(to, end);
        }
    }

    fn put(&self, to: usize, item: Item) {
        // A rank that has closed reads nothing.
        let _ = self.0.inboxes[to].send(item);
    }

    fn send(&self, from: usize, to: usize, frame: Frame) {
        let pair = from * self.size() + to;
        let most = self.0.delays.most.as_nanos() as u64;
        let mut state = self.state();
        if state.is_cut.get(pair) != Some(&false) {
            return;
        }
        let delay = state.random.below(most);
        let at = state.last[pair].max(Instant::now() + Duration::from_nanos(delay));
        state.last[pair] = at;
        let item = Item::Frame(from, at, frame.into_slices().collect());
        match &mut state.held[from] {
            Some(held) => held.push((to, item)),
            None => {
                drop(state);
                self.put(to, item);
            }
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
        let (rank, size) = (self.rank.index(), self.net.size());
        let Self { inbox, net, .. } = *self;
        net.0.barrier.wait();
        let thread = thread::Builder::new().name(format!("carry-{rank}"));
        let thread = thread.spawn(move || carry(&inbox, &*events, size));
        let thread = thread.map_err(|source| WorldError::Engine {
            engine: "threads",
            what: "its thread",
            source: source.into(),
        })?;
        Ok(Started {
            outbox: Box::new(ThreadsOutbox {
                rank,
                net,
                thread: Mutex::new(Some(thread)),
            }),
            local: Some(Local { rank, size }),
        })
    }
}

/// Delivers what arrives for a rank, each item at its time and the items of one sender in order.
fn carry(inbox: &Receiver<Item>, events: &dyn Events, size: usize) {
    let mut waiting: Vec<VecDeque<(Instant, Item)>> = (0..size).map(|_| VecDeque::new()).collect();
    let mut next: BinaryHeap<Reverse<(Instant, usize)>> = BinaryHeap::new();
    let mut decoders: Vec<Decoder> = (0..size).map(|_| Decoder::new(Limits::default())).collect();
    loop {
        let now = Instant::now();
        let item = match next.peek() {
            Some(Reverse((at, _))) if *at <= now => None,
            Some(Reverse((at, _))) => match inbox.recv_timeout(*at - now) {
                Ok(item) => Some(item),
                Err(RecvTimeoutError::Timeout) => None,
                Err(RecvTimeoutError::Disconnected) => return,
            },
            None => match inbox.recv() {
                Ok(item) => Some(item),
                Err(_) => return,
            },
        };
        match item {
            Some(Item::Close) => return,
            Some(item) => {
                let (Item::Frame(from, at, _) | Item::End(from, at, _)) = &item else {
                    continue;
                };
                let (from, at) = (*from, *at);
                next.push(Reverse((at, from)));
                waiting[from].push_back((at, item));
            }
            None => {
                let Some(Reverse((_, from))) = next.pop() else {
                    continue;
                };
                let rank = RankIndex::new(from);
                match waiting[from].pop_front() {
                    Some((_, Item::Frame(_, _, slices))) => {
                        for slice in slices {
                            events.heard(rank);
                            if let Err(error) = decoders[from].push(&slice) {
                                events.lost(rank, error.to_string());
                            }
                        }
                        while let Some(frame) = decoders[from].next_frame() {
                            events.received(rank, frame);
                        }
                    }
                    Some((_, Item::End(_, _, reason))) => events.lost(rank, reason),
                    _ => {}
                }
            }
        }
    }
}

struct ThreadsOutbox {
    rank: usize,
    net: Net,
    thread: Mutex<Option<thread::JoinHandle<()>>>,
}

impl Outbox for ThreadsOutbox {
    fn send(&self, to: RankIndex, frame: Frame) {
        self.net.send(self.rank, to.index(), frame);
    }

    fn send_when_idle(&self, to: RankIndex, frame: Frame) {
        if !self.net.state().is_busy {
            self.send(to, frame);
        }
    }

    fn close(&self, _: Close) {
        let others = (0..self.net.size()).filter(|other| *other != self.rank);
        let pairs: Vec<_> = others.map(|other| (self.rank, other)).collect();
        self.net.end_all(&pairs, "its process has ended");
        self.net.put(self.rank, Item::Close);
        let thread = self
            .thread
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        // A panic of a handler was reported by its hook.
        let _ = thread.map(thread::JoinHandle::join);
    }
}
