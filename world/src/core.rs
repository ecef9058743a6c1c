//! The state that a process shares with the threads of its engine.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bytes::Bytes;
use tinderbox_schedule::RankIndex;

use crate::engine::{Close, Engine, Events, Outbox};
use crate::environment::Local;
use crate::error::WorldError;
use crate::frame::{Frame, Received};
use crate::handler::Handler;
use crate::message::Kind;
use crate::options::WorldOptions;
use crate::peers::{Failure, How, Peers, Word};

/// How long a process that failed waits until the others have received why.
const LEAVE_FAILED: Duration = Duration::from_millis(500);

/// Returns what a rank does at present, for the errors of others.
pub(crate) type Status = Arc<dyn Fn() -> Option<String> + Send + Sync>;

/// What one process knows and holds of its world.
pub(crate) struct Core {
    rank: RankIndex,
    size: usize,
    options: WorldOptions,
    outbox: OnceLock<Box<dyn Outbox>>,
    /// What was to be sent before the engine had connected all ranks.
    unsent: Mutex<Vec<(RankIndex, Frame)>>,
    state: Mutex<State>,
    /// Notified when the state changes.
    changed: Condvar,
    channels: Mutex<Channels>,
}

struct State {
    peers: Peers,
    /// The values of calls, by their number and sender.
    values: BTreeMap<(u64, RankIndex), (String, Vec<u8>)>,
    /// How many calls were made.
    calls: u64,
    /// What each rank reported last, and when something of it arrived.
    heard: Vec<Heard>,
    status: Option<Status>,
    /// The last heartbeat of this process; none before it has joined.
    beat_at: Option<Instant>,
    /// When this process was last paused for longer than others wait, and for how long.
    paused: Option<(Instant, Duration)>,
}

impl State {
    /// Notes that this process has not run for longer than others wait.
    fn note_pause(&mut self, patience: Duration) {
        if let Some(since) = self.beat_at.map(|at| at.elapsed())
            && since > patience
        {
            self.paused = Some((Instant::now(), since));
        }
    }
}

#[derive(Clone)]
struct Heard {
    doing: Option<String>,
    at: Instant,
    /// Heartbeats of this process since then.
    beats: u32,
}

#[derive(Default)]
struct Channels {
    /// How many were opened.
    opened: u32,
    handlers: BTreeMap<u32, Arc<dyn Handler>>,
    early: BTreeMap<u32, Arc<Mutex<Early>>>,
}

/// What arrived before a channel was opened; `None` since then. Locked while a frame is given to the handler.
type Early = Option<Vec<(RankIndex, Vec<u8>, Received)>>;

