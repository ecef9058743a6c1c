//! Frames from the body of a request or a response.

use std::sync::Arc;

use bytes::Bytes;
use http_body_util::BodyExt;
use thiserror::Error;
use tinderbox_path::with_causes;
use tinderbox_schedule::RankIndex;
use tonic::body::Body;

use super::body::{MESSAGE_BYTES, PREFIX_BYTES};
use crate::engine::Events;
use crate::frame::{Decoder, FrameError, Limits};

/// Bytes that are no stream of frames.
#[derive(Debug, Error)]
pub(super) enum ReadError {
    #[error("it sent {length} bytes as one message, the limit is {MESSAGE_BYTES}")]
    Long { length: u64 },
    #[error("it sent a compressed message")]
    Compressed,
    #[error("it sent bytes that are no frame")]
    Frame(#[from] FrameError),
}

/// Removes the prefixes of messages.
#[derive(Default)]
pub(super) struct Messages {
    prefix: Vec<u8>,
    /// Bytes that are left of a message.
    left: usize,
}

impl Messages {
    /// Gives the bytes of messages to `take`.
    pub(super) fn read<E: From<ReadError>>(
        &mut self,
        mut bytes: &[u8],
        mut take: impl FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        while !bytes.is_empty() {
            if self.left == 0 {
                let (now, later) =
                    bytes.split_at(bytes.len().min(PREFIX_BYTES - self.prefix.len()));
                self.prefix.extend_from_slice(now);
                bytes = later;
                let [compressed, a, b, c, d] = self.prefix[..] else {
                    continue;
                };
                let length = u32::from_be_bytes([a, b, c, d]);
                self.prefix.clear();
                if compressed != 0 {
                    return Err(ReadError::Compressed.into());
                }
                if length as usize > MESSAGE_BYTES {
                    let length = u64::from(length);
                    return Err(ReadError::Long { length }.into());
                }
                self.left = length as usize;
            }
            let (now, later) = bytes.split_at(bytes.len().min(self.left));
            self.left -= now.len();
            bytes = later;
            take(now)?;
        }
        Ok(())
    }
}

/// Reads frames until the stream ends, and reports them.
pub(super) async fn read(from: RankIndex, body: Body, limits: Limits, events: Arc<dyn Events>) {
    let reason = match read_all(from, body, limits, &*events).await {
        Ok(()) => "its connection ended".to_owned(),
        Err(error) => error,
    };
    events.lost(from, reason);
}

async fn read_all(
    from: RankIndex,
    mut body: Body,
    limits: Limits,
    events: &dyn Events,
) -> Result<(), String> {
    let mut messages = Messages::default();
    let mut decoder = Decoder::new(limits);
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|status| broken(&status))?;
        // Trailers have no data.
        let Ok(data) = frame.into_data() else {
            continue;
        };
        events.heard(from);
        let push = |bytes: &[u8]| Ok::<(), ReadError>(decoder.push(bytes)?);
        messages
            .read(&data, push)
            .map_err(|error| with_causes(&error))?;
        while let Some(frame) = decoder.next_frame() {
            events.received(from, frame);
        }
    }
    decoder.end().map_err(|error| with_causes(&error))
}

/// Returns why a connection broke: the last cause, because those before only name layers.
fn broken(status: &tonic::Status) -> String {
    let mut last: &dyn std::error::Error = status;
    while let Some(cause) = last.source() {
        last = cause;
    }
    match std::ptr::eq(last, std::ptr::from_ref(status)) {
        true => format!("its connection broke: {}", status.message()),
        false => format!("its connection broke: {last}"),
    }
}

/// Reads the only message of a body, of at most 1 MiB.
pub(super) async fn read_one(mut body: Body) -> Result<Bytes, String> {
    let mut messages = Messages::default();
    let mut message = Vec::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|status| broken(&status))?;
        let Ok(data) = frame.into_data() else {
            continue;
        };
        let take = |bytes: &[u8]| {
            message.extend_from_slice(bytes);
            let length = message.len() as u64;
            match message.len() > MESSAGE_BYTES {
                true => Err(ReadError::Long { length }),
                false => Ok(()),
            }
        };
        messages
            .read(&data, take)
            .map_err(|error| error.to_string())?;
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
            let take = |bytes: &[u8]| {
                all.extend_from_slice(bytes);
                Ok::<(), ReadError>(())
            };
            reader
                .read(slice, take)
                .map_err(|error| error.to_string())?;
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
        // A message without bytes is none.
        assert_eq!(read(&[&[0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 7]]).unwrap(), [7]);
    }
}
