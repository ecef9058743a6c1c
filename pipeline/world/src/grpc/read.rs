//! Reads frames from the body of a request or a response.

use std::error::Error;
use std::sync::Arc;

use bytes::Bytes;
use http_body_util::BodyExt;
use tinderbox_ids::{RankIndex, with_causes};
use tonic::body::Body;

use super::body::{MESSAGE_BYTES, PREFIX_BYTES};
use crate::engine::Events;
use crate::frame::{Decoder, FrameError, take};

/// Bytes that are not a stream of frames.
#[derive(Debug, thiserror::Error)]
pub(super) enum ReadError {
    #[error("it sent {length} bytes as one message, the limit is {MESSAGE_BYTES}")]
    Long { length: u64 },
    #[error("it sent a compressed message")]
    Compressed,
    #[error("it sent bytes that are not a frame")]
    Frame(#[from] FrameError),
}

impl From<ReadError> for String {
    fn from(error: ReadError) -> Self {
        with_causes(&error)
    }
}

/// Removes the prefixes of messages.
#[derive(Default)]
pub(super) struct Messages {
    prefix: Vec<u8>,
    /// The number of bytes that the current message still has.
    left: usize,
}

impl Messages {
    /// Returns the next bytes of a message, and removes them from the front of the bytes that arrived; `None` if none are left.
    pub(super) fn next<'a>(&mut self, bytes: &mut &'a [u8]) -> Result<Option<&'a [u8]>, ReadError> {
        while self.left == 0 {
            let now = take(bytes, PREFIX_BYTES - self.prefix.len());
            self.prefix.extend_from_slice(now);
            let [compressed, a, b, c, d] = self.prefix[..] else {
                return Ok(None);
            };
            let length = u32::from_be_bytes([a, b, c, d]);
            self.prefix.clear();
            if compressed != 0 {
                return Err(ReadError::Compressed);
            }
            if length as usize > MESSAGE_BYTES {
                let length = u64::from(length);
                return Err(ReadError::Long { length });
            }
            self.left = length as usize;
        }
        let now = take(bytes, self.left);
        self.left -= now.len();
        Ok((!now.is_empty()).then_some(now))
    }
}

/// Reads frames until the stream ends, and reports them.
pub(super) async fn read(from: RankIndex, body: Body, events: Arc<dyn Events>) {
    let reason = match read_all(from, body, &*events).await {
        Ok(()) => "its connection ended".to_owned(),
        Err(error) => error,
    };
    events.lost(from, reason);
}

async fn read_all(from: RankIndex, mut body: Body, events: &dyn Events) -> Result<(), String> {
    let mut messages = Messages::default();
    let mut decoder = Decoder::default();
    while let Some(data) = next_data(&mut body).await? {
        events.alive(from);
        let mut bytes = &data[..];
        while let Some(now) = messages.next(&mut bytes)? {
            decoder.push(now).map_err(ReadError::Frame)?;
        }
        while let Some(frame) = decoder.next_frame() {
            events.received(from, frame);
        }
    }
    decoder.end().map_err(|error| with_causes(&error))
}

/// Returns the next data of a body; `None` at its end.
async fn next_data(body: &mut Body) -> Result<Option<Bytes>, String> {
    while let Some(frame) = body.frame().await {
        // Trailers have no data.
        if let Ok(data) = frame.map_err(|status| broken(&status))?.into_data() {
            return Ok(Some(data));
        }
    }
    Ok(None)
}

/// Returns why a connection broke: the last cause, because the causes before it only name layers.
fn broken(status: &tonic::Status) -> String {
    let causes = std::iter::successors(status.source(), |&cause| cause.source());
    let last = causes.last().map(ToString::to_string);
    let reason = last.unwrap_or_else(|| status.message().to_owned());
    format!("its connection broke: {reason}")
}

/// Reads the only message of a body, of at most 1 MiB.
pub(super) async fn read_one(mut body: Body) -> Result<Bytes, String> {
    let mut messages = Messages::default();
    let mut message = Vec::new();
    while let Some(data) = next_data(&mut body).await? {
        let mut bytes = &data[..];
        while let Some(now) = messages.next(&mut bytes)? {
            message.extend_from_slice(now);
        }
        if message.len() > MESSAGE_BYTES {
            let length = message.len() as u64;
            return Err(ReadError::Long { length }.into());
        }
    }
    Ok(message.into())
}

#[cfg(test)]
mod tests {
    use super::super::body::messages;
    use super::*;

    fn read(slices: &[&[u8]]) -> Result<Vec<u8>, String> {
        let (mut reader, mut all) = (Messages::default(), Vec::new());
        for slice in slices {
            let mut bytes = *slice;
            while let Some(now) = reader.next(&mut bytes).map_err(|error| error.to_string())? {
                all.extend_from_slice(now);
            }
        }
        Ok(all)
    }

    #[test]
    fn messages_are_read_in_slices_of_any_length() {
        let bytes: Vec<u8> = (0..=255).cycle().take(MESSAGE_BYTES + 1000).collect();
        let sent: Vec<u8> = messages(std::iter::once(Bytes::from(bytes.clone())))
            .into_iter()
            .flatten()
            .collect();
        for length in [1, 3, 5, 4096, sent.len()] {
            let slices: Vec<&[u8]> = sent.chunks(length).collect();
            assert!(read(&slices).unwrap() == bytes, "{length}");
        }
        let errors = [
            read(&[&[1, 0, 0, 0, 1, 9]]),
            read(&[&[0, 0xff, 0, 0, 0, 9]]),
        ];
        let errors: Vec<String> = errors.into_iter().map(Result::unwrap_err).collect();
        insta::assert_snapshot!(errors.join("\n"), @r#"
        it sent a compressed message
        it sent 4278190080 bytes as one message, the limit is 1048576
        "#);
        // A message without bytes is skipped.
        assert_eq!(read(&[&[0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 7]]).unwrap(), [7]);
    }
}