impl Channels {
    fn early(&mut self, number: u32) -> Arc<Mutex<Early>> {
        let early = || Arc::new(Mutex::new(Some(Vec::new())));
        self.early.entry(number).or_insert_with(early).clone()
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Every change is complete before something that can panic.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Core {
    fn new(rank: RankIndex, size: usize, options: WorldOptions) -> Self {
        let heard = Heard {
            doing: None,
            at: Instant::now(),
            beats: 0,
        };
        let state = State {
            peers: Peers::new(rank, size),
            values: BTreeMap::new(),
            calls: 0,
            heard: vec![heard; size],
            status: None,
            beat_at: None,
            paused: None,
        };
        Self {
            rank,
            size,
            options,
            outbox: OnceLock::new(),
            unsent: Mutex::default(),
            state: Mutex::new(state),
            changed: Condvar::new(),
            channels: Mutex::default(),
        }
    }

    pub(crate) fn failure(&self) -> Option<Failure> {
        locked(&self.state).peers.failure().cloned()
    }

    /// Tells all ranks that this one failed, and why.
    pub(crate) fn fail(&self, reason: String) {
        let (rank, how) = (self.rank, How::Failed(reason));
        let status = locked(&self.state).status.clone();
        // Without the lock: it may ask for the state of the world.
        let doing = status.and_then(|status| status());
        self.change(|peers| peers.fail(Failure { rank, how, doing }));
    }

    /// Applies an event to the protocol, sends what it answers, and reports a new failure.
    fn change(&self, event: impl FnOnce(&mut Peers) -> Vec<(RankIndex, Word)>) {
        let mut state = locked(&self.state);
        let had_failed = state.peers.failure().is_some();
        let words = event(&mut state.peers);
        let failure = state.peers.failure().filter(|_| !had_failed).cloned();
        drop(state);
        for (to, word) in words {
            self.send(to, &Kind::Word(word), &[], Vec::new());
        }
        self.changed.notify_all();
        if let Some(failure) = failure {
            tracing::error!(rank = self.rank.index(), %failure, "the world failed");
            let handlers: Vec<_> = locked(&self.channels).handlers.values().cloned().collect();
            handlers.iter().for_each(|handler| handler.failed(&failure));
        }
    }

    /// Queues a frame. Until the engine has connected all ranks, answers to those that it has wait here.
    pub(crate) fn send(&self, to: RankIndex, kind: &Kind, rest: &[u8], pieces: Vec<Bytes>) {
        let header = kind.header(rest);
        let frame = Frame { header, pieces };
        if let Some(outbox) = self.outbox.get() {
            return outbox.send(to, frame);
        }
        let mut unsent = locked(&self.unsent);
        match self.outbox.get() {
            // It was set meanwhile.
            Some(outbox) => outbox.send(to, frame),
            None => unsent.push((to, frame)),
        }
    }

    /// Begins to send.
    fn connect(&self, outbox: Box<dyn Outbox>) {
        let mut unsent = locked(&self.unsent);
        let outbox = self.outbox.get_or_init(|| outbox);
        for (to, frame) in unsent.drain(..) {
            outbox.send(to, frame);
        }
    }

    /// Makes the next call: gives a value to all other ranks, if there is one, and waits for those of some.
    pub(crate) fn call(
        &self,
        call: &'static str,
        value: Option<Bytes>,
        from: &[RankIndex],
    ) -> Result<Vec<Vec<u8>>, WorldError> {
        let mut state = locked(&self.state);
        let sequence = state.calls;
        state.calls += 1;
        drop(state);
        let kind = Kind::Call {
            sequence,
            call: call.to_owned(),
        };
        for to in (0..self.size).map(RankIndex::new) {
            if let Some(value) = value.clone().filter(|_| to != self.rank) {
                self.send(to, &kind, &[], vec![value]);
            }
        }
        let deadline = Instant::now() + self.options.call_timeout;
        let mut state = locked(&self.state);
        loop {
            let first = (sequence, RankIndex::new(0));
            let arrived = state.values.range(first..(sequence + 1, first.1));
            if let Some(((_, rank), (found, _))) =
                arrived.into_iter().find(|(_, (found, _))| found != call)
            {
                return Err(WorldError::OtherCall {
                    rank: *rank,
                    found: found.clone(),
                    own: self.rank,
                    call,
                });
            }
            let missing = from
                .iter()
                .find(|rank| !state.values.contains_key(&(sequence, **rank)));
            let Some(&rank) = missing else {
                let mut take = |rank: &RankIndex| state.values.remove(&(sequence, *rank));
                let values = from
                    .iter()
                    .filter_map(|rank| take(rank).map(|(_, value)| value));
                return Ok(values.collect());
            };
            // What all ranks gave before one failed is complete.
            if let Some(failure) = state.peers.failure() {
                return Err(WorldError::Failed(failure.clone()));
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() || !state.peers.is_open(rank) {
                return Err(WorldError::Late {
                    rank,
                    call,
                    timeout: self.options.call_timeout.saturating_sub(left),
                    doing: match state.peers.is_open(rank) {
                        true => state.heard[rank.index()].doing.clone(),
                        false => Some("no call: it has left".to_owned()),
                    },
                });
            }
            let waited = self.changed.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Opens the next channel. What arrived before is given to its handler first.
    pub(crate) fn open(&self, handler: Arc<dyn Handler>) -> u32 {
        let mut channels = locked(&self.channels);
        let number = channels.opened;
        channels.opened += 1;
        channels.handlers.insert(number, handler.clone());
        let early = channels.early(number);
        // While it is locked, what arrives waits, so the order of a sender's frames is kept.
        let mut early = locked(&early);
        drop(channels);
        for (from, header, frame) in early.take().unwrap_or_default() {
            handler.received(from, &header, frame.pieces);
        }
        drop(early);
        if let Some(failure) = self.failure() {
            handler.failed(&failure);
        }
        number
    }

    /// Closes a channel: what arrives for it later is discarded.
    pub(crate) fn close(&self, number: u32) {
        let mut channels = locked(&self.channels);
        channels.handlers.remove(&number);
        channels.early.remove(&number);
    }

    /// Sets what this rank reports of itself with its heartbeats.
    pub(crate) fn set_status(&self, status: Option<Status>) {
        locked(&self.state).status = status;
    }

    /// Returns what a rank reported last.
    pub(crate) fn doing(&self, rank: RankIndex) -> Option<String> {
        let state = locked(&self.state);
        state.heard.get(rank.index())?.doing.clone()
    }

    fn receive(&self, from: RankIndex, frame: Received) {
        let Some((kind, rest)) = Kind::read(&frame.header) else {
            return self.lose(
                from,
                "it sent bytes that are no message of this version".to_owned(),
            );
        };
        match kind {
            Kind::Word(word) => self.change(|peers| peers.hear(from, word)),
            Kind::Beat(doing) => {
                if doing.is_some() {
                    locked(&self.state).heard[from.index()].doing = doing;
                }
            }
            Kind::Call { sequence, call } => {
                let value = frame.pieces.first().map(|piece| piece.to_vec());
                let mut state = locked(&self.state);
                state
                    .values
                    .insert((sequence, from), (call, value.unwrap_or_default()));
                drop(state);
                self.changed.notify_all();
            }
            Kind::Channel(number) => {
                let mut channels = locked(&self.channels);
                let handler = channels.handlers.get(&number).cloned();
                if handler.is_none() && number < channels.opened {
                    // Closed.
                    return;
                }
                let early = channels.early(number);
                drop(channels);
                let mut early = locked(&early);
                match (&mut *early, handler) {
                    (Some(frames), _) => frames.push((from, rest.to_vec(), frame)),
                    (None, Some(handler)) => handler.received(from, rest, frame.pieces),
                    // It was opened since.
                    (None, None) => {
                        let handler = locked(&self.channels).handlers.get(&number).cloned();
                        handler.into_iter().for_each(|handler| {
                            handler.received(from, rest, frame.pieces.clone());
                        });
                    }
                }
            }
        }
    }

    fn lose(&self, rank: RankIndex, reason: String) {
        let mut state = locked(&self.state);
        let patience = self.patience();
        state.note_pause(patience);
        let reason = match state.paused {
            Some((at, paused)) if at.elapsed() < patience.saturating_mul(2) => {
                let paused = Duration::from_millis(paused.as_millis() as u64);
                format!(
                    "{reason}; this process was paused for {paused:?}, and the others may have gone on without it"
                )
            }
            _ => reason,
        };
        drop(state);
        let doing = self.doing(rank);
        self.change(|peers| peers.lose(rank, reason, doing));
    }

    /// How long a pause may be before others give this process up.
    fn patience(&self) -> Duration {
        let WorldOptions {
            heartbeat,
            heartbeats_until_lost,
            ..
        } = self.options;
        // The last that they heard of may be a heartbeat old; one late heartbeat is no pause.
        heartbeat.saturating_mul(heartbeats_until_lost.saturating_sub(1).max(2))
    }

    /// One heartbeat: shows the others that this process is alive, and counts for whom none arrived.
    fn beat(&self, reported: &mut Option<String>) {
        let mut state = locked(&self.state);
        if state.peers.failure().is_some() {
            return;
        }
        state.note_pause(self.patience());
        state.beat_at = Some(Instant::now());
        let status = state.status.clone();
        let mut silent = Vec::new();
        let mut alive = Vec::new();
        for rank in (0..self.size).map(RankIndex::new) {
            if rank == self.rank || state.peers.is_lost(rank) {
                continue;
            }
            // Also those that have left: they wait until what they sent has arrived.
            alive.push(rank);
            if !state.peers.is_awaited(rank) {
                continue;
            }
            let heard = &mut state.heard[rank.index()];
            heard.beats += 1;
            if heard.beats > self.options.heartbeats_until_lost {
                silent.push((rank, heard.at.elapsed()));
            }
        }
        drop(state);
        let doing = status.and_then(|status| status());
        let new = doing.clone().filter(|_| doing != *reported);
        *reported = doing;
        for to in alive {
            self.send(to, &Kind::Beat(new.clone()), &[], Vec::new());
        }
        for (rank, since) in silent {
            let since = Duration::from_millis(since.as_millis() as u64);
            self.lose(rank, format!("it has shown no sign of life for {since:?}"));
        }
    }

    /// Waits until what this process said was received; after a failure, at most for some time. Ranks that show no sign of
    /// life are not waited for.
    fn wait_until_confirmed(&self) {
        let started = Instant::now();
        let mut state = locked(&self.state);
        while !state.peers.is_confirmed() {
            let left = match state.peers.failure() {
                Some(_) => LEAVE_FAILED.saturating_sub(started.elapsed()),
                None => self.options.heartbeat,
            };
            if left.is_zero() {
                return;
            }
            let waited = self.changed.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

/// The side of a core that an engine reports to. Weak, because the core owns the engine.
struct Ear(Weak<Core>);

impl Events for Ear {
    fn received(&self, from: RankIndex, frame: Received) {
        if let Some(core) = self.0.upgrade() {
            self.heard(from);
            core.receive(from, frame);
        }
    }

    fn heard(&self, from: RankIndex) {
        if let Some(core) = self.0.upgrade()
            && let Some(heard) = locked(&core.state).heard.get_mut(from.index())
        {
            heard.beats = 0;
            heard.at = Instant::now();
        }
    }

    fn lost(&self, from: RankIndex, reason: String) {
        if let Some(core) = self.0.upgrade() {
            core.lose(from, reason);
        }
    }
}

/// A process in its world. Dropping it leaves.
pub(crate) struct Member {
    core: Arc<Core>,
    /// Ends the heartbeats when it is dropped.
    beats: Option<(Sender<()>, JoinHandle<()>)>,
}

impl Member {
    /// Connects to all ranks.
    pub(crate) fn start(
        engine: Box<dyn Engine>,
        options: WorldOptions,
    ) -> Result<(Self, Option<Local>), WorldError> {
        let (rank, size, name) = (engine.rank(), engine.size(), engine.name());
        let heartbeat = options.heartbeat;
        let core = Arc::new(Core::new(rank, size, options));
        let started = engine.start(Arc::new(Ear(Arc::downgrade(&core))))?;
        core.connect(started.outbox);
        let (stop, stopped) = channel();
        let of_thread = core.clone();
        let body = move || {
            let mut reported = None;
            while stopped.recv_timeout(heartbeat) == Err(RecvTimeoutError::Timeout) {
                of_thread.beat(&mut reported);
            }
        };
        let thread = std::thread::Builder::new().name("heartbeat".to_owned());
        let thread = thread.spawn(body).map_err(|source| WorldError::Engine {
            engine: name,
            what: "its thread for heartbeats",
            source: source.into(),
        })?;
        let beats = Some((stop, thread));
        Ok((Self { core, beats }, started.local))
    }

    pub(crate) fn core(&self) -> &Core {
        &self.core
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.core.fail("its program panicked".to_owned());
        }
        self.core.change(Peers::leave);
        // Heartbeats go on meanwhile, so that a rank that is stopped is not waited for.
        self.core.wait_until_confirmed();
        let close = match self.core.failure() {
            Some(_) => Close::Failed,
            None => Close::Left,
        };
        if let Some((stop, thread)) = self.beats.take() {
            drop(stop);
            // It sleeps at its channel, and does not panic.
            let _ = thread.join();
        }
        if let Some(outbox) = self.core.outbox.get() {
            outbox.close(close);
        }
    }
}

impl fmt::Debug for Member {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Member")
            .field("rank", &self.core.rank)
            .field("size", &self.core.size)
            .finish_non_exhaustive()
    }
}
