//! The engine.

use std::collections::VecDeque;
use std::error::Error;
use std::mem::ManuallyDrop;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use ferrompi::{Communicator, PersistentRequest, ThreadLevel};
use tinderbox_schedule::RankIndex;
use tinderbox_world::{
    Close, Decoder, Engine, Environment, Events, Frame, Launcher, Limits, Outbox, Started, World,
    WorldError, WorldOptions,
};

const NAME: &str = "MPI";

/// The tag of all messages: the messages of two ranks arrive in their order.
const TAG: i32 = 1;

/// The most bytes of a message. A larger frame is several, so that one is copied while another is carried.
const MESSAGE_BYTES: usize = 256 << 10;

/// How long the thread looks without a pause after something happened. It is longer than the shortest nap of the other side,
/// which with the system's own delay takes some 120 us: ranks that answer each other are both awake.
const BUSY: Duration = Duration::from_micros(250);

/// The shortest and the longest nap between two looks.
const SHORT_NAP: Duration = Duration::from_micros(50);
const LONG_NAP: Duration = Duration::from_millis(1);

/// How long an orderly end waits until MPI has completed, with an error, what is on its way to a lost rank.
const PATIENCE: Duration = Duration::from_secs(5);

/// Joins the world of the ranks that `mpirun` started, with the settings of [`WorldOptions::from_env`].
///
/// # Errors
///
/// When MPI can't be initialized, or its ranks are not the launcher's.
pub fn world() -> Result<World, WorldError> {
    let environment = Environment::from_env()?;
    let options = WorldOptions::from_env()?;
    let engine = Mpi::new(options.limits)?;
    let environment = match environment.launcher {
        // Something else may have given MPI its ranks.
        Launcher::Alone => Environment {
            rank: engine.rank,
            size: engine.size,
            local: None,
            ..environment
        },
        _ => environment,
    };
    match engine.size {
        1 if environment.size == 1 => Ok(World::alone()),
        _ => World::over(&environment, options, Box::new(engine)),
    }
}

/// Carries frames by MPI.
#[derive(Debug)]
pub struct Mpi {
    rank: RankIndex,
    size: usize,
    commands: Sender<Command>,
    thread: JoinHandle<()>,
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
    /// When MPI can't be initialized, or was before.
    pub fn new(limits: Limits) -> Result<Self, WorldError> {
        let (commands, queue) = channel();
        let (sender, started) = channel();
        let body = move || progress(limits, &queue, &sender);
        let thread = thread::Builder::new().name("mpi".to_owned()).spawn(body);
        let thread = thread.map_err(|error| WorldError::engine(NAME, "its thread", error))?;
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
        let Self {
            commands, thread, ..
        } = *self;
        // The thread lives as long as its commands.
        let _ = commands.send(Command::Start(events));
        Ok(Started {
            outbox: Box::new(MpiOutbox {
                commands,
                thread: Mutex::new(Some(thread)),
            }),
            local: None,
        })
    }
}

