//! The snapshots of other ranks, in the memory of this process.

use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use tinderbox_deferred::ParameterTable;
use tinderbox_world::{Buffer, Channel};

use super::snapshot::{Contents, Snapshot};
use crate::runtime::digest::ReadError;
use crate::runtime::remote::header_of;
use crate::runtime::wire::lend_row_major;
use crate::schedule::RankIndex;

/// The most bytes of a frame, so that the messages of a step do not wait for long.
const CHUNK_BYTES: usize = 1 << 20;

/// A frame of a snapshot that is sent to its keeper.
#[derive(Debug, Serialize, Deserialize)]
pub(in crate::runtime) enum Part {
    /// A snapshot begins. Parameters that have not changed since an earlier version are not sent again.
    Begin {
        version: u64,
        contents: Contents,
        earlier: u64,
        is_same: Vec<bool>,
    },
    /// Bytes of an item, in order.
    Bytes { version: u64, item: usize },
}

/// The chunks of each item of a snapshot.
pub(super) type Chunks = Vec<Arc<Vec<Buffer>>>;

/// A snapshot as far as it has arrived.
#[derive(Debug)]
struct Arriving {
    contents: Contents,
    chunks: Chunks,
    missing: usize,
}

/// The snapshots of one rank, by their version.
type Versions = BTreeMap<u64, Arriving>;

/// The snapshots of other ranks that this process keeps.
#[derive(Debug, Default)]
pub(in crate::runtime) struct Backups {
    ranks: Mutex<BTreeMap<RankIndex, Versions>>,
    arrived: Condvar,
}

impl Backups {
    fn ranks(&self) -> MutexGuard<'_, BTreeMap<RankIndex, Versions>> {
        self.ranks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a frame of a rank; `None` if it is none.
    pub(in crate::runtime) fn put(
        &self,
        from: RankIndex,
        part: Part,
        pieces: Vec<Buffer>,
    ) -> Option<()> {
        let mut ranks = self.ranks();
        let states = ranks.entry(from).or_default();
        match part {
            Part::Begin {
                version,
                contents,
                earlier,
                is_same,
            } => {
                let mut missing = 0;
                let mut chunks = Chunks::new();
                for (at, item) in contents.items.iter().enumerate() {
                    chunks.push(match is_same.get(at) {
                        Some(true) => states.get(&earlier)?.chunks.get(at)?.clone(),
                        _ => {
                            missing += item.kind.bytes()?;
                            Arc::default()
                        }
                    });
                }
                let arriving = Arriving {
                    contents,
                    chunks,
                    missing,
                };
                states.insert(version, arriving);
            }
            Part::Bytes { version, item } => {
                let arriving = states.get_mut(&version)?;
                let chunks = Arc::get_mut(arriving.chunks.get_mut(item)?)?;
                for piece in pieces {
                    arriving.missing = arriving.missing.checked_sub(piece.len())?;
                    chunks.push(piece);
                }
            }
        }
        drop(ranks);
        self.arrived.notify_all();
        Some(())
    }

    /// The versions of a rank that have arrived.
    pub(super) fn versions(&self, rank: RankIndex) -> Vec<u64> {
        let ranks = self.ranks();
        let states = ranks.get(&rank).into_iter().flatten();
        let whole = states.filter(|(_, state)| state.missing == 0);
        whole.map(|(version, _)| *version).collect()
    }

    /// Waits until a version of a rank has arrived; false if it has not after a while.
    pub(super) fn wait_for(&self, rank: RankIndex, version: u64, timeout: Duration) -> bool {
        let began = Instant::now();
        let mut ranks = self.ranks();
        loop {
            let state = ranks.get(&rank).and_then(|states| states.get(&version));
            if state.is_some_and(|state| state.missing == 0) {
                return true;
            }
            let left = timeout.saturating_sub(began.elapsed());
            if left.is_zero() {
                return false;
            }
            let waited = self.arrived.wait_timeout(ranks, left);
            ranks = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Drops what is older than a version.
    pub(super) fn keep_from(&self, version: u64) {
        for states in self.ranks().values_mut() {
            *states = states.split_off(&version);
        }
    }

    /// Returns a snapshot of a rank.
    pub(super) fn snapshot(&self, rank: RankIndex, version: u64) -> Option<(Contents, Chunks)> {
        let ranks = self.ranks();
        let state = ranks.get(&rank)?.get(&version)?;
        Some((state.contents.clone(), state.chunks.clone()))
    }
}

/// Sends a snapshot to its keeper, when there is nothing else to send to it.
pub(super) fn send(
    (channel, to): (&Channel, RankIndex),
    version: u64,
    snapshot: &Snapshot,
    earlier: Option<(u64, Snapshot)>,
    table: &ParameterTable,
) -> Result<(), ReadError> {
    let (contents, values) = snapshot.read(table, |_, _| true)?;
    let (earlier, is_same) = match earlier {
        Some((earlier, known)) => (earlier, snapshot.same_as(&known)),
        None => (0, Vec::new()),
    };
    let bytes = lend_row_major(values)?;
    let items: Vec<usize> = (0..bytes.len())
        .filter(|item| !is_same.get(*item).copied().unwrap_or(false))
        .collect();
    let begin = Part::Begin {
        version,
        contents,
        earlier,
        is_same,
    };
    put(channel, to, begin, Vec::new());
    for item in items {
        let mut left = bytes[item].clone();
        while !left.is_empty() {
            let chunk = left.split_to(left.len().min(CHUNK_BYTES));
            put(channel, to, Part::Bytes { version, item }, vec![chunk]);
        }
    }
    Ok(())
}

fn put(channel: &Channel, to: RankIndex, part: Part, pieces: Vec<bytes::Bytes>) {
    let header = header_of(part);
    channel.send_when_idle(to, &header, pieces);
}
