//! The state that a process shares with the threads of its engine.

mod beats;
mod regroup;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, OnceLock, RwLock, Weak};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use tinderbox_link::{Awaited, Instant};
use tinderbox_schedule::RankIndex;

use crate::engine::{Close, Engine, Events, Outbox};
use crate::environment::Local;
use crate::error::WorldError;
use crate::frame::{Frame, Received};
use crate::handler::Handler;
use crate::members::{Generation, Members, Roster, others};
use crate::message::Kind;
use crate::options::WorldOptions;
use crate::peers::{Failure, How, Peers, Word};
use crate::repeat::Repeat;

/// How long a process that failed waits until the others have received why.
const LEAVE_FAILED: Duration = Duration::from_millis(500);

/// Returns what a rank does at present, for the errors of others.
pub(crate) type Status = Arc<dyn Fn() -> Option<String> + Send + Sync>;

/// What one process knows and holds of its world.
pub(crate) struct Core {
    /// The rank that the engine gives this process.
    own: RankIndex,
    options: WorldOptions,
    outbox: OnceLock<Box<dyn Outbox>>,
    /// What was to be sent before the engine had connected all ranks.
    unsent: Mutex<Vec<(RankIndex, Frame)>>,
    state: Awaited<State>,
    channels: Mutex<Channels>,
    /// Whether a pipeline of this process continues without others.
    pub(crate) is_recovering: AtomicBool,
    /// Held to read while a frame is received, so that none is received while the generation changes.
    receiving: RwLock<()>,
}

struct State {
    members: Members,
    /// Of this generation, by rank in the world.
    peers: Peers,
    /// Frames of later generations.
    later: Vec<(RankIndex, Received)>,
    /// The values of calls with the names of the calls, by their number and sender.
    values: BTreeMap<u64, BTreeMap<RankIndex, (String, Vec<u8>)>>,
    /// How many calls were made.
    calls: u64,
    /// What each process of the engine reported last, and when something of it arrived.
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

    /// Returns what a rank reported last.
    fn doing(&self, rank: RankIndex) -> Option<String> {
        let process = self.members.roster().members.get(rank.index())?;
        self.heard.get(process.index())?.doing.clone()
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
    /// By the number of the channel; those that were closed are not in it.
    receivers: BTreeMap<u32, Arc<Receiver>>,
}

/// What receives the frames of a channel.
#[derive(Default)]
struct Receiver {
    /// None until the channel is opened.
    handler: OnceLock<Arc<dyn Handler>>,
    /// What arrived before. Locked while a frame is given to the handler.
    early: Mutex<Vec<(RankIndex, Received)>>,
}

impl Core {
    fn new(own: RankIndex, processes: usize, options: WorldOptions) -> Self {
        let heard = Heard {
            doing: None,
            at: Instant::now(),
            beats: 0,
        };
        let state = State {
            members: Members::new(own, processes),
            peers: Peers::new(own, processes),
            later: Vec::new(),
            values: BTreeMap::new(),
            calls: 0,
            heard: vec![heard; processes],
            status: None,
            beat_at: None,
            paused: None,
        };
        Self {
            own,
            options,
            outbox: OnceLock::new(),
            unsent: Mutex::default(),
            state: Awaited::new(state),
            channels: Mutex::default(),
            is_recovering: AtomicBool::default(),
            receiving: RwLock::default(),
        }
    }

    /// Returns the processes of this generation.
    pub(crate) fn roster(&self) -> Arc<Roster> {
        self.state.lock().members.roster().clone()
    }

    /// Returns the rank of this process, and the processes of this generation.
    pub(crate) fn place(&self) -> (RankIndex, Arc<Roster>) {
        let roster = self.roster();
        (self.rank(&roster), roster)
    }

    /// Returns the rank of this process in the world.
    fn rank(&self, roster: &Roster) -> RankIndex {
        let rank = roster.rank_of(self.own);
        rank.expect("a process is in every generation that it begins")
    }

    pub(crate) fn failure(&self) -> Option<Failure> {
        self.state.lock().peers.failure().cloned()
    }

    /// Tells all ranks that this one failed, and why; not if the world has begun another generation than a given one.
    pub(crate) fn fail(&self, generation: Option<Generation>, reason: String) {
        let how = How::Failed(reason);
        let status = self.state.lock().status.clone();
        // Without the lock: it may ask for the state of the world.
        let doing = status.and_then(|status| status());
        self.change(|state| {
            let roster = state.members.roster().clone();
            let rank = self.rank(&roster);
            match generation.is_none_or(|one| one == roster.generation) {
                true => state.peers.fail(Failure { rank, how, doing }),
                false => Vec::new(),
            }
        });
    }

