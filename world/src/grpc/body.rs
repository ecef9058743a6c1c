//! Frames as the body of a request or a response.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{BufMut, Bytes, BytesMut};
use http::{HeaderMap, HeaderValue};
use http_body::Body;
use tokio::sync::mpsc::UnboundedReceiver;

use crate::frame::Frame;

/// The most bytes of a gRPC message. A larger frame is several.
pub(super) const MESSAGE_BYTES: usize = 1 << 20;

/// Bytes before a message: whether it is compressed, and its length.
pub(super) const PREFIX_BYTES: usize = 5;

/// Slices up to this size are copied behind the prefix of their message, which is faster than to send both.
const SMALL_BYTES: usize = 4096;

/// The frames of a queue, until it is closed.
pub(super) struct Outgoing {
    queue: UnboundedReceiver<Frame>,
    /// What is to be sent of frames that were taken from the queue.
    slices: VecDeque<Bytes>,
    /// Whether a status follows, as after a response.
    has_trailers: bool,
}

impl Outgoing {
    pub(super) const fn request(queue: UnboundedReceiver<Frame>) -> Self {
        Self {
            queue,
            slices: VecDeque::new(),
            has_trailers: false,
        }
    }

    pub(super) const fn response(queue: UnboundedReceiver<Frame>) -> Self {
        Self {
            queue,
            slices: VecDeque::new(),
            has_trailers: true,
        }
    }
}

impl Body for Outgoing {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<http_body::Frame<Bytes>, Infallible>>> {
        loop {
            if let Some(slice) = self.slices.pop_front() {
                return Poll::Ready(Some(Ok(http_body::Frame::data(slice))));
            }
            match ready!(self.queue.poll_recv(context)) {
                Some(frame) => self.slices.extend(messages(frame.into_slices())),
                None if std::mem::take(&mut self.has_trailers) => {
                    return Poll::Ready(Some(Ok(http_body::Frame::trailers(ok()))));
                }
                None => return Poll::Ready(None),
            }
        }
    }
}

/// The status of a call that ended well.
pub(super) fn ok() -> HeaderMap {
    HeaderMap::from_iter([(
        http::HeaderName::from_static("grpc-status"),
        HeaderValue::from_static("0"),
    )])
}

/// Returns slices as gRPC messages.
pub(super) fn messages(slices: impl Iterator<Item = Bytes>) -> Vec<Bytes> {
    let mut done = Vec::new();
    let (mut message, mut length) = (Vec::new(), 0);
    for mut slice in slices {
        while !slice.is_empty() {
            let now = slice.split_to(slice.len().min(MESSAGE_BYTES - length));
            length += now.len();
            message.push(now);
            if length == MESSAGE_BYTES {
                finish(&mut message, &mut length, &mut done);
            }
        }
    }
    if length > 0 {
        finish(&mut message, &mut length, &mut done);
    }
    done
}

fn finish(message: &mut Vec<Bytes>, length: &mut usize, done: &mut Vec<Bytes>) {
    let small = message.first().map_or(0, Bytes::len);
    let small = if small <= SMALL_BYTES { small } else { 0 };
    let mut start = BytesMut::with_capacity(PREFIX_BYTES + small);
    start.put_u8(0);
    // At most 1 MiB.
    start.put_u32(*length as u32);
    let mut slices = message.drain(..);
    if small > 0
        && let Some(first) = slices.next()
    {
        start.put(first);
    }
    done.push(start.freeze());
    done.extend(slices);
    *length = 0;
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every message has its prefix and at most 1 MiB, and large slices are not copied.
    #[test]
    fn slices_become_messages() {
        let large = Bytes::from(vec![1; 2 * MESSAGE_BYTES + 10]);
        let slices = [
            Bytes::from_static(b"start"),
            large.clone(),
            Bytes::from_static(b"end"),
        ];
        let found = messages(slices.iter().cloned());
        let lengths: Vec<usize> = found.iter().map(Bytes::len).collect();
        assert_eq!(
            lengths,
            [
                PREFIX_BYTES + 5,
                MESSAGE_BYTES - 5,
                PREFIX_BYTES,
                MESSAGE_BYTES,
                PREFIX_BYTES + 15,
                3
            ]
        );
        assert_eq!(found[1].as_ptr(), large.as_ptr());
        assert_eq!(found[2][..], [0, 0, 0x10, 0, 0]);
        assert_eq!(found[4][..PREFIX_BYTES], [0, 0, 0, 0, 18]);
    }
}
