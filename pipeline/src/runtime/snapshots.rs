//! The state of a rank at one point in time, in parts that can be sent, and the snapshots of other ranks in the memory of a
//! process.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use burn::optim::DynState;
use burn::tensor::Device;
use burn_pack::Scalar;
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use tinderbox_deferred::{ParameterPath, ParameterTable};
use tinderbox_fake::DynTensor;
use tinderbox_world::Buffer;
use tinderbox_world::link::Awaited;

use crate::runtime::digest::AnyError;
use crate::runtime::pieces::Piece;
use crate::runtime::wire::TensorType;
use crate::schedule::RankIndex;
use crate::{OptimizerSnapshot, Stage};

/// The name of a tensor of a state.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct Name {
    /// The position of the parameter in the table.
    pub(crate) position: usize,
    /// The name of the tensor of the optimizer's state; `None` for the parameter itself.
    pub(crate) state: Option<String>,
}

/// A tensor, or some of its rows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Item {
    pub(crate) name: Name,
    pub(crate) first_row: u64,
    pub(crate) kind: TensorType,
}

/// The parts of a state, without their values.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Contents {
    pub(crate) items: Vec<Item>,
    /// The numbers of the optimizer's state, with the position of their parameter.
    pub(crate) scalars: Vec<(usize, String, Scalar)>,
}

/// The state of a rank: handles to values that do not change.
///
/// With replicas, a rank has the pieces that it updates, so that all ranks together have every value once. A value is sent
/// whole, even if few of its elements have changed.
#[derive(Clone, Debug, Default)]
pub(crate) struct Snapshot {
    values: Vec<(ParameterPath, Piece, DynTensor)>,
    optimizers: Vec<OptimizerSnapshot>,
}

impl Snapshot {
    /// The current state of the stages of a rank. Copies nothing on the CPU.
    pub(crate) fn of(stages: &[Stage]) -> Self {
        let values = stages.iter().flat_map(|stage| {
            let owned = stage.parameters();
            stage.own_pieces().iter().map(|piece| {
                let path = owned.path(piece.place).clone();
                (path, piece.clone(), piece.of(owned.value(piece.place)))
            })
        });
        let values = values.collect();
        let optimizers = stages.iter().map(Stage::optimizer_snapshot).collect();
        Self { values, optimizers }
    }

    /// Reads the parts with their values. Copies the state of the optimizer, for the pieces that are selected.
    pub(crate) fn read(
        &self,
        table: &ParameterTable,
        is_selected: impl Fn(&ParameterPath, &Piece) -> bool,
    ) -> Result<(Contents, Vec<DynTensor>), AnyError> {
        let (mut items, mut scalars, mut values) = (Vec::new(), Vec::new(), Vec::new());
        let position = |path: &ParameterPath| {
            let position = table.position(path);
            position.expect("a stage holds parameters of the table")
        };
        let mut add = |position, state, first_row, value: DynTensor| {
            items.push(Item {
                name: Name { position, state },
                first_row,
                kind: TensorType::of(&value),
            });
            values.push(value);
        };
        for (path, piece, value) in &self.values {
            add(position(path), None, piece.rows.start, value.clone());
        }
        for optimizer in &self.optimizers {
            for of_piece in optimizer.of_pieces(&is_selected)? {
                let position = position(of_piece.path);
                let first_row = of_piece.piece.rows.start;
                for (name, data) in of_piece.tensors {
                    let value = DynTensor::from_data(data, &Device::flex());
                    add(position, Some(name), first_row, value);
                }
                // The scalars of all pieces of a parameter are the same.
                let numbers = of_piece.scalars.into_iter().filter(|_| first_row == 0);
                scalars.extend(numbers.map(|(name, number)| (position, name, number)));
            }
        }
        Ok((Contents { items, scalars }, values))
    }

    /// The state of the optimizer for each piece that has a state, without a copy.
    pub(crate) fn states(&self) -> impl Iterator<Item = (&ParameterPath, &Piece, &DynState)> {
        self.optimizers.iter().flat_map(OptimizerSnapshot::states)
    }

    /// Whether each parameter has the same memory in an earlier state, and so the same value: the earlier state holds the
    /// memory, so no update has written to it. The list has the order of the items, without the items of the optimizer's
    /// state.
    pub(crate) fn same_as(&self, earlier: &Self) -> Vec<bool> {
        let pairs = self.values.iter().zip(&earlier.values);
        let memory = |value: &DynTensor| value.host_bytes().map(<[u8]>::as_ptr);
        let same = pairs.map(|((.., own), (.., other))| {
            let own = memory(own);
            own.is_some() && own == memory(other)
        });
        same.collect()
    }
}

