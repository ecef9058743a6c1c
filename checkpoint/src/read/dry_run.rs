//! The bytes that a load would read, computed without reading.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::{Deserialize, Serialize};
use tinderbox_deferred::{Request, SourceError};

use super::{CheckpointSource, SavedTensors, plan::blocks_of, source::Found};

/// The bytes that each of several ranks would read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LoadPlan {
    /// One entry per rank.
    pub ranks: Vec<RankLoad>,
}

/// The bytes that one rank would read.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RankLoad {
    /// Number of tensors or regions.
    pub tensors: usize,
    /// Size of the values in memory.
    pub wanted_bytes: u64,
    /// Size of the values in the files.
    pub stored_bytes: u64,
    /// Number of bytes that are read: whole digest blocks, and the headers of the files. If a parameter was saved under several
    /// of its paths, the bytes of each count.
    pub read_bytes: u64,
    /// Number of files that are opened.
    pub files: usize,
    /// Peak memory: the values and one block per thread.
    pub peak_bytes: u64,
}

impl RankLoad {
    /// Returns the number of bytes read per stored byte of the values; 1 without values.
    pub fn amplification(&self) -> f64 {
        match self.stored_bytes {
            0 => 1.0,
            stored => self.read_bytes as f64 / stored as f64,
        }
    }
}

impl CheckpointSource {
    /// Returns the reads of a load of these requests, one list for each rank. Reads nothing: the list of the tensors and a fake
    /// model are sufficient.
    ///
    /// # Errors
    ///
    /// Returns the errors of the load itself: all mismatches are listed. Parameters that are allowed to be missing are omitted.
    pub fn dry_run(&self, ranks: &[Vec<Request>]) -> Result<LoadPlan, SourceError> {
        // The first chunk of a file follows the header.
        let mut headers: BTreeMap<&str, u64> = BTreeMap::new();
        let tensors = self.saved.shared.files.tensors().iter();
        for chunk in tensors.flat_map(|tensor| &tensor.chunks) {
            let end = headers.entry(&chunk.file).or_insert(chunk.start_bytes);
            *end = chunk.start_bytes.min(*end);
        }
        let ranks = ranks.iter().map(|requests| {
            let found = self.lookup(requests)?;
            let threads = self.options.reader_threads();
            Ok(of_rank(&self.saved, &found, &headers, threads))
        });
        Ok(LoadPlan {
            ranks: ranks.collect::<Result<_, SourceError>>()?,
        })
    }
}

/// Returns the reads of a rank; `headers` has the size of the header of every file.
fn of_rank(
    saved: &SavedTensors,
    found: &Found<'_>,
    headers: &BTreeMap<&str, u64>,
    threads: usize,
) -> RankLoad {
    let block_bytes = saved.block_bytes();
    let (mut rank, mut files) = (RankLoad::default(), BTreeSet::new());
    rank.tensors = found.wanted.len();
    for one in &found.wanted {
        rank.wanted_bytes += one.bytes();
        rank.stored_bytes += one.region.num_elements() * one.tensor.dtype.size_bytes();
    }
    let others = found.others.iter().map(|alias| &alias.wanted);
    for one in found.wanted.iter().chain(others) {
        let element = one.tensor.dtype.size_bytes();
        for chunk in &one.tensor.chunks {
            let blocks = blocks_of(chunk, &one.region, element, block_bytes);
            if !blocks.is_empty() {
                files.insert(&*chunk.file);
            }
            for blocks in blocks {
                // The last block of a chunk may be shorter.
                let end = (blocks.end * block_bytes).min(chunk.len_bytes);
                rank.read_bytes += end - blocks.start * block_bytes;
            }
        }
    }
    rank.read_bytes += files.iter().map(|file| headers[*file]).sum::<u64>();
    rank.files = files.len();
    rank.peak_bytes = rank.wanted_bytes + threads as u64 * block_bytes;
    rank
}

impl fmt::Display for LoadPlan {
    /// Formats a table with one line per rank.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use tinderbox_deferred::human_bytes as human;
        writeln!(
            f,
            "{:>5} {:>8} {:>11} {:>11} {:>6} {:>8} {:>11}",
            "rank", "tensors", "values", "read", "files", "read/it", "peak"
        )?;
        for (number, rank) in self.ranks.iter().enumerate() {
            writeln!(
                f,
                "{number:>5} {:>8} {:>11} {:>11} {:>6} {:>8.3} {:>11}",
                rank.tensors,
                human(rank.wanted_bytes),
                human(rank.read_bytes),
                rank.files,
                rank.amplification(),
                human(rank.peak_bytes),
            )?;
        }
        Ok(())
    }
}
