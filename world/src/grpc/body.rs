//! Frames as the body of a request or a response.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::task::{Context, Poll, ready};

use bytes::{BufMut, Bytes, BytesMut};
use http::{HeaderMap, HeaderValue};
use http_body::Body;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use crate::frame::Frame;

/// The most bytes of a gRPC message. A larger frame is several.
pub(super) const MESSAGE_BYTES: usize = 1 << 20;

/// Bytes before a message: whether it is compressed, and its length.
pub(super) const PREFIX_BYTES: usize = 5;

/// Slices up to this size are copied behind the prefix of their message, which is faster than to send both.
const SMALL_BYTES: usize = 4096;

/// The frames for one process.
pub(super) struct Queue {
    frames: UnboundedReceiver<Frame>,
    /// Those that are sent when there are no others, each with what `forgotten` was when it was queued.
    idle: UnboundedReceiver<(u64, Frame)>,
    /// How many times such frames were forgotten.
    forgotten: Arc<AtomicU64>,
}

/// Puts frames in a [`Queue`].
pub(super) struct QueueSender {
    frames: UnboundedSender<Frame>,
    idle: UnboundedSender<(u64, Frame)>,
    forgotten: Arc<AtomicU64>,
}

impl Queue {
    pub(super) fn new() -> (QueueSender, Self) {
        let (frames, of_frames) = unbounded_channel();
        let (idle, of_idle) = unbounded_channel();
        let queue = Self {
            frames: of_frames,
            idle: of_idle,
            forgotten: Arc::default(),
        };
        let sender = QueueSender {
            frames,
            idle,
            forgotten: queue.forgotten.clone(),
        };
        (sender, queue)
    }

    /// The next frame; `None` after the last.
    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<Frame>> {
        let next = self.frames.poll_recv(context);
        if next.is_ready() {
            return next;
        }
        loop {
            match ready!(self.idle.poll_recv(context)) {
                Some((forgotten, _)) if forgotten < self.forgotten.load(Relaxed) => {}
                Some((_, frame)) => return Poll::Ready(Some(frame)),
                // Both are closed together, and the other one is asked first.
                None => return Poll::Pending,
            }
        }
    }
}

impl QueueSender {
    /// Does nothing after the queue was closed, as the queue of a rank that is lost.
    pub(super) fn send(&self, frame: Frame) {
        let _ = self.frames.send(frame);
    }

    /// As [`send`](Self::send), for when there is nothing else to send.
    pub(super) fn send_when_idle(&self, frame: Frame) {
        let _ = self.idle.send((self.forgotten.load(Relaxed), frame));
    }

    /// Leaves out what was queued so far for when there is nothing else to send.
    pub(super) fn forget_idle(&self) {
        self.forgotten.fetch_add(1, Relaxed);
    }
}

/// The frames of a queue, until it is closed.
pub(super) struct Outgoing {
    queue: Queue,
    /// What is to be sent of frames that were taken from the queue.
    slices: VecDeque<Bytes>,
    /// Whether a status follows, as after a response.
    has_trailers: bool,
}

impl Outgoing {
    pub(super) const fn request(queue: Queue) -> Self {
        Self {
            queue,
            slices: VecDeque::new(),
            has_trailers: false,
        }
    }

    pub(super) const fn response(queue: Queue) -> Self {
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
            match ready!(self.queue.poll_next(context)) {
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

    /// What is sent when there is nothing else waits for all other frames, and keeps its order.
    #[test]
    fn frames_overtake_those_that_wait() {
        let (sender, mut queue) = Queue::new();
        let frame = |name: u8| Frame {
            header: vec![name],
            pieces: Vec::new(),
        };
        sender.send_when_idle(frame(1));
        sender.send_when_idle(frame(2));
        sender.send(frame(3));
        sender.send(frame(4));
        let mut context = Context::from_waker(std::task::Waker::noop());
        let mut next = || match queue.poll_next(&mut context) {
            Poll::Ready(frame) => frame.map(|frame| frame.header[0]),
            Poll::Pending => None,
        };
        assert_eq!([next(), next(), next()], [Some(3), Some(4), Some(1)]);
        sender.send(frame(5));
        assert_eq!([next(), next(), next()], [Some(5), Some(2), None]);
        sender.send_when_idle(frame(6));
        sender.send(frame(7));
        sender.forget_idle();
        sender.send_when_idle(frame(8));
        assert_eq!([next(), next(), next()], [Some(7), Some(8), None]);
        drop(sender);
        assert!(matches!(queue.poll_next(&mut context), Poll::Ready(None)));
    }
}
