//! The coordinator waits for the ranks.

use std::{
    collections::BTreeMap,
    io,
    time::{Duration, Instant},
};

use super::{AttemptHandle, failed};
use crate::{
    SaveError,
    error::short,
    format::{
        FileEntry, MAX_MANIFEST_BYTES, Part, decode_part, failed_file_name, part_file_name,
        shard_file_name,
    },
    parallel::parallel,
    store::{FoundKind, join, list_by_name},
};

/// The first and the maximum pause between two checks: short compared with an fsync at first, then long
/// enough not to load a network file system.
const POLL: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(50));
/// How long the coordinator waits for a failed rank to retry.
const RETRY: Duration = Duration::from_secs(5);
/// Number of parts that are read concurrently: in a bucket, each is a request.
const PARTS_AT_ONCE: usize = 8;
/// An upper bound on the size of a failed rank's message in bytes.
const MAX_MESSAGE_BYTES: u64 = 1 << 16;

/// Checks repeatedly until there is a result or the timeout expires.
pub(super) fn poll<T>(
    timeout: Duration,
    mut look: impl FnMut() -> Result<Option<T>, SaveError>,
) -> Result<Result<T, Duration>, SaveError> {
    let started = Instant::now();
    let mut pause = POLL.0;
    loop {
        if let Some(found) = look()? {
            return Ok(Ok(found));
        }
        let waited = started.elapsed();
        if waited >= timeout {
            return Ok(Err(waited));
        }
        std::thread::sleep(pause.min(timeout - waited));
        pause = (pause * 2).min(POLL.1);
    }
}

impl AttemptHandle {
    /// [`poll`]s until the timeout expires and no rank has written to the attempt since its previous
    /// expiration, or since the start.
    pub(super) fn poll_while_written<T>(
        &self,
        timeout: Duration,
        mut look: impl FnMut() -> Result<Option<T>, SaveError>,
    ) -> Result<Result<T, Duration>, SaveError> {
        let mut before = self.written();
        loop {
            let polled = poll(timeout, &mut look)?;
            if polled.is_ok() {
                return Ok(polled);
            }
            let now = self.written();
            if std::mem::replace(&mut before, now) == before {
                return Ok(polled);
            }
        }
    }

    /// Returns the names and sizes of its files; empty if they can't be listed.
    fn written(&self) -> Vec<(String, u64)> {
        let listing = self.store.list(&self.dir).unwrap_or_default();
        let files = listing.into_iter().map(|found| (found.name, found.bytes));
        let mut files: Vec<_> = files.collect();
        files.sort_unstable();
        files
    }

    /// Returns the part of every rank, in order.
    pub(super) fn wait_for_parts(&self, timeout: Duration) -> Result<Vec<Part>, SaveError> {
        let world_size = self.marker.world_size;
        let mut parts: BTreeMap<u32, Part> = BTreeMap::new();
        let mut failed_since: BTreeMap<u32, Instant> = BTreeMap::new();
        let waited = self.poll_while_written(timeout, || {
            let listed = list_by_name(&*self.store, &self.dir);
            let listed = listed.map_err(failed(&*self.store, "list", &self.dir))?;
            let waiting = (0..world_size).filter(|rank| !parts.contains_key(rank));
            let (written, waiting): (Vec<u32>, Vec<u32>) =
                waiting.partition(|rank| listed.contains_key(&part_file_name(*rank)));
            for part in parallel(PARTS_AT_ONCE, written, |rank| self.read_part(rank)) {
                let part = part?;
                parts.insert(part.rank, part);
            }
            for rank in waiting {
                if listed.contains_key(&failed_file_name(rank)) {
                    let since = failed_since.entry(rank).or_insert_with(Instant::now);
                    if since.elapsed() >= RETRY.min(timeout) {
                        return Err(self.why_failed(rank));
                    }
                } else {
                    failed_since.remove(&rank);
                }
            }
            Ok((parts.len() == world_size as usize).then_some(()))
        })?;
        match waited {
            Ok(()) => Ok(parts.into_values().collect()),
            Err(waited) => Err(SaveError::MissingRanks {
                ranks: (0..world_size).filter(|r| !parts.contains_key(r)).collect(),
                waited_ms: waited.as_millis(),
            }),
        }
    }

    fn why_failed(&self, rank: u32) -> SaveError {
        let path = join(&self.dir, &failed_file_name(rank));
        let message = self.store.read_small(&path, MAX_MESSAGE_BYTES);
        SaveError::RankFailed {
            rank,
            message: message.map_or_else(
                |error| format!("its error message can't be read ({error})"),
                |bytes| String::from_utf8_lossy(&bytes).into_owned(),
            ),
        }
    }

    /// Reads a rank's part and checks that it belongs to this attempt and rank.
    fn read_part(&self, rank: u32) -> Result<Part, SaveError> {
        let path = join(&self.dir, &part_file_name(rank));
        let place = || self.store.place(&path);
        let bytes = self
            .store
            .read_small(&path, MAX_MANIFEST_BYTES)
            .map_err(failed(&*self.store, "read", &path))?;
        let part = decode_part(&bytes).map_err(|source| SaveError::Part {
            path: place(),
            source,
        })?;
        if part.attempt != self.marker.attempt {
            return Err(SaveError::WrongAttempt {
                path: place(),
                expected: self.marker.attempt,
                found: part.attempt,
            });
        }
        if part.rank != rank {
            return Err(SaveError::WrongRank {
                path: place(),
                expected: rank,
                found: part.rank,
            });
        }
        let own =
            |f: &&FileEntry| f.rank == rank && f.name == shard_file_name(f.role, rank, f.number);
        if let Some(foreign) = part.files.iter().find(|file| !own(file)) {
            return Err(SaveError::ForeignFile {
                path: place(),
                rank,
                file: short(&foreign.name),
            });
        }
        Ok(part)
    }

    /// Checks that the files have the sizes that their ranks reported. Uses one listing.
    pub(crate) fn check_written(&self, files: &[FileEntry]) -> Result<(), SaveError> {
        let listed = list_by_name(&*self.store, &self.dir);
        let listed = listed.map_err(failed(&*self.store, "list", &self.dir))?;
        for file in files {
            let path = join(&self.dir, &file.name);
            let missing = || io::Error::from(io::ErrorKind::NotFound);
            let found = listed.get(&file.name).ok_or_else(missing);
            let found = found.map_err(failed(&*self.store, "find", &path))?;
            if found.kind != FoundKind::File || found.bytes != file.size_bytes {
                return Err(SaveError::FileSize {
                    path: self.store.place(&path),
                    rank: file.rank,
                    expected_bytes: file.size_bytes,
                    found_bytes: found.bytes,
                });
            }
        }
        Ok(())
    }
}
