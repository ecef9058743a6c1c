//! The state that a process shares with the threads of its engine.
//!
//! Every process has two numbers, both of type [`RankIndex`]. The engine gives it a number that never changes: here, the field
//! `own` and variables named `process`. Its rank is its position among the processes of the current generation, and may be
//! lower after a loss.

mod beats;
mod regroup;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, OnceLock, RwLock, Weak};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use tinderbox_ids::RankIndex;

use crate::engine::{Close, Engine, Events, Handler, Outbox, Priority};
use crate::environment::Local;
use crate::error::WorldError;
use crate::frame::{Frame, Received};
use crate::link::{Awaited, Instant, Thread};
use crate::members::{Generation, Members, Roster, others};
use crate::message::Kind;
use crate::options::WorldOptions;
use crate::peers::{Failure, How, Peers, Word};

/// The longest time for which a process that failed waits until the others have received the reason. The reason is sent after
/// the frames that were queued before. Over a slow link it may be late, and the others report that the connection ended.
const LEAVE_FAILED: Duration = Duration::from_millis(500);

/// Describes what a rank is doing now. Heartbeats send the text, and errors of other ranks contain it.
pub(crate) type Status = Arc<dyn Fn() -> Option<String> + Send + Sync>;

/// The state of one process in its world.
pub(crate) struct Core {
    /// The number that the engine gives this process.
    own: RankIndex,
    options: WorldOptions,
    /// The sending side of the engine. Empty until the engine has connected all ranks.
    outbox: OnceLock<Box<dyn Outbox>>,
    /// Frames that were queued before that.
    unsent: Mutex<Vec<(RankIndex, Frame, Priority)>>,
    state: Awaited<State>,
    channels: Mutex<Channels>,
    /// Whether a pipeline of this process continues after the loss of others.
    pub(crate) is_recovering: AtomicBool,
    /// Whether the thread of the heartbeats has to end.
    is_over: Awaited<bool>,
    /// Locked for reading while a frame is received, and for writing while the generation changes, so that no frame is
    /// received in between.
    receiving: RwLock<()>,
}

/// The part of the state under one lock.
struct State {
    /// All processes, and their agreement on the next generation.
    members: Members,
    /// The ranks of this generation, and their shutdown protocol.
    peers: Peers,
    /// Frames of later generations, which are received when their generation begins.
    later: Vec<(RankIndex, Received)>,
    /// The values that have arrived for calls, each with the name of its call. By the number of the call and the sender.
    values: BTreeMap<u64, BTreeMap<RankIndex, (String, Vec<u8>)>>,
    /// The number of calls so far in this generation.
    calls: u64,
    /// The activity of each process, by the number of the engine.
    activity: Vec<Activity>,
    status: Option<Status>,
    /// The time of the last heartbeat of this process; `None` before it has joined.
    beat_at: Option<Instant>,
    /// The end and the length of the last pause of this process after which others may have given it up.
    paused: Option<(Instant, Duration)>,
}

impl State {
    /// Notes a pause if the last heartbeat of this process was longer ago than others wait for it.
    fn note_pause(&mut self, patience: Duration) {
        let since = self.beat_at.map_or(Duration::ZERO, |at| at.elapsed());
        if since > patience {
            self.paused = Some((Instant::now(), since));
        }
    }

    /// Returns the last report of a rank.
    fn doing(&self, rank: RankIndex) -> Option<String> {
        let process = self.members.roster().members.get(rank.index())?;
        self.activity.get(process.index())?.doing.clone()
    }
}

/// The activity of another process.
#[derive(Clone)]
struct Activity {
    /// The last report of that process.
    doing: Option<String>,
    /// The time at which its last bytes arrived.
    at: Instant,
    /// The number of heartbeats that this process has sent since then.
    beats: u32,
}

#[derive(Default)]
struct Channels {
    /// The number of channels that were opened.
    opened: u32,
    /// The receivers by the number of the channel. A closed channel has none. A channel that another process has opened earlier
    /// may have one already.
    receivers: BTreeMap<u32, Arc<Receiver>>,
}

/// The receiver of the frames of a channel.
#[derive(Default)]
struct Receiver {
    /// Empty until the channel is opened.
    handler: OnceLock<Arc<dyn Handler>>,
    /// The frames that arrived before that. Locked while the handler receives a frame, so that frames stay in order.
    early: Mutex<Vec<(RankIndex, Received)>>,
}

