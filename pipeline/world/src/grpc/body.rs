//! Sends frames as the body of a request or a response.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{BufMut, Bytes, BytesMut};
use http::{HeaderMap, HeaderName, HeaderValue};
use http_body::Body;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use crate::engine::Priority;
use crate::frame::Frame;

/// The most bytes of a gRPC message. A larger frame is several messages.
pub(super) const MESSAGE_BYTES: usize = 1 << 20;

/// The number of bytes before a message: whether it is compressed, and its length.
pub(super) const PREFIX_BYTES: usize = 5;

/// Slices up to this size are copied after the prefix of their message, which is faster than two writes.
const SMALL_BYTES: usize = 4096;

/// The frames for one process, until it is closed.
pub(super) struct Queue {
    items: UnboundedReceiver<Item>,
    /// Frames that are sent when `items` is empty.
    idle: VecDeque<Frame>,
    /// The slices that are left of the current frame.
    slices: VecDeque<Bytes>,
    /// Whether a status follows the last frame, as in a response.
    pub(super) has_trailers: bool,
}

/// An item of a [`Queue`].
pub(super) enum Item {
    Frame(Frame, Priority),
    /// Discards the queued idle frames.
    ForgetIdle,
}

impl Queue {
    pub(super) fn new() -> (UnboundedSender<Item>, Self) {
        let (sender, items) = unbounded_channel();
        let queue = Self {
            items,
            idle: VecDeque::new(),
            slices: VecDeque::new(),
            has_trailers: false,
        };
        (sender, queue)
    }

    /// Returns the next frame; `None` after the last.
    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<Frame>> {
        loop {
            match self.items.poll_recv(context) {
                Poll::Ready(Some(Item::Frame(frame, Priority::Normal))) => {
                    return Poll::Ready(Some(frame));
                }
                Poll::Ready(Some(Item::Frame(frame, Priority::Idle))) => self.idle.push_back(frame),
                Poll::Ready(Some(Item::ForgetIdle)) => self.idle.clear(),
                Poll::Ready(None) => return Poll::Ready(None),
                // The scheduler also suspends a task that has run for long, although there are items.
                Poll::Pending if !self.items.is_empty() => return Poll::Pending,
                Poll::Pending => {
                    let idle = self.idle.pop_front();
                    return idle.map_or(Poll::Pending, |frame| Poll::Ready(Some(frame)));
                }
            }
        }
    }
}

impl Body for Queue {
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
            match ready!(self.poll_next(context)) {
                Some(frame) => self.slices.extend(messages(frame.into_slices())),
                None if std::mem::take(&mut self.has_trailers) => {
                    // The status of a call that ended well.
                    let status = HeaderName::from_static("grpc-status");
                    let trailers = HeaderMap::from_iter([(status, HeaderValue::from_static("0"))]);
                    return Poll::Ready(Some(Ok(http_body::Frame::trailers(trailers))));
                }
                None => return Poll::Ready(None),
            }
        }
    }
}

/// Divides slices into gRPC messages, each with its prefix.
pub(super) fn messages(slices: impl Iterator<Item = Bytes>) -> Vec<Bytes> {
    let mut slices: VecDeque<Bytes> = slices.filter(|slice| !slice.is_empty()).collect();
    let mut done = Vec::new();
    while !slices.is_empty() {
        let (mut message, mut length) = (Vec::new(), 0);
        while length < MESSAGE_BYTES
            && let Some(mut slice) = slices.pop_front()
        {
            let now = slice.split_to(slice.len().min(MESSAGE_BYTES - length));
            length += now.len();
            message.push(now);
            if !slice.is_empty() {
                slices.push_front(slice);
            }
        }
        let mut start = BytesMut::with_capacity(PREFIX_BYTES);
        start.put_u8(0);
        // At most 1 MiB.
        start.put_u32(length as u32);
        if message[0].len() <= SMALL_BYTES {
            start.put(message.remove(0));
        }
        done.push(start.freeze());
        done.extend(message);
    }
    done
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

    /// Idle frames wait for all other frames, and keep their order.
    #[test]
    fn frames_overtake_idle_frames() {
        let (sender, mut queue) = Queue::new();
        let frame = |name: u8| Frame {
            header: vec![name],
            pieces: Vec::new(),
        };
        let put = |name, priority| {
            let item = Item::Frame(frame(name), priority);
            assert!(sender.send(item).is_ok());
        };
        put(1, Priority::Idle);
        put(2, Priority::Idle);
        put(3, Priority::Normal);
        put(4, Priority::Normal);
        let mut context = Context::from_waker(std::task::Waker::noop());
        let mut next = || match queue.poll_next(&mut context) {
            Poll::Ready(frame) => frame.map(|frame| frame.header[0]),
            Poll::Pending => None,
        };
        assert_eq!([next(), next(), next()], [Some(3), Some(4), Some(1)]);
        put(5, Priority::Normal);
        assert_eq!([next(), next(), next()], [Some(5), Some(2), None]);
        put(6, Priority::Idle);
        put(7, Priority::Normal);
        assert!(sender.send(Item::ForgetIdle).is_ok());
        put(8, Priority::Idle);
        assert_eq!([next(), next(), next()], [Some(7), Some(8), None]);
        drop(sender);
        assert!(matches!(queue.poll_next(&mut context), Poll::Ready(None)));
    }
}
