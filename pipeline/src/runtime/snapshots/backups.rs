//! The snapshots of other ranks, in the memory of this process.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tinderbox_world::Buffer;

use super::snapshot::{Contents, Snapshot};
use crate::runtime::locked::Awaited;
use crate::schedule::RankIndex;

/// A frame of a snapshot that is sent to its keeper.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Part {
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
pub(crate) type Chunks = Vec<Arc<Vec<Buffer>>>;

/// A snapshot as far as it has arrived.
#[derive(Debug)]
struct Arriving {
    contents: Contents,
    chunks: Chunks,
    missing: usize,
}

impl Arriving {
    /// A snapshot of which the items that are the same as in an earlier one are known; `None` if they are not.
    fn begin(contents: Contents, earlier: Option<&Self>, is_same: &[bool]) -> Option<Self> {
        let (mut missing, mut chunks) = (0, Chunks::new());
        for (at, item) in contents.items.iter().enumerate() {
            chunks.push(match is_same.get(at) {
                Some(true) => earlier?.chunks.get(at)?.clone(),
                _ => {
                    missing += item.kind.bytes()?;
                    Arc::default()
                }
            });
        }
        Some(Self {
            contents,
            chunks,
            missing,
        })
    }

    /// Adds bytes of an item; `None` if they are more than are missing.
    fn add(&mut self, item: usize, pieces: Vec<Buffer>) -> Option<()> {
        let chunks = Arc::get_mut(self.chunks.get_mut(item)?)?;
        for piece in pieces {
            self.missing = self.missing.checked_sub(piece.len())?;
            chunks.push(piece);
        }
        Some(())
    }
}

/// The snapshots of one rank, by their version.
type Versions = BTreeMap<u64, Arriving>;

/// The snapshots of other ranks that this process keeps.
#[derive(Debug, Default)]
pub(crate) struct Backups(Awaited<BTreeMap<RankIndex, Versions>>);

impl Backups {
    /// Takes a frame of a rank; `None` if it is none.
    pub(crate) fn put(&self, from: RankIndex, part: Part, pieces: Vec<Buffer>) -> Option<()> {
        self.0.change(|ranks| {
            let versions = ranks.entry(from).or_default();
            match part {
                Part::Begin {
                    version,
                    contents,
                    earlier,
                    is_same,
                } => {
                    let earlier = versions.get(&earlier);
                    let arriving = Arriving::begin(contents, earlier, &is_same)?;
                    versions.insert(version, arriving);
                    Some(())
                }
                Part::Bytes { version, item } => versions.get_mut(&version)?.add(item, pieces),
            }
        })
    }

    /// The versions of a rank that have arrived.
    pub(crate) fn versions(&self, rank: RankIndex) -> Vec<u64> {
        let ranks = self.0.lock();
        let states = ranks.get(&rank).into_iter().flatten();
        let whole = states.filter(|(_, state)| state.missing == 0);
        whole.map(|(version, _)| *version).collect()
    }

    /// Waits until a version of a rank has arrived; false if it has not after a while.
    pub(crate) fn wait_for(&self, rank: RankIndex, version: u64, timeout: Duration) -> bool {
        let arrived = self.0.wait_for(timeout, |ranks| {
            let state = ranks.get(&rank)?.get(&version)?;
            (state.missing == 0).then_some(())
        });
        arrived.is_some()
    }

    /// Drops what is older than a version.
    pub(crate) fn keep_from(&self, version: u64) {
        for states in self.0.lock().values_mut() {
            *states = states.split_off(&version);
        }
    }

    /// Returns a snapshot of a rank.
    pub(crate) fn snapshot(&self, rank: RankIndex, version: u64) -> Option<(Contents, Chunks)> {
        let ranks = self.0.lock();
        let state = ranks.get(&rank)?.get(&version)?;
        Some((state.contents.clone(), state.chunks.clone()))
    }
}

/// The snapshots of other ranks that a process keeps, as one numbering of the processes has them.
pub(crate) struct KeptSnapshots {
    /// The ranks whose snapshots it keeps.
    pub(crate) of: Vec<RankIndex>,
    pub(crate) backups: Arc<Backups>,
    /// The newest version that every process keeps of the ranks of which it keeps some, as all of them reported last.
    pub(crate) of_all: Option<u64>,
    /// The snapshot of the present version, if its values were repaired since it was taken.
    pub(crate) renewed: Option<Snapshot>,
}

impl KeptSnapshots {
    /// The newest version that this process keeps of all ranks of which it keeps some.
    pub(crate) fn newest(&self) -> u64 {
        let newest = self.of.iter().map(|rank| {
            let versions = self.backups.versions(*rank);
            versions.last().copied().unwrap_or(0)
        });
        newest.min().unwrap_or(u64::MAX)
    }
}