impl Core {
    fn new(own: RankIndex, processes: usize, options: WorldOptions) -> Self {
        let (doing, at, beats) = (None, Instant::now(), 0);
        let activity = Activity { doing, at, beats };
        let state = State {
            members: Members::new(own, processes),
            peers: Peers::new(own, processes),
            later: Vec::new(),
            values: BTreeMap::new(),
            calls: 0,
            activity: vec![activity; processes],
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
            is_over: Awaited::default(),
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

    /// Returns the rank of this process in a generation.
    fn rank(&self, roster: &Roster) -> RankIndex {
        let rank = roster.rank_of(self.own);
        rank.expect("a process is in every generation that it begins")
    }

    /// Returns the first failure of this generation.
    pub(crate) fn failure(&self) -> Option<Failure> {
        self.state.lock().peers.failure().cloned()
    }

    /// Reports to all ranks that this rank failed. Does nothing if `generation` is given and is no longer the current one.
    pub(crate) fn fail(&self, generation: Option<Generation>, reason: String) {
        let how = How::Failed(reason);
        let status = self.state.lock().status.clone();
        // Called without the lock, because it may read the state of the world.
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

    /// Applies an event to the shutdown protocol, sends its messages, and reports a failure if it is the first.
    fn change(&self, event: impl FnOnce(&mut State) -> Vec<(RankIndex, Word)>) {
        let mut state = self.state.lock();
        let had_failed = state.peers.failure().is_some();
        let words = event(&mut state);
        let failure = state.peers.failure().filter(|_| !had_failed).cloned();
        let roster = state.members.roster().clone();
        // Under the lock, because a thread that sees the failure may send frames that must arrive after these.
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
            let receivers = self.channels.lock().receivers.clone();
            let handlers = receivers.values().filter_map(|of| of.handler.get());
            handlers.for_each(|handler| handler.failed(&failure));
        }
    }

    /// Queues a frame for a rank of a generation.
    fn send(&self, roster: &Roster, to: RankIndex, kind: &Kind, pieces: Vec<Bytes>) {
        if let Some(to) = roster.members.get(to.index()) {
            let frame = kind.frame(roster.generation, &[], pieces);
            self.queue(*to, frame, Priority::Normal);
        }
    }

    /// Queues a frame for a process of the engine. The frame waits here until the engine has connected all ranks.
    pub(crate) fn queue(&self, to: RankIndex, frame: Frame, priority: Priority) {
        if let Some(outbox) = self.outbox.get() {
            return outbox.send(to, frame, priority);
        }
        let mut unsent = self.unsent.lock();
        match self.outbox.get() {
            // The engine has connected all ranks before this thread had the lock.
            Some(outbox) => outbox.send(to, frame, priority),
            None => unsent.push((to, frame, priority)),
        }
    }

    /// Sends the queued frames with the engine. Later frames are sent with it too.
    fn connect(&self, outbox: Box<dyn Outbox>) {
        let mut unsent = self.unsent.lock();
        let outbox = self.outbox.get_or_init(|| outbox);
        for (to, frame, priority) in unsent.drain(..) {
            outbox.send(to, frame, priority);
        }
    }

    /// Makes the next call: sends the value, if there is one, to all other ranks, and waits for the values of the ranks `from`.
    /// All ranks make the same calls in the same order, so a call is known by its number.
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
            // Checked after the values: a call is complete if all values have arrived, even if a rank has failed since.
            if let Some(failure) = state.peers.failure() {
                return Err(WorldError::Failed(failure.clone()));
            }
            let timeout = self.options.call_timeout;
            let remaining = timeout.saturating_sub(began.elapsed());
            let is_open = state.peers.is_open(rank);
            if remaining.is_zero() || !is_open {
                return Err(WorldError::Late {
                    rank,
                    call,
                    timeout: timeout.saturating_sub(remaining),
                    doing: match is_open {
                        true => state.doing(rank),
                        false => Some("no call: it has left".to_owned()),
                    },
                });
            }
            self.state.wait(&mut state, remaining);
        }
    }

