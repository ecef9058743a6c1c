//! Waits: the coordinator waits for the parts of the ranks; ranks in other processes wait for an attempt.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::time::{Duration, Instant};

use super::AttemptHandle;
use super::clean::marker_of;
use crate::error::short;
use crate::format::{FileEntry, MAX_MANIFEST_BYTES, Part, decode_part, names};
use crate::parallel::parallel;
use crate::store::{Files, FoundKind, StoreExt, join};
use crate::{AttemptId, SaveError};

/// The first and the maximum pause between two checks: the first is short compared with an fsync, the maximum long enough not
/// to load a network file system.
const POLL: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(50));
/// How long the coordinator waits for a failed rank to retry.
const RETRY: Duration = Duration::from_secs(5);
/// Number of parts that are read concurrently: in a bucket, each is a request.
const PARTS_AT_ONCE: usize = 8;
/// An upper bound on the size of a failed rank's message in bytes.
const MAX_MESSAGE_BYTES: u64 = 1 << 16;

/// Checks repeatedly until there is a result, the timeout expires, or `waits` returns false.
fn poll<T>(
    timeout: Duration,
    mut waits: impl FnMut() -> bool,
    mut look: impl FnMut() -> Result<Option<T>, SaveError>,
) -> Result<Result<T, Duration>, SaveError> {
    let started = Instant::now();
    let mut pause = POLL.0;
    loop {
        if let Some(found) = look()? {
            return Ok(Ok(found));
        }
        let waited = started.elapsed();
        if waited >= timeout || !waits() {
            return Ok(Err(waited));
        }
        std::thread::sleep(pause.min(timeout - waited));
        pause = (pause * 2).min(POLL.1);
    }
}

impl AttemptHandle {
    /// Waits until this process sees an attempt to save a step.
    pub(crate) fn join(
        store: &Files,
        step: u64,
        attempt: AttemptId,
        timeout: Duration,
        waits: impl FnMut() -> bool,
    ) -> Result<Self, SaveError> {
        let dir = names::attempt_dir(step, attempt);
        let found = poll(timeout, waits, || {
            // A marker of another attempt belongs to a checkpoint that this attempt has replaced.
            let marker = marker_of(store, &dir);
            Ok(marker.filter(|marker| (marker.step, marker.attempt) == (step, attempt)))
        })?;
        let marker = found.map_err(|waited| SaveError::NoAttempt {
            step,
            path: store.place(""),
            waited_ms: waited.as_millis(),
        })?;
        Ok(Self::new(store.clone(), marker))
    }

    /// [`poll`]s until the timeout expires and no rank has written to the attempt since its previous
    /// expiration, or since the start.
    fn poll_while_written<T>(
        &self,
        timeout: Duration,
        mut look: impl FnMut() -> Result<Option<T>, SaveError>,
    ) -> Result<Result<T, Duration>, SaveError> {
        let mut before = self.written();
        loop {
            let polled = poll(timeout, || true, &mut look)?;
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
    fn written(&self) -> BTreeSet<(String, u64)> {
        let listing = self.store.list(&self.dir).unwrap_or_default().into_iter();
        listing.map(|found| (found.name, found.bytes)).collect()
    }

    /// Returns the part of every rank, in order.
    pub(super) fn wait_for_parts(&self, timeout: Duration) -> Result<Vec<Part>, SaveError> {
        let world_size = self.marker.world_size;
        let mut parts: BTreeMap<u32, Part> = BTreeMap::new();
        let mut failed_since: BTreeMap<u32, Instant> = BTreeMap::new();
        let waited = self.poll_while_written(timeout, || {
            let listed = self.store.entries_by_name(&self.dir)?;
            let waiting = (0..world_size).filter(|rank| !parts.contains_key(rank));
            let (written, waiting): (Vec<u32>, Vec<u32>) =
                waiting.partition(|rank| listed.contains_key(&names::part_file(*rank)));
            let read = parallel(PARTS_AT_ONCE, written, |rank| self.read_part(rank))?;
            parts.extend(read.into_iter().map(|part| (part.rank, part)));
            for rank in waiting {
                if listed.contains_key(&names::failed_file(rank)) {
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
        let path = join(&self.dir, &names::failed_file(rank));
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
        let path = join(&self.dir, &names::part_file(rank));
        let place = || self.store.place(&path);
        let bytes = self.store.read_small(&path, MAX_MANIFEST_BYTES);
        let bytes = bytes.map_err(self.store.failed("read", &path))?;
        let part = decode_part(&bytes).map_err(|source| SaveError::Part {
            path: place(),
            source,
        })?;
        let (expected, found) = ((rank, self.attempt()), (part.rank, part.attempt));
        if found != expected {
            return Err(SaveError::WrongPart {
                path: place(),
                expected,
                found,
            });
        }
        let own =
            |f: &&FileEntry| f.rank == rank && f.name == names::shard_file(f.role, rank, f.number);
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
        let listed = self.store.entries_by_name(&self.dir)?;
        for file in files {
            let path = join(&self.dir, &file.name);
            let missing = || io::Error::from(io::ErrorKind::NotFound);
            let found = listed.get(&file.name).ok_or_else(missing);
            let found = found.map_err(self.store.failed("find", &path))?;
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