/// A frame of a snapshot that is sent to its keeper.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum SnapshotFrame {
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
pub(crate) type Chunks = Vec<Vec<Bytes>>;

/// A snapshot, of which some bytes may not have arrived.
#[derive(Debug)]
struct Arriving {
    contents: Contents,
    chunks: Chunks,
    /// The bytes of each item that have yet to arrive.
    missing: Vec<usize>,
}

impl Arriving {
    /// Begins a snapshot with the items that it shares with an earlier one; `None` if the earlier one lacks them.
    fn begin(contents: Contents, earlier: Option<&Self>, is_same: &[bool]) -> Option<Self> {
        let (mut missing, mut chunks) = (Vec::new(), Chunks::new());
        for (at, item) in contents.items.iter().enumerate() {
            let (known, bytes) = match is_same.get(at) {
                // Bytes that are missing there are not sent again.
                Some(true) => (earlier?.chunks.get(at)?.clone(), *earlier?.missing.get(at)?),
                _ => (Vec::new(), item.kind.bytes()?),
            };
            chunks.push(known);
            missing.push(bytes);
        }
        Some(Self {
            contents,
            chunks,
            missing,
        })
    }

    /// Adds bytes of an item; `None` if they exceed the missing bytes.
    fn add(&mut self, item: usize, pieces: Vec<Buffer>) -> Option<()> {
        let (chunks, missing) = (self.chunks.get_mut(item)?, self.missing.get_mut(item)?);
        for piece in pieces {
            *missing = missing.checked_sub(piece.len())?;
            chunks.push(Bytes::from_owner(piece));
        }
        Some(())
    }

    fn is_whole(&self) -> bool {
        self.missing.iter().all(|bytes| *bytes == 0)
    }
}

/// The snapshots of one rank, by their version.
type Versions = BTreeMap<u64, Arriving>;

/// The snapshots of other ranks that this process keeps.
#[derive(Debug, Default)]
pub(crate) struct Backups(Awaited<BTreeMap<RankIndex, Versions>>);

impl Backups {
    /// Adds a frame of a rank; `None` if it is invalid.
    pub(crate) fn put(
        &self,
        from: RankIndex,
        frame: SnapshotFrame,
        pieces: Vec<Buffer>,
    ) -> Option<()> {
        self.0.change(|ranks| {
            let versions = ranks.entry(from).or_default();
            match frame {
                SnapshotFrame::Begin {
                    version,
                    contents,
                    earlier,
                    is_same,
                } => {
                    let arriving = Arriving::begin(contents, versions.get(&earlier), &is_same)?;
                    versions.insert(version, arriving);
                    Some(())
                }
                SnapshotFrame::Bytes { version, item } => {
                    versions.get_mut(&version)?.add(item, pieces)
                }
            }
        })
    }

    /// The versions of a rank that have arrived.
    pub(crate) fn versions(&self, rank: RankIndex) -> Vec<u64> {
        let ranks = self.0.lock();
        let states = ranks.get(&rank).into_iter().flatten();
        let whole = states.filter(|(_, state)| state.is_whole());
        whole.map(|(version, _)| *version).collect()
    }

    /// Waits until a version of a rank has arrived; false after the timeout.
    pub(crate) fn wait_for(&self, rank: RankIndex, version: u64, timeout: Duration) -> bool {
        let arrived = self.0.wait_for(timeout, |ranks| {
            ranks.get(&rank)?.get(&version)?.is_whole().then_some(())
        });
        arrived.is_some()
    }

    /// Drops the snapshots that are older than a version.
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

/// The snapshots of other ranks that a process keeps under one numbering of the processes.
pub(crate) struct KeptSnapshots {
    /// The ranks whose snapshots the process keeps.
    pub(crate) of: Vec<RankIndex>,
    pub(crate) backups: Arc<Backups>,
    /// The newest version that every process keeps of all its ranks, by their last reports.
    pub(crate) of_all: Option<u64>,
    /// The snapshot of the present version, if its values were repaired since it was taken.
    pub(crate) renewed: Option<Snapshot>,
}

impl KeptSnapshots {
    /// The newest version that this process keeps of all its ranks.
    pub(crate) fn newest(&self) -> u64 {
        let newest = self.of.iter().map(|rank| {
            let versions = self.backups.versions(*rank);
            versions.last().copied().unwrap_or(0)
        });
        newest.min().unwrap_or(u64::MAX)
    }
}
