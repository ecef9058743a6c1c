//! Sends a snapshot to its keeper.

use bytes::Bytes;
use tinderbox_deferred::ParameterTable;
use tinderbox_world::Channel;

use crate::runtime::digest::ReadError;
use crate::runtime::points::{Point, reach};
use crate::runtime::ranks::header_of;
use crate::runtime::snapshots::{Part, Snapshot};
use crate::runtime::wire::lend_row_major;
use crate::schedule::RankIndex;

/// The most bytes of a frame, so that the messages of a step do not wait for long.
const CHUNK_BYTES: usize = 1 << 20;

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

fn put(channel: &Channel, to: RankIndex, part: Part, pieces: Vec<Bytes>) {
    reach(Point::Keep);
    let header = header_of(part);
    channel.send_when_idle(to, &header, pieces);
}
