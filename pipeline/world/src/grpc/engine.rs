//! The engine over gRPC.

use std::collections::BTreeMap;
use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, ToSocketAddrs};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tinderbox_ids::RankIndex;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::watch;
use tokio::time::timeout;
use tonic::body::Body;
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Channel, Server};
use tower::service_fn;

use super::body::{Item, Queue};
use super::call::{self, CARRY, HTTP_FRAME_BYTES, JOIN, RANK, RUN, WINDOW_BYTES};
use super::join::{Hello, Lobby, Table, VERSION};
use super::read::{read, read_one};
use super::service::Shared;
use super::tls::Tls;
use crate::engine::{Close, Engine, Events, Outbox, Priority, Started};
use crate::environment::{Environment, Meeting, machine};
use crate::error::WorldError;
use crate::frame::Frame;
use crate::members::others;
use crate::options::WorldOptions;

const NAME: &str = "gRPC";

/// The longest wait for the end of the engine's threads.
const END: Duration = Duration::from_secs(1);

/// The time for the ranks that wait at the first rank to read that others have not joined.
const LAST_ANSWERS: Duration = Duration::from_millis(200);

/// Carries frames over gRPC, between machines that have only a network.
///
/// Without a token and without TLS, it listens on the loopback address only.
#[derive(derive_more::Debug)]
pub struct Grpc {
    rank: RankIndex,
    size: usize,
    meeting: Meeting,
    /// The address that this rank listens on.
    ip: IpAddr,
    options: WorldOptions,
    #[debug(skip)]
    tls: Option<Tls>,
}

impl Grpc {
    /// Creates the engine of a rank.
    ///
    /// # Errors
    ///
    /// When the environment has no meeting; when the meeting is not on the loopback address, and there is neither a token
    /// nor TLS; when the files for TLS can't be read.
    pub fn new(environment: &Environment, options: &WorldOptions) -> Result<Self, WorldError> {
        let (rank, size) = (environment.rank, environment.size);
        let Some(meeting) = environment.meeting.clone() else {
            return Err(WorldError::NoEngine {
                launcher: environment.launcher,
                size,
                hint: "set MASTER_ADDR and MASTER_PORT to the address of the first rank, or join with an engine for MPI",
            });
        };
        let tls = options.tls.as_deref().map(Tls::read).transpose()?;
        let addresses = (meeting.host.as_str(), meeting.port).to_socket_addrs();
        let addresses: Vec<SocketAddr> = addresses.map(Iterator::collect).unwrap_or_default();
        let is_local = addresses.iter().all(|address| address.ip().is_loopback());
        let ip = match (tls.is_some() || options.token.is_some(), addresses.first()) {
            (false, Some(first)) if is_local => first.ip(),
            (false, _) => return Err(WorldError::Unprotected { meeting }),
            (true, Some(SocketAddr::V6(_))) => Ipv6Addr::UNSPECIFIED.into(),
            (true, _) => Ipv4Addr::UNSPECIFIED.into(),
        };
        Ok(Self {
            rank,
            size,
            meeting,
            ip,
            options: options.clone(),
            tls,
        })
    }

    fn listen(&self) -> Result<TcpListener, WorldError> {
        let is_first = self.rank.index() == 0;
        let address = SocketAddr::new(self.ip, if is_first { self.meeting.port } else { 0 });
        let listen = || {
            let listener = TcpListener::bind(address)?;
            listener.set_nonblocking(true)?;
            Ok(listener)
        };
        listen().map_err(|source: io::Error| WorldError::Listen {
            rank: self.rank,
            address: address.to_string(),
            hint: match source.kind() {
                io::ErrorKind::AddrInUse => {
                    "another program or another run uses this port; set MASTER_PORT to a free one"
                }
                _ => "MASTER_ADDR is an address of the machine of rank 0",
            },
            source,
        })
    }

    /// Connects to all ranks: calls the ranks below, and waits for the calls of the ranks above.
    async fn connect(
        &self,
        shared: &Arc<Shared>,
        port: u16,
        queues: BTreeMap<RankIndex, Queue>,
    ) -> Result<Arc<Table>, WorldError> {
        let patience = self.options.join_timeout;
        let machine = machine();
        let mut first = None;
        let table = match &shared.lobby {
            Some(lobby) => {
                lobby.enter(self.rank, self.meeting.to_string(), machine);
                lobby.all(patience).await?
            }
            None => {
                let (table, channel) = self.join(port, machine).await?;
                first = Some(channel);
                Arc::new(table)
            }
        };
        shared.run.send_replace(Some(table.run));
        for (to, queue) in queues {
            let channel = match first.take() {
                Some(channel) if to.index() == 0 => channel,
                _ => self.channel(to, &table.addresses[to.index()]).await?,
            };
            self.carry(to, channel, &table, queue, shared).await?;
        }
        let mut above = shared.queues.subscribe();
        let all = above.wait_for(BTreeMap::is_empty);
        let _ = timeout(patience, all).await;
        let missing: Vec<RankIndex> = shared.queues.borrow().keys().copied().collect();
        match missing.is_empty() {
            true => Ok(table),
            false => Err(WorldError::NotAllJoined {
                missing,
                meeting: self.meeting.clone(),
                timeout: patience,
            }),
        }
    }

    /// Returns the error of a first rank that does not answer.
    fn unreachable(&self, timeout: Duration, reason: String) -> WorldError {
        WorldError::Unreachable {
            rank: RankIndex::new(0),
            address: self.meeting.to_string(),
            timeout,
            reason,
        }
    }

    async fn channel(&self, to: RankIndex, address: &str) -> Result<Channel, WorldError> {
        call::connect(to, address, self.tls.as_ref(), self.options.join_timeout).await
    }

