//! The engine over MPI.

use std::collections::VecDeque;
use std::error::Error;
use std::mem::ManuallyDrop;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use ferrompi::{Communicator, PersistentRequest, ThreadLevel};
use tinderbox_ids::RankIndex;
use tinderbox_world::{
    Close, Decoder, Engine, Environment, Events, Frame, Launcher, Outbox, Priority, Started, World,
    WorldError, WorldOptions,
};

const NAME: &str = "MPI";

/// The tag of all messages: the messages of two ranks arrive in their order.
const TAG: i32 = 1;

/// The most bytes of a message. A larger frame is several messages, so that one is copied while another is transferred.
const MESSAGE_BYTES: usize = 256 << 10;

/// The time for which the thread polls without a pause after an event. It is longer than the shortest nap of the other side,
/// which takes about 120 us with the delay of the system, so that two ranks that answer each other are both awake.
const BUSY: Duration = Duration::from_micros(250);

/// The shortest and the longest nap between two polls.
const SHORT_NAP: Duration = Duration::from_micros(50);
const LONG_NAP: Duration = Duration::from_millis(1);

/// The time of an orderly end for MPI to complete, with an error, the messages on their way to a lost rank.
const PATIENCE: Duration = Duration::from_secs(5);

/// Joins the world of the ranks that `mpirun` started, with the settings of [`WorldOptions::from_env`].
///
/// # Errors
///
/// When MPI can't be initialized, or its ranks are not the ranks of the launcher.
pub fn world() -> Result<World, WorldError> {
    let mut environment = Environment::from_env()?;
    let options = WorldOptions::from_env()?;
    let engine = Mpi::new()?;
    if environment.launcher == Launcher::Alone {
        // MPI may have its ranks from a launcher whose variables are unknown here.
        environment.rank = engine.rank;
        environment.size = engine.size;
        environment.local = None;
    }
    match engine.size {
        1 if environment.size == 1 => Ok(World::alone()),
        _ => World::over(&environment, options, Box::new(engine)),
    }
}

/// Carries frames over MPI.
#[derive(Debug)]
pub struct Mpi {
    rank: RankIndex,
    size: usize,
    commands: Sender<Command>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

enum Command {
    Start(Arc<dyn Events>),
    Send(RankIndex, Frame),
    Close(Close),
}

impl Mpi {
    /// Initializes MPI, on a thread of its own.
    ///
    /// # Errors
    ///
    /// When MPI can't be initialized, or has been initialized before.
    pub fn new() -> Result<Self, WorldError> {
        let (commands, queue) = channel();
        let (sender, started) = channel();
        let body = move || progress(&queue, &sender);
        let thread = thread::Builder::new().name("mpi".to_owned()).spawn(body);
        let thread = thread.map_err(|error| WorldError::engine(NAME, "its thread", error))?;
        let thread = Mutex::new(Some(thread));
        match started.recv() {
            Ok(Ok((rank, size))) => Ok(Self {
                rank,
                size,
                commands,
                thread,
            }),
            Ok(Err(error)) => Err(WorldError::engine(NAME, "its start", error)),
            Err(error) => Err(WorldError::engine(NAME, "its thread", error)),
        }
    }
}

impl Engine for Mpi {
    fn name(&self) -> &'static str {
        NAME
    }

    fn rank(&self) -> RankIndex {
        self.rank
    }

    fn size(&self) -> usize {
        self.size
    }

    fn start(self: Box<Self>, events: Arc<dyn Events>) -> Result<Started, WorldError> {
        // The thread lives as long as its commands.
        let _ = self.commands.send(Command::Start(events));
        Ok(Started {
            outbox: self,
            local: None,
        })
    }
}

impl Outbox for Mpi {
    fn send(&self, to: RankIndex, frame: Frame, _: Priority) {
        // The thread has ended after a failure.
        let _ = self.commands.send(Command::Send(to, frame));
    }

    fn close(&self, close: Close) {
        let _ = self.commands.send(Command::Close(close));
        let mut thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        // The panic hook has reported a panic of a handler.
        let _ = thread.take().map(JoinHandle::join);
    }
}

/// The thread that owns MPI.
fn progress(
    queue: &Receiver<Command>,
    started: &Sender<Result<(RankIndex, usize), ferrompi::Error>>,
) {
    // A drop finalizes, which waits for all other ranks: never after a failure.
    let mpi = match ferrompi::Mpi::init_thread(ThreadLevel::Funneled) {
        Ok(mpi) => ManuallyDrop::new(mpi),
        Err(error) => {
            let _ = started.send(Err(error));
            return;
        }
    };
    let world = mpi.world();
    let (rank, size) = (world.rank() as usize, world.size() as usize);
    let _ = started.send(Ok((RankIndex::new(rank), size)));
    let Ok(Command::Start(events)) = queue.recv() else {
        if size == 1 {
            drop(ManuallyDrop::into_inner(mpi));
        }
        // No rank has used MPI, and finalizing it would wait for the others.
        return;
    };
    let peer = |index| Peer {
        decoder: Decoder::default(),
        sending: VecDeque::new(),
        is_gone: index == rank,
    };
    // A drop waits for messages on their way, perhaps to a rank that is lost.
    let mut carrier = ManuallyDrop::new(Carrier {
        world,
        events,
        peers: (0..size).map(peer).collect(),
        spare: Vec::new(),
    });
    if carrier.run(queue) == Close::Left {
        drop(ManuallyDrop::into_inner(carrier));
        drop(ManuallyDrop::into_inner(mpi));
    }
}

/// The messages on their way to and from a rank.
struct Peer {
    decoder: Decoder,
    sending: VecDeque<PersistentRequest<u8>>,
    /// Whether it is lost, or this process itself.
    is_gone: bool,
}