    /// Opens the next channel. Its handler first receives the frames that arrived before.
    pub(crate) fn open(&self, handler: Arc<dyn Handler>) -> u32 {
        let mut channels = self.channels.lock();
        let number = channels.opened;
        channels.opened += 1;
        let receiver = channels.receivers.entry(number).or_default().clone();
        // Locked until the early frames are received, so that new frames wait and the frames of a sender stay in order.
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

    /// Closes a channel. Frames that arrive for it later are discarded.
    pub(crate) fn close(&self, number: u32) {
        self.channels.lock().receivers.remove(&number);
    }

    /// Sets the function whose text the heartbeats of this rank send.
    pub(crate) fn set_status(&self, status: Option<Status>) {
        self.state.lock().status = status;
    }

    /// Returns the last report of a rank.
    pub(crate) fn doing(&self, rank: RankIndex) -> Option<String> {
        self.state.lock().doing(rank)
    }

    /// Receives a frame from a process of the engine.
    fn receive(&self, process: RankIndex, frame: Received) {
        let Some((generation, kind, rest)) = Kind::read(&frame.header) else {
            let reason = "it sent bytes that are not a message of this version";
            return self.lose(process, reason.to_owned());
        };
        // Copied without the lock, because a value may be large, and all other frames wait for the lock.
        let value = match (&kind, frame.pieces.first()) {
            (Kind::Call { .. }, Some(piece)) => piece.to_vec(),
            _ => Vec::new(),
        };
        let mut state = self.state.lock();
        let roster = state.members.roster().clone();
        // `None` if the process was given up, or if the frame is of another generation.
        let from = roster.rank_of(process);
        let from = from.filter(|_| generation == roster.generation);
        match (kind, from) {
            (Kind::Beat(doing), _) => {
                if doing.is_some() {
                    state.activity[process.index()].doing = doing;
                }
            }
            (Kind::Vote(vote), _) => {
                drop(state);
                self.vote(|members| members.receive(process, vote));
            }
            _ if generation > roster.generation => state.later.push((process, frame)),
            (_, None) => {}
            (Kind::Word(word), Some(from)) => {
                drop(state);
                self.change(|state| state.peers.receive(from, word));
            }
            (Kind::Call { sequence, call }, Some(from)) => {
                let arrived = state.values.entry(sequence).or_default();
                arrived.insert(from, (call, value));
                drop(state);
                self.state.notify_all();
            }
            (Kind::Channel(number), Some(from)) => {
                drop(state);
                let mut channels = self.channels.lock();
                if number < channels.opened && !channels.receivers.contains_key(&number) {
                    // The channel was opened and closed.
                    return;
                }
                let receiver = channels.receivers.entry(number).or_default().clone();
                drop(channels);
                let mut early = receiver.early.lock();
                if let Some(handler) = receiver.handler.get() {
                    return handler.received(from, rest, frame.pieces);
                }
                let header = rest.to_vec();
                early.push((from, Received { header, ..frame }));
            }
        }
    }
}

/// The engine holds a weak reference, because the core owns the engine.
impl Events for Weak<Core> {
    fn received(&self, from: RankIndex, frame: Received) {
        if let Some(core) = self.upgrade() {
            self.alive(from);
            let receiving = core.receiving.read();
            core.receive(from, frame);
            drop(receiving);
        }
    }

    fn alive(&self, from: RankIndex) {
        if let Some(core) = self.upgrade()
            && let Some(activity) = core.state.lock().activity.get_mut(from.index())
        {
            activity.beats = 0;
            activity.at = Instant::now();
        }
    }

    fn lost(&self, from: RankIndex, reason: String) {
        if let Some(core) = self.upgrade() {
            core.lose(from, reason);
        }
    }
}

/// A process in its world. Dropping it leaves the world.
pub(crate) struct Member {
    pub(crate) core: Arc<Core>,
    /// The thread of the heartbeats.
    beats: Option<Thread>,
}

impl Member {
    /// Connects to all ranks.
    pub(crate) fn start(
        engine: Box<dyn Engine>,
        options: WorldOptions,
    ) -> Result<(Self, Option<Local>), WorldError> {
        let (rank, size, name) = (engine.rank(), engine.size(), engine.name());
        let core = Arc::new(Core::new(rank, size, options));
        let started = engine.start(Arc::new(Arc::downgrade(&core)))?;
        core.connect(started.outbox);
        let beating = core.clone();
        let beats = Thread::spawn("heartbeat", move || beating.beat_until_over())
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
        // The heartbeats continue during this wait, because they detect ranks that will never confirm.
        self.core.wait_until_confirmed();
        let failure = self.core.failure();
        self.core.is_over.change(|is_over| *is_over = true);
        self.beats.take().into_iter().for_each(Thread::join);
        if let Some(outbox) = self.core.outbox.get() {
            outbox.close(failure.map_or(Close::Left, |_| Close::Failed));
        }
    }
}
