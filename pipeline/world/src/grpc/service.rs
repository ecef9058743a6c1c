//! The side of a connection that answers calls.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;

use http::{HeaderMap, Request, Response};
use tinderbox_ids::RankIndex;
use tokio::sync::watch;
use tonic::Status;
use tonic::body::Body;
use tonic::transport::server::{TcpConnectInfo, TlsConnectInfo};

use super::body::Queue;
use super::call::{CARRY, JOIN, RANK, RUN, TOKEN, hex, one};
use super::join::Lobby;
use super::read::{read, read_one};
use crate::engine::Events;

/// The state that the calls of other ranks share.
pub(super) struct Shared {
    pub(super) rank: RankIndex,
    pub(super) token: Option<String>,
    pub(super) events: Arc<dyn Events>,
    /// Present on the first rank.
    pub(super) lobby: Option<Lobby>,
    /// The number of the run, as soon as it is known.
    pub(super) run: watch::Sender<Option<u64>>,
    /// The queue of each rank that calls this one, until it has called.
    pub(super) queues: watch::Sender<BTreeMap<RankIndex, Queue>>,
}

impl Shared {
    /// Serves a call of another rank.
    pub(super) async fn serve(
        self: Arc<Self>,
        request: Request<Body>,
    ) -> Result<Response<Body>, Infallible> {
        let answer = self.answer(request).await;
        Ok(answer.unwrap_or_else(|status| {
            let (rank, reason) = (self.rank.index(), status.message());
            tracing::warn!(rank, reason, "refused");
            status.into_http()
        }))
    }

    async fn answer(&self, request: Request<Body>) -> Result<Response<Body>, Status> {
        self.check_token(request.headers())?;
        let from = remote(&request);
        match (request.uri().path(), &self.lobby) {
            (JOIN, Some(lobby)) => {
                let hello = read_one(request.into_body()).await;
                let hello = hello.map_err(Status::invalid_argument)?;
                let joined = lobby.join(&hello, from).await;
                let table = joined.map_err(Status::failed_precondition)?;
                let written = postcard::to_stdvec(&*table);
                let written = written.map_err(|error| Status::internal(error.to_string()))?;
                Ok(response(one(written)))
            }
            (JOIN, None) => Err(Status::unimplemented(format!(
                "this is rank {}, and ranks meet at rank 0",
                self.rank
            ))),
            (CARRY, _) => self.carry(request).await,
            _ => Err(Status::unimplemented(
                "ranks of Tinderbox call Join and Carry",
            )),
        }
    }

    fn check_token(&self, headers: &HeaderMap) -> Result<(), Status> {
        let Some(own) = &self.token else {
            return Ok(());
        };
        let found = headers.get(TOKEN).map_or(&[][..], |value| value.as_bytes());
        let own = hex(own);
        // Takes the same time for every wrong token of the same length.
        let pairs = own.bytes().zip(found);
        let differ = pairs.fold(0, |differ, (own, found)| differ | (own ^ found));
        match differ == 0 && own.len() == found.len() {
            true => Ok(()),
            false => Err(Status::unauthenticated(
                "its token is not the one of this run",
            )),
        }
    }

    /// Receives frames of a rank, and returns the stream of the frames for it.
    async fn carry(&self, request: Request<Body>) -> Result<Response<Body>, Status> {
        let (start, body) = request.into_parts();
        let number = |name: &str| {
            let value = start.headers.get(name)?.to_str().ok()?;
            value.parse::<u64>().ok()
        };
        let (run, rank) = (number(RUN), number(RANK));
        let mut known = self.run.subscribe();
        let known = known.wait_for(Option::is_some).await.map(|run| *run);
        if run.is_none() || known.ok() != Some(run) {
            return Err(Status::failed_precondition("it belongs to another run"));
        }
        let index = rank.and_then(|rank| usize::try_from(rank).ok());
        let index = index.ok_or_else(|| Status::invalid_argument("it does not say its rank"))?;
        let rank = RankIndex::new(index);
        let mut queue = None;
        self.queues
            .send_modify(|queues| queue = queues.remove(&rank));
        let mut queue = queue.ok_or_else(|| {
            Status::already_exists(format!(
                "rank {rank} is connected already, or does not call this one"
            ))
        })?;
        tokio::spawn(read(rank, body, self.events.clone()));
        queue.has_trailers = true;
        Ok(response(Body::new(queue)))
    }
}

fn response(body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    let grpc = http::HeaderValue::from_static("application/grpc");
    let headers = response.headers_mut();
    headers.insert(http::header::CONTENT_TYPE, grpc);
    response
}

/// Returns the address of the caller.
fn remote(request: &Request<Body>) -> Option<SocketAddr> {
    let extensions = request.extensions();
    let plain = extensions.get::<TcpConnectInfo>();
    let encrypted = extensions.get::<TlsConnectInfo<TcpConnectInfo>>();
    let info = plain.or_else(|| encrypted.map(TlsConnectInfo::get_ref));
    info.and_then(TcpConnectInfo::remote_addr)
}