    /// Applies an event to the protocol, sends what it answers, and reports a new failure.
    fn change(&self, event: impl FnOnce(&mut State) -> Vec<(RankIndex, Word)>) {
        let mut state = self.state.lock();
        let had_failed = state.peers.failure().is_some();
        let words = event(&mut state);
        let failure = state.peers.failure().filter(|_| !had_failed).cloned();
        let roster = state.members.roster().clone();
        // Before anybody sees the failure and sends what the others should receive after it.
        for (to, word) in words {
            self.send(&roster, to, &Kind::Word(word), Vec::new());
        }
        drop(state);
        self.state.notify_all();
        if let Some(failure) = failure {
            let rank = self.rank(&roster).index();
            let is_lost = matches!(failure.how, How::Lost(_));
            match is_lost && self.is_recovering.load(SeqCst) {
                true => tracing::warn!(rank, %failure, "a process is lost"),
                false => tracing::error!(rank, %failure, "the world failed"),
            }
            let receivers: Vec<_> = self.channels.lock().receivers.values().cloned().collect();
            let handlers = receivers
                .iter()
                .filter_map(|receiver| receiver.handler.get());
            handlers.for_each(|handler| handler.failed(&failure));
        }
    }

    /// Queues a frame for a rank of a generation.
    fn send(&self, roster: &Roster, to: RankIndex, kind: &Kind, pieces: Vec<Bytes>) {
        if let Some(to) = roster.members.get(to.index()) {
            self.queue(*to, kind.frame(roster.generation, &[], pieces));
        }
    }

    /// Queues a frame for a process that is sent when there is nothing else to send.
    pub(crate) fn queue_when_idle(&self, to: RankIndex, frame: Frame) {
        // A channel is opened after the engine has connected all ranks.
        if let Some(outbox) = self.outbox.get() {
            outbox.send_when_idle(to, frame);
        }
    }

    /// Queues a frame for a process of the engine. Until that has connected all ranks, answers to those that it has wait
    /// here.
    pub(crate) fn queue(&self, to: RankIndex, frame: Frame) {
        if let Some(outbox) = self.outbox.get() {
            return outbox.send(to, frame);
        }
        let mut unsent = self.unsent.lock();
        match self.outbox.get() {
            // It was set meanwhile.
            Some(outbox) => outbox.send(to, frame),
            None => unsent.push((to, frame)),
        }
    }

    /// Begins to send.
    fn connect(&self, outbox: Box<dyn Outbox>) {
        let mut unsent = self.unsent.lock();
        let outbox = self.outbox.get_or_init(|| outbox);
        for (to, frame) in unsent.drain(..) {
            outbox.send(to, frame);
        }
    }

    /// Makes the next call: gives a value to all other ranks, if there is one, and waits for the values of some.
    pub(crate) fn call(
        &self,
        call: &'static str,
        value: Option<Bytes>,
        from: &[RankIndex],
    ) -> Result<Vec<Vec<u8>>, WorldError> {
        let mut state = self.state.lock();
        let sequence = state.calls;
        state.calls += 1;
        let roster = state.members.roster().clone();
        drop(state);
        let own = self.rank(&roster);
        let kind = Kind::Call {
            sequence,
            call: call.to_owned(),
        };
        if let Some(value) = value {
            for to in others(own, roster.size()) {
                self.send(&roster, to, &kind, vec![value.clone()]);
            }
        }
        let began = Instant::now();
        let mut state = self.state.lock();
        loop {
            let arrived = state.values.entry(sequence).or_default();
            if let Some((rank, (found, _))) = arrived.iter().find(|(_, (found, _))| found != call) {
                return Err(WorldError::OtherCall {
                    rank: *rank,
                    found: found.clone(),
                    own,
                    call,
                });
            }
            let Some(&rank) = from.iter().find(|rank| !arrived.contains_key(rank)) else {
                let mut arrived = state.values.remove(&sequence).unwrap_or_default();
                let values = from.iter().filter_map(|rank| arrived.remove(rank));
                return Ok(values.map(|(_, value)| value).collect());
            };
            // What all ranks gave before one failed is complete.
            if let Some(failure) = state.peers.failure() {
                return Err(WorldError::Failed(failure.clone()));
            }
            let timeout = self.options.call_timeout;
            let left = timeout.saturating_sub(began.elapsed());
            let is_open = state.peers.is_open(rank);
            if left.is_zero() || !is_open {
                return Err(WorldError::Late {
                    rank,
                    call,
                    timeout: timeout.saturating_sub(left),
                    doing: match is_open {
                        true => state.doing(rank),
                        false => Some("no call: it has left".to_owned()),
                    },
                });
            }
            self.state.wait(&mut state, left);
        }
    }

