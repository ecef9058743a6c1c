//! Calls to other ranks.

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Request};
use tinderbox_ids::{RankIndex, with_causes};
use tokio::time::sleep;
use tonic::body::Body;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};
use tower::ServiceExt;

use super::tls::Tls;
use crate::error::WorldError;

/// The path of each call.
pub(super) const JOIN: &str = "/tinderbox.World/Join";
pub(super) const CARRY: &str = "/tinderbox.World/Carry";

/// The headers of a call.
pub(super) const TOKEN: &str = "tinderbox-token";
pub(super) const RUN: &str = "tinderbox-run";
pub(super) const RANK: &str = "tinderbox-rank";

/// The bytes of a stream, and of a connection, that may be in transit.
pub(super) const WINDOW_BYTES: u32 = 16 << 20;

/// The most bytes of an HTTP/2 frame.
pub(super) const HTTP_FRAME_BYTES: u32 = 1 << 20;

/// The longest time of an attempt to connect, and the pauses between attempts.
const ATTEMPT: Duration = Duration::from_secs(5);
const FIRST_PAUSE: Duration = Duration::from_millis(5);
const LONGEST_PAUSE: Duration = Duration::from_millis(500);

/// Connects to a rank, which may not listen yet.
pub(super) async fn connect(
    rank: RankIndex,
    address: &str,
    tls: Option<&Tls>,
    timeout: Duration,
) -> Result<Channel, WorldError> {
    let unreachable = |reason: String| WorldError::Unreachable {
        rank,
        address: address.to_owned(),
        timeout,
        reason,
    };
    let scheme = if tls.is_some() { "https" } else { "http" };
    let endpoint = || {
        let endpoint = Endpoint::from_shared(format!("{scheme}://{address}"))?
            .connect_timeout(ATTEMPT)
            .initial_stream_window_size(WINDOW_BYTES)
            .initial_connection_window_size(WINDOW_BYTES)
            .max_frame_size(HTTP_FRAME_BYTES)
            .tcp_nodelay(true);
        match tls {
            Some(tls) => endpoint.tls_config(tls.client()),
            None => Ok(endpoint),
        }
    };
    let endpoint = endpoint().map_err(|error| unreachable(with_causes(&error)))?;
    let mut pause = FIRST_PAUSE;
    let mut last = "no answer".to_owned();
    let connected = tokio::time::timeout(timeout, async {
        loop {
            match endpoint.connect().await {
                Ok(channel) => return channel,
                Err(error) => last = with_causes(&error),
            }
            sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    });
    let connected = connected.await;
    connected.map_err(|_| unreachable(last))
}

/// Calls a rank.
///
/// # Errors
///
/// When it refuses, with its reason.
pub(super) async fn call(
    channel: &mut Channel,
    rank: RankIndex,
    path: &'static str,
    headers: HeaderMap,
    body: Body,
) -> Result<Body, WorldError> {
    let refused = |reason| WorldError::Refused { by: rank, reason };
    let mut request = Request::post(path)
        .header(http::header::CONTENT_TYPE, "application/grpc")
        .header(http::header::TE, "trailers")
        .body(body)
        .map_err(|error| refused(with_causes(&error)))?;
    request.headers_mut().extend(headers);
    let answer = channel.oneshot(request).await;
    let answer = answer.map_err(|error| refused(with_causes(&error)))?;
    match Status::from_header_map(answer.headers()) {
        Some(status) if status.code() != Code::Ok => Err(refused(status.message().to_owned())),
        _ => Ok(answer.into_body()),
    }
}

/// Returns the headers that every call has.
pub(super) fn headers(token: Option<&str>, more: &[(&'static str, String)]) -> HeaderMap {
    let mut headers = HeaderMap::new();
    let token = token.map(|token| (TOKEN, hex(token)));
    for (name, value) in token.into_iter().chain(more.iter().cloned()) {
        // A number or hexadecimal digits, so it never fails.
        if let Ok(mut value) = HeaderValue::from_str(&value) {
            value.set_sensitive(name == TOKEN);
            headers.insert(name, value);
        }
    }
    headers
}

/// Encodes a token, which may have characters that a header may not have.
pub(super) fn hex(token: &str) -> String {
    token.bytes().map(|byte| format!("{byte:02x}")).collect()
}

/// Returns a body of one message.
pub(super) fn one(message: Vec<u8>) -> Body {
    let slices = super::body::messages(std::iter::once(Bytes::from(message)));
    let bytes: Vec<u8> = slices.into_iter().flatten().collect();
    Body::new(http_body_util::Full::new(Bytes::from(bytes)))
}
