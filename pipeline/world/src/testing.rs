//! A conformance suite for engines.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use thiserror::Error;
use tinderbox_ids::RankIndex;

use crate::engine::{Close, Engine, Events, Outbox, Priority, Started};
use crate::error::WorldError;
use crate::frame::{Buffer, Frame, Received};
use crate::link::{Awaited, Instant, is_simulated};
use crate::members::others;

/// A rule that an engine breaks.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum EngineFault {
    /// The engine does not start.
    #[error("the engine does not start")]
    Start(#[from] WorldError),
    /// A frame did not arrive.
    #[error("rank {from} sent {expected}, but nothing arrived for {waited:?}")]
    Missing {
        /// The sender.
        from: RankIndex,
        /// The frame.
        expected: String,
        /// The time of the wait.
        waited: Duration,
    },
    /// Another frame or event arrived.
    #[error("rank {from} sent {expected}, but {found} arrived")]
    Other {
        /// The sender.
        from: RankIndex,
        /// The frame.
        expected: String,
        /// The arrived frame or event.
        found: String,
    },
    /// A send waited for its receiver.
    #[error("to queue {bytes} bytes for a rank that does not receive took {took:?}")]
    Waits {
        /// The number of bytes.
        bytes: usize,
        /// The time of the sends.
        took: Duration,
    },
}

/// Sizes of pieces: zero, small sizes of all alignments, and sizes that are larger than the buffers of connections.
const SIZES: [usize; 8] = [0, 1, 7, 8, 9, 4096, 65_537, (3 << 20) + 5];

/// The number of small frames between two ranks.
const FRAMES: usize = 500;

/// The longest time of a frame.
const PATIENCE: Duration = Duration::from_secs(60);

/// Checks the contract of [`Engine`]. All ranks of a world call this, each with its own engine: as threads, or as processes.
/// Takes seconds. In a simulation no send can wait, so this rule is not checked there.
///
/// The suite has no faults of processes, such as a kill.
///
/// # Errors
///
/// The first rule that the engine breaks.
pub fn check_engine(engine: Box<dyn Engine>) -> Result<(), EngineFault> {
    let (rank, size) = (engine.rank(), engine.size());
    let events = Arc::new(Arrived::default());
    let Started { outbox, .. } = engine.start(events.clone())?;
    let check = Check {
        rank,
        size,
        outbox: &*outbox,
        events,
    };
    check.frames()?;
    if !is_simulated() {
        check.never_waits()?;
    }
    check.ends()
}

/// A frame that an engine delivered, or the end of a connection.
#[derive(Debug, PartialEq)]
enum Event {
    Frame(Received),
    Lost,
}

/// The events that an engine delivered. While the gate is closed, the engine's threads wait.
#[derive(Default)]
struct Arrived(Awaited<ArrivedState>);

#[derive(Default)]
struct ArrivedState {
    events: BTreeMap<RankIndex, VecDeque<Event>>,
    is_closed: bool,
}

impl Arrived {
    fn put(&self, from: RankIndex, event: Event) {
        self.0
            .change(|state| state.events.entry(from).or_default().push_back(event));
    }

    /// Waits for the next event of a rank; `None` if there is none for a while.
    fn next(&self, from: RankIndex) -> Option<Event> {
        self.0.wait_for(PATIENCE, |state| {
            state.events.entry(from).or_default().pop_front()
        })
    }

    fn close_gate(&self, is_closed: bool) {
        self.0.change(|state| state.is_closed = is_closed);
    }
}

impl Events for Arrived {
    fn received(&self, from: RankIndex, frame: Received) {
        let mut state = self.0.lock();
        while state.is_closed {
            self.0.wait(&mut state, PATIENCE);
        }
        drop(state);
        self.put(from, Event::Frame(frame));
    }

    fn alive(&self, _: RankIndex) {}

    fn lost(&self, from: RankIndex, _: String) {
        self.put(from, Event::Lost);
    }
}

struct Check<'a> {
    rank: RankIndex,
    size: usize,
    outbox: &'a dyn Outbox,
    events: Arc<Arrived>,
}

/// Returns bytes that differ by sender, receiver, frame and position.
fn content(from: RankIndex, to: RankIndex, frame: usize, length: usize) -> Vec<u8> {
    let start = from.index() * 31 + to.index() * 17 + frame * 7;
    let bytes = (0..length).map(|at| (start + at * 13 + at / 251) as u8);
    bytes.collect()
}