struct MpiOutbox {
    commands: Sender<Command>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Outbox for MpiOutbox {
    fn send(&self, to: RankIndex, frame: Frame) {
        // The thread has ended after a failure.
        let _ = self.commands.send(Command::Send(to, frame));
    }

    fn close(&self, close: Close) {
        let _ = self.commands.send(Command::Close(close));
        let mut thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        // A panic of a handler was reported by its hook.
        let _ = thread.take().map(JoinHandle::join);
    }
}

/// The thread that owns MPI.
fn progress(
    limits: Limits,
    queue: &Receiver<Command>,
    started: &Sender<Result<(RankIndex, usize), ferrompi::Error>>,
) {
    let mpi = match ferrompi::Mpi::init_thread(ThreadLevel::Funneled) {
        Ok(mpi) => mpi,
        Err(error) => {
            let _ = started.send(Err(error));
            return;
        }
    };
    // A drop finalizes, which waits for all other ranks: never after a failure.
    let mpi = ManuallyDrop::new(mpi);
    let world = mpi.world();
    let (rank, size) = (world.rank() as usize, world.size() as usize);
    let _ = started.send(Ok((RankIndex::new(rank), size)));
    let Ok(Command::Start(events)) = queue.recv() else {
        if size == 1 {
            drop(ManuallyDrop::into_inner(mpi));
        }
        // It was never used, and an end of MPI would wait for the others.
        return;
    };
    let peer = |index| Peer {
        decoder: Decoder::new(limits),
        sending: VecDeque::new(),
        is_gone: index == rank,
    };
    // A drop waits for what is being sent, perhaps to a rank that is gone.
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

/// What is on its way to and from a rank.
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
    /// Memory of messages that were sent or read.
    spare: Vec<Vec<u8>>,
}

impl Carrier {
    /// Carries until it is closed. After an orderly end, everything was sent.
    fn run(&mut self, queue: &Receiver<Command>) -> Close {
        let mut active = Instant::now();
        let mut closing = None;
        loop {
            if self.look() {
                active = Instant::now();
            }
            let quiet = active.elapsed();
            let nap = match quiet < BUSY || closing.is_some() {
                true => Duration::ZERO,
                // A send wakes it; what arrives waits for the end of the nap.
                false => (quiet / 4).clamp(SHORT_NAP, LONG_NAP),
            };
            match queue.recv_timeout(nap) {
                Ok(Command::Send(to, frame)) => {
                    self.send(to.index(), frame);
                    active = Instant::now();
                }
                Ok(Command::Close(close)) => {
                    closing = Some((close, Instant::now()));
                    // Also after a failure: MPI does not report the end of a process, and the others would wait for it.
                    self.end();
                }
                Ok(Command::Start(_)) | Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return Close::Failed,
            }
            match closing {
                Some((Close::Failed, _)) => return Close::Failed,
                Some((Close::Left, _)) if self.has_sent_all() => return Close::Left,
                // A rank that is lost without MPI's knowledge, such as a stopped one, takes nothing any more.
                Some((Close::Left, since))
                    if since.elapsed() > PATIENCE && self.has_sent_all_that_arrives() =>
                {
                    return Close::Failed;
                }
                _ => {}
            }
        }
    }

    /// Tells all ranks that nothing more comes: an empty message, of which a frame has none.
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

    fn has_sent_all_that_arrives(&self) -> bool {
        self.peers
            .iter()
            .all(|peer| peer.is_gone || peer.sending.is_empty())
    }

    /// Receives what is there, and frees what was sent. Returns whether something happened.
    fn look(&mut self) -> bool {
        let mut happened = false;
        for peer in 0..self.peers.len() {
            while !self.peers[peer].is_gone {
                match self.receive(peer) {
                    Ok(true) => happened = true,
                    Ok(false) => break,
                    Err(reason) => {
                        self.lose(peer, reason.to_string());
                        happened = true;
                    }
                }
            }
            while let Some(first) = self.peers[peer].sending.front_mut() {
                match first.test() {
                    Ok(Some(_)) => {
                        let sent = self.peers[peer].sending.pop_front();
                        self.spare
                            .extend(sent.and_then(|sent| sent.into_buffer().ok()));
                        happened = true;
                    }
                    Ok(None) => break,
                    Err(error) => {
                        // What is not complete stays: MPI is finalized when nothing is on its way, also to a lost rank.
                        let is_complete = !first.is_active();
                        self.lose(peer, error.to_string());
                        if !is_complete {
                            break;
                        }
                        self.peers[peer].sending.pop_front();
                        happened = true;
                    }
                }
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
        self.events.heard(rank);
        let decoder = &mut self.peers[peer].decoder;
        decoder.push(&bytes)?;
        self.spare.push(bytes);
        while let Some(frame) = self.peers[peer].decoder.next_frame() {
            self.events.received(rank, frame);
        }
        Ok(true)
    }

    fn send(&mut self, to: usize, frame: Frame) {
        if self.peers.get(to).is_none_or(|peer| peer.is_gone) {
            return;
        }
        let mut message = self.spare.pop().unwrap_or_default();
        message.clear();
        for mut slice in frame.into_slices() {
            while !slice.is_empty() {
                let now = slice.split_to(slice.len().min(MESSAGE_BYTES - message.len()));
                message.extend_from_slice(&now);
                if message.len() == MESSAGE_BYTES {
                    self.send_message(to, std::mem::take(&mut message));
                    message = self.spare.pop().unwrap_or_default();
                    message.clear();
                }
            }
        }
        if !message.is_empty() {
            self.send_message(to, message);
        }
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