    /// Joins at the first rank, and waits there until all have joined.
    async fn join(&self, port: u16, machine: String) -> Result<(Table, Channel), WorldError> {
        let first = RankIndex::new(0);
        let hello = Hello {
            version: VERSION.to_owned(),
            rank: self.rank,
            size: self.size,
            port,
            machine,
        };
        let damaged = |error: postcard::Error| WorldError::engine(NAME, "the greeting", error);
        let hello = postcard::to_stdvec(&hello).map_err(damaged)?;
        let mut channel = self.channel(first, &self.meeting.to_string()).await?;
        let headers = call::headers(self.options.token.as_deref(), &[]);
        let answer = call::call(&mut channel, first, JOIN, headers, call::one(hello)).await?;
        let unreachable = |reason| self.unreachable(self.options.join_timeout, reason);
        let answer = read_one(answer).await.map_err(unreachable)?;
        let table: Table = postcard::from_bytes(&answer).map_err(damaged)?;
        match table.addresses.len() == self.size {
            true => Ok((table, channel)),
            false => Err(damaged(postcard::Error::DeserializeBadEncoding)),
        }
    }

    /// Starts to exchange frames with a rank below.
    async fn carry(
        &self,
        to: RankIndex,
        mut channel: Channel,
        table: &Table,
        queue: Queue,
        shared: &Shared,
    ) -> Result<(), WorldError> {
        let more = [
            (RUN, table.run.to_string()),
            (RANK, self.rank.index().to_string()),
        ];
        let headers = call::headers(self.options.token.as_deref(), &more);
        let answer = call::call(&mut channel, to, CARRY, headers, Body::new(queue)).await?;
        let events = shared.events.clone();
        tokio::spawn(async move {
            read(to, answer, events).await;
            // The connection lives as long as its channel.
            drop(channel);
        });
        Ok(())
    }
}

impl Engine for Grpc {
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
        let listener = self.listen()?;
        let no_port = |error| WorldError::engine(NAME, "its port", error);
        let port = listener.local_addr().map_err(no_port)?.port();
        let runtime = Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("grpc")
            .enable_all()
            .build()
            .map_err(|error| WorldError::engine(NAME, "its threads", error))?;
        let (mut senders, mut below) = (BTreeMap::new(), BTreeMap::new());
        for other in others(self.rank, self.size) {
            let (sender, queue) = Queue::new();
            senders.insert(other, sender);
            below.insert(other, queue);
        }
        // A call to a rank below carries its queue; the answer to a rank above carries its queue.
        let above = below.split_off(&self.rank);
        let lobby = (self.rank.index() == 0).then(|| {
            let run = RandomState::new().build_hasher().finish();
            Lobby::new(self.size, self.meeting.clone(), run)
        });
        let shared = Arc::new(Shared {
            rank: self.rank,
            token: self.options.token.clone(),
            events,
            lobby,
            run: watch::Sender::new(None),
            queues: watch::Sender::new(above),
        });
        let mut server = Server::builder()
            .initial_stream_window_size(WINDOW_BYTES)
            .initial_connection_window_size(WINDOW_BYTES)
            .max_frame_size(HTTP_FRAME_BYTES);
        if let Some(tls) = &self.tls {
            let encrypted = server.tls_config(tls.server());
            server = encrypted.map_err(|error| WorldError::engine(NAME, "TLS", error))?;
        }
        let of_service = shared.clone();
        let service = service_fn(move |request| of_service.clone().serve(request));
        let guard = runtime.enter();
        let listener = tokio::net::TcpListener::from_std(listener).map_err(no_port)?;
        drop(guard);
        let incoming = TcpIncoming::from(listener).with_nodelay(Some(true));
        runtime.spawn(async move {
            if let Err(error) = server.serve_with_incoming(service, incoming).await {
                tracing::warn!(%error, "the server ended");
            }
        });
        // Each part has its own `join_timeout`, but a rank that is stopped meanwhile would end none of them.
        let most = self.options.join_timeout.saturating_mul(2);
        let connected = runtime.block_on(async {
            let connect = timeout(most, self.connect(&shared, port, below));
            connect.await.unwrap_or_else(|_| {
                let reason = "the ranks did not connect to each other".to_owned();
                Err(self.unreachable(most, reason))
            })
        });
        let outbox = Box::new(GrpcOutbox(Mutex::new(Some((senders, runtime)))));
        match connected.map(|table| table.local(self.rank)) {
            Ok(local) => Ok(Started { outbox, local }),
            Err(error) => {
                if shared.lobby.is_some() {
                    std::thread::sleep(LAST_ANSWERS);
                }
                outbox.close(Close::Failed);
                Err(error)
            }
        }
    }
}

/// The queues of all others.
type Senders = BTreeMap<RankIndex, UnboundedSender<Item>>;

/// The queues, and the threads of the engine, until it is closed.
struct GrpcOutbox(Mutex<Option<(Senders, Runtime)>>);

impl Outbox for GrpcOutbox {
    fn send(&self, to: RankIndex, frame: Frame, priority: Priority) {
        if let Some((senders, _)) = &*self.0.lock()
            && let Some(sender) = senders.get(&to)
        {
            // The queue of a lost rank is closed.
            let _ = sender.send(Item::Frame(frame, priority));
        }
    }

    fn forget_idle(&self) {
        let open = self.0.lock();
        for sender in open.iter().flat_map(|(senders, _)| senders.values()) {
            let _ = sender.send(Item::ForgetIdle);
        }
    }

    fn close(&self, _: Close) {
        let open = self.0.lock().take();
        if let Some((senders, runtime)) = open {
            drop(senders);
            runtime.shutdown_timeout(END);
        }
    }
}