struct Carrier {
    world: Communicator,
    events: Arc<dyn Events>,
    peers: Vec<Peer>,
    /// Buffers of messages that were sent or read, for reuse.
    spare: Vec<Vec<u8>>,
}

impl Carrier {
    /// Carries frames until the outbox is closed. After an orderly end, all frames have been sent.
    fn run(&mut self, queue: &Receiver<Command>) -> Close {
        let mut active = Instant::now();
        let mut closing = None;
        loop {
            if self.poll() {
                active = Instant::now();
            }
            let quiet = active.elapsed();
            let nap = match quiet < BUSY || closing.is_some() {
                true => Duration::ZERO,
                // A send ends the nap; a message that arrives waits for its end.
                false => (quiet / 4).clamp(SHORT_NAP, LONG_NAP),
            };
            match queue.recv_timeout(nap) {
                Ok(Command::Send(to, frame)) => {
                    self.send(to.index(), frame);
                    active = Instant::now();
                }
                Ok(Command::Close(close)) => {
                    closing = Some((close, Instant::now()));
                    // Also after a failure, because MPI does not report the end of a process.
                    self.end();
                }
                Ok(Command::Start(_)) | Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return Close::Failed,
            }
            match closing {
                Some((Close::Failed, _)) => return Close::Failed,
                Some((Close::Left, _)) if self.has_sent_all() => return Close::Left,
                // A rank that is lost without the knowledge of MPI, such as a stopped one, receives nothing.
                Some((Close::Left, since))
                    if since.elapsed() > PATIENCE && self.has_sent_all_to_alive() =>
                {
                    return Close::Failed;
                }
                _ => {}
            }
        }
    }

    /// Sends the end to all ranks: an empty message, which no frame has.
    fn end(&mut self) {
        for peer in 0..self.peers.len() {
            if !self.peers[peer].is_gone {
                self.send_message(peer, Vec::new());
            }
        }
    }

    fn has_sent_all(&self) -> bool {
        self.peers.iter().all(|peer| peer.sending.is_empty())
    }

    fn has_sent_all_to_alive(&self) -> bool {
        let mut peers = self.peers.iter();
        peers.all(|peer| peer.is_gone || peer.sending.is_empty())
    }

    /// Receives messages, and frees messages that have been sent. Returns whether there was one.
    fn poll(&mut self) -> bool {
        let mut happened = false;
        for peer in 0..self.peers.len() {
            while !self.peers[peer].is_gone {
                match self.receive(peer) {
                    Ok(true) => {}
                    Ok(false) => break,
                    Err(reason) => self.lose(peer, reason.to_string()),
                }
                happened = true;
            }
            while let Some(first) = self.peers[peer].sending.front_mut() {
                match first.test() {
                    Ok(Some(_)) => {
                        let sent = self.peers[peer].sending.pop_front();
                        let buffer = sent.and_then(|sent| sent.into_buffer().ok());
                        self.spare.extend(buffer);
                    }
                    Ok(None) => break,
                    Err(error) => {
                        // An incomplete message stays: MPI is finalized when no message is on its way, also to a lost rank.
                        let is_complete = !first.is_active();
                        self.lose(peer, error.to_string());
                        if !is_complete {
                            break;
                        }
                        self.peers[peer].sending.pop_front();
                    }
                }
                happened = true;
            }
        }
        happened
    }

    /// Receives one message of a rank, if there is one.
    fn receive(&mut self, peer: usize) -> Result<bool, Box<dyn Error>> {
        let found = self.world.improbe::<u8>(peer as i32, TAG);
        let Some((message, status)) = found? else {
            return Ok(false);
        };
        let length = status.count.ok_or("a message has no length")?;
        if length == 0 {
            message.mrecv::<u8>(&mut [])?;
            return Err("its process has ended".into());
        }
        let mut bytes = self.spare.pop().unwrap_or_default();
        bytes.resize(length, 0);
        message.mrecv(&mut bytes[..])?;
        let rank = RankIndex::new(peer);
        self.events.alive(rank);
        let decoder = &mut self.peers[peer].decoder;
        decoder.push(&bytes)?;
        self.spare.push(bytes);
        while let Some(frame) = decoder.next_frame() {
            self.events.received(rank, frame);
        }
        Ok(true)
    }

    fn send(&mut self, to: usize, frame: Frame) {
        if self.peers.get(to).is_none_or(|peer| peer.is_gone) {
            return;
        }
        let mut message = self.empty();
        for mut slice in frame.into_slices() {
            while !slice.is_empty() {
                let now = slice.split_to(slice.len().min(MESSAGE_BYTES - message.len()));
                message.extend_from_slice(&now);
                if message.len() == MESSAGE_BYTES {
                    self.send_message(to, message);
                    message = self.empty();
                }
            }
        }
        if !message.is_empty() {
            self.send_message(to, message);
        }
    }

    /// Returns an empty message, in the buffer of an earlier one.
    fn empty(&mut self) -> Vec<u8> {
        let mut message = self.spare.pop().unwrap_or_default();
        message.clear();
        message
    }

    fn send_message(&mut self, to: usize, message: Vec<u8>) {
        let request = self.world.send_init(message, to as i32, TAG);
        let started = request.and_then(|mut request| request.start().map(|_| request));
        match started {
            Ok(request) => self.peers[to].sending.push_back(request),
            Err(error) => self.lose(to, error.to_string()),
        }
    }

    fn lose(&mut self, peer: usize, reason: String) {
        if !std::mem::replace(&mut self.peers[peer].is_gone, true) {
            tracing::debug!(peer, reason, "lost");
            self.events.lost(RankIndex::new(peer), reason);
        }
    }
}