/// Returns the sizes of the pieces of a frame.
fn sizes(frame: usize) -> Vec<usize> {
    let small = &SIZES[..6];
    let size = |piece| small[(frame + piece) % small.len()];
    match frame {
        0 => SIZES.to_vec(),
        _ => (0..frame % 4).map(size).collect(),
    }
}

fn made(from: RankIndex, to: RankIndex, frame: usize) -> Frame {
    let header = content(from, to, frame, frame % 70);
    let piece = |size| Bytes::from(content(from, to, frame, size));
    let pieces = sizes(frame).into_iter().map(piece).collect();
    Frame { header, pieces }
}

/// Returns a frame without pieces.
fn word(header: &str) -> Frame {
    let (header, pieces) = (header.as_bytes().to_vec(), Vec::new());
    Frame { header, pieces }
}

impl Event {
    fn arrival(sent: Frame) -> Self {
        let Frame { header, pieces } = sent;
        let pieces = pieces.iter().map(|one| Buffer::from(&one[..])).collect();
        Self::Frame(Received { header, pieces })
    }
}

impl Check<'_> {
    fn others(&self) -> impl Iterator<Item = RankIndex> + use<> {
        others(self.rank, self.size)
    }

    /// Waits for an event of a rank.
    fn expect(&self, from: RankIndex, expected: String, event: &Event) -> Result<(), EngineFault> {
        match self.events.next(from) {
            Some(found) if found == *event => Ok(()),
            Some(found) => Err(EngineFault::Other {
                from,
                expected,
                found: format!("{found:?}"),
            }),
            None => Err(EngineFault::Missing {
                from,
                expected,
                waited: PATIENCE,
            }),
        }
    }

    /// Every rank sends to every other one at the same time. All frames arrive whole and in order.
    fn frames(&self) -> Result<(), EngineFault> {
        for frame in 0..FRAMES {
            for to in self.others() {
                let frame = made(self.rank, to, frame);
                self.outbox.send(to, frame, Priority::Normal);
            }
        }
        for from in self.others() {
            for frame in 0..FRAMES {
                let expected = format!("frame {frame} of {:?}", sizes(frame));
                let sent = made(from, self.rank, frame);
                self.expect(from, expected, &Event::arrival(sent))?;
            }
        }
        Ok(())
    }

    /// No rank receives for some time. The others queue more bytes than connections buffer, without waiting.
    fn never_waits(&self) -> Result<(), EngineFault> {
        self.barrier("before")?;
        self.events.close_gate(true);
        let piece = Bytes::from(vec![9; 1 << 20]);
        let began = Instant::now();
        const COUNT: usize = 48;
        let frame = |number: usize| Frame {
            header: vec![number as u8],
            pieces: vec![piece.clone()],
        };
        for to in self.others() {
            (0..COUNT).for_each(|number| self.outbox.send(to, frame(number), Priority::Normal));
        }
        let took = began.elapsed();
        // Queueing takes well below a millisecond per frame.
        std::thread::sleep(Duration::from_secs(2).saturating_sub(took));
        self.events.close_gate(false);
        if took > Duration::from_secs(1) {
            let bytes = COUNT * piece.len() * (self.size - 1);
            return Err(EngineFault::Waits { bytes, took });
        }
        for from in self.others() {
            for number in 0..COUNT {
                let expected = format!("frame {number} of 1 MiB");
                self.expect(from, expected, &Event::arrival(frame(number)))?;
            }
        }
        Ok(())
    }

    fn barrier(&self, name: &str) -> Result<(), EngineFault> {
        self.others()
            .for_each(|to| self.outbox.send(to, word(name), Priority::Normal));
        for from in self.others() {
            self.expect(from, format!("`{name}`"), &Event::arrival(word(name)))?;
        }
        Ok(())
    }

    /// The ranks close one after the other: the ranks that are left are notified once, after everything else.
    fn ends(&self) -> Result<(), EngineFault> {
        self.barrier("end")?;
        for from in (0..self.rank.index()).map(RankIndex::new) {
            // The rank below closes after everything from it has arrived.
            self.outbox.send(from, word("arrived"), Priority::Normal);
            self.expect(from, "the end of its connection".to_owned(), &Event::Lost)?;
        }
        for from in (self.rank.index() + 1..self.size).map(RankIndex::new) {
            let arrived = Event::arrival(word("arrived"));
            self.expect(from, "`arrived`".to_owned(), &arrived)?;
        }
        self.outbox.close(Close::Left);
        Ok(())
    }
}