    /// Opens the next channel. What arrived before is given to its handler first.
    pub(crate) fn open(&self, handler: Arc<dyn Handler>) -> u32 {
        let mut channels = self.channels.lock();
        let number = channels.opened;
        channels.opened += 1;
        let receiver = channels.receivers.entry(number).or_default().clone();
        // While it is locked, what arrives waits, so the order of a sender's frames is kept.
        let mut early = receiver.early.lock();
        receiver.handler.get_or_init(|| handler.clone());
        drop(channels);
        for (from, frame) in early.drain(..) {
            handler.received(from, &frame.header, frame.pieces);
        }
        drop(early);
        if let Some(failure) = self.failure() {
            handler.failed(&failure);
        }
        number
    }

    /// Closes a channel: what arrives for it later is discarded.
    pub(crate) fn close(&self, number: u32) {
        self.channels.lock().receivers.remove(&number);
    }

    /// Sets what this rank reports of itself with its heartbeats.
    pub(crate) fn set_status(&self, status: Option<Status>) {
        self.state.lock().status = status;
    }

    /// Returns what a rank reported last.
    pub(crate) fn doing(&self, rank: RankIndex) -> Option<String> {
        self.state.lock().doing(rank)
    }

    /// Receives a frame of a process of the engine.
    fn receive(&self, process: RankIndex, frame: Received) {
        let Some((generation, kind, rest)) = Kind::read(&frame.header) else {
            return self.lose(
                process,
                "it sent bytes that are no message of this version".to_owned(),
            );
        };
        // Copied before the lock: a value may be large, and all that is heard waits for the lock.
        let value = matches!(kind, Kind::Call { .. }).then(|| match frame.pieces.first() {
            Some(piece) => piece.to_vec(),
            None => Vec::new(),
        });
        let mut state = self.state.lock();
        let roster = state.members.roster().clone();
        // None if it was given up, or does not know yet that another one was.
        let from = roster.rank_of(process);
        let from = from.filter(|_| generation == roster.generation);
        match (kind, from) {
            (Kind::Beat(doing), _) => {
                if doing.is_some() {
                    state.heard[process.index()].doing = doing;
                }
            }
            (Kind::Vote(vote), _) => {
                drop(state);
                self.vote(|members| members.hear(process, vote));
            }
            _ if generation > roster.generation => state.later.push((process, frame)),
            (_, None) => {}
            (Kind::Word(word), Some(from)) => {
                drop(state);
                self.change(|state| state.peers.hear(from, word));
            }
            (Kind::Call { sequence, call }, Some(from)) => {
                let arrived = state.values.entry(sequence).or_default();
                arrived.insert(from, (call, value.unwrap_or_default()));
                drop(state);
                self.state.notify_all();
            }
            (Kind::Channel(number), Some(from)) => {
                drop(state);
                let mut channels = self.channels.lock();
                if number < channels.opened && !channels.receivers.contains_key(&number) {
                    // Closed.
                    return;
                }
                let receiver = channels.receivers.entry(number).or_default().clone();
                drop(channels);
                let mut early = receiver.early.lock();
                match receiver.handler.get() {
                    Some(handler) => handler.received(from, rest, frame.pieces),
                    None => {
                        let header = rest.to_vec();
                        early.push((from, Received { header, ..frame }));
                    }
                }
            }
        }
    }
}

/// The side of a core that an engine reports to. Weak, because the core owns the engine.
struct Ear(Weak<Core>);

impl Events for Ear {
    fn received(&self, from: RankIndex, frame: Received) {
        if let Some(core) = self.0.upgrade() {
            self.heard(from);
            let receiving = core.receiving.read();
            core.receive(from, frame);
            drop(receiving);
        }
    }

    fn heard(&self, from: RankIndex) {
        if let Some(core) = self.0.upgrade()
            && let Some(heard) = core.state.lock().heard.get_mut(from.index())
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
    pub(crate) core: Arc<Core>,
    /// Ends the heartbeats when it is dropped.
    beats: Option<Repeat>,
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
        let (of_thread, mut reported) = (core.clone(), None);
        let beat = move || of_thread.beat(&mut reported);
        let beats = Repeat::spawn("heartbeat", heartbeat, beat)
            .map_err(|error| WorldError::engine(name, "its thread for heartbeats", error))?;
        let beats = Some(beats);
        Ok((Self { core, beats }, started.local))
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.core.fail(None, "its program panicked".to_owned());
        }
        self.core.change(|state| state.peers.leave());
        // Heartbeats continue meanwhile, so that a rank that is stopped is not waited for.
        self.core.wait_until_confirmed();
        let close = match self.core.failure() {
            Some(_) => Close::Failed,
            None => Close::Left,
        };
        drop(self.beats.take());
        if let Some(outbox) = self.core.outbox.get() {
            outbox.close(close);
        }
    }
}
