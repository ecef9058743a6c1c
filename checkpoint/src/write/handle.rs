//! The interface of an attempt for ranks.

use std::{collections::BTreeMap, io};

use parking_lot::Mutex;
use tinderbox_deferred::{Observer, with_causes};

use super::clean::{is_marked, published};
use super::shard::plan_shards;
use super::{CheckpointMeta, SaveSize, SaveTensor};
use crate::SaveError::{Aborted, RankWritten};
use crate::format::{Marker, Part, check_tensor_name, encode_part, names};
use crate::parallel::{cores, parallel};
use crate::store::{Files, StoreExt, join};
use crate::{AttemptId, SaveError, Scalar};

/// Maximum number of writing threads: more do not increase disk throughput.
const MAX_THREADS: usize = 4;
/// Maximum length in characters of a failed rank's message in the coordinator's error.
const MAX_MESSAGE_CHARS: usize = 4000;

/// The handle with which a rank takes part in an attempt. Threads use clones; processes with access to the same store
/// [join](crate::Run::join) the attempt.
#[derive(Clone, Debug)]
pub struct AttemptHandle {
    pub(super) store: Files,
    pub(super) marker: Marker,
    pub(super) dir: String,
    threads: usize,
}

impl AttemptHandle {
    pub(crate) fn new(store: Files, marker: Marker) -> Self {
        Self {
            dir: names::attempt_dir(marker.step, marker.attempt),
            store,
            marker,
            threads: cores(MAX_THREADS),
        }
    }

    /// Returns the id of the attempt.
    pub fn attempt(&self) -> AttemptId {
        self.marker.attempt
    }

    /// Returns the step.
    pub fn step(&self) -> u64 {
        self.marker.step
    }

    /// Returns the number of ranks that save.
    pub fn world_size(&self) -> u32 {
        self.marker.world_size
    }

    /// Sets the number of files that are written concurrently, at least one. The default is the number of
    /// cores, at most 4.
    #[must_use]
    pub fn threads(self, threads: usize) -> Self {
        Self { threads, ..self }
    }

    /// Writes the contents of a rank, makes them durable, and notifies the coordinator. Every rank of the world must call it
    /// once; a rank without contents passes empty contents. After an error the rank may retry within 5 seconds; then the
    /// coordinator aborts the attempt. The observer is notified of the bytes that are written.
    ///
    /// Memory: for each thread 1 MiB, and the host copy of one tensor of a device.
    ///
    /// # Errors
    ///
    /// Returns an error if a tensor can't be stored, or an I/O operation fails. The rank's files are then
    /// removed and the coordinator is notified.
    pub fn write_rank(
        &self,
        rank: u32,
        tensors: &[SaveTensor],
        scalars: &BTreeMap<String, Scalar>,
        progress: &dyn Observer,
    ) -> Result<(), SaveError> {
        let world_size = self.world_size();
        if rank >= world_size {
            return Err(SaveError::RankOutOfRange { rank, world_size });
        }
        let part_path = join(&self.dir, &names::part_file(rank));
        if self.store.look(&part_path).is_ok() {
            return Err(self.written_by(rank, &part_path));
        }
        let failed_path = join(&self.dir, &names::failed_file(rank));
        // From an earlier call.
        let _ = self.store.remove_file(&failed_path);
        let created = Mutex::new(Vec::new());
        let written = self.write(rank, tensors, scalars, progress, &created);
        if let Err(error) = &written {
            // The first error is the one to report; the rank may retry.
            for path in created.into_inner().iter().rev() {
                let _ = self.store.remove_file(path);
            }
            // Another call that has written represents the rank, and a dead attempt has no coordinator to notify.
            if !matches!(error, RankWritten { .. } | Aborted { .. }) {
                let message = with_causes(error);
                let message: String = message.chars().take(MAX_MESSAGE_CHARS).collect();
                // If this fails too, the coordinator still has its timeout.
                let _ = self.store.put(&failed_path, message.as_bytes());
            }
        }
        written
    }

    /// Reserves a rank for this call. In a directory, the files themselves identify the writer: they exist from the start.
    fn claim(&self, rank: u32, created: &Mutex<Vec<String>>) -> Result<(), SaveError> {
        if self.store.renames() {
            return Ok(());
        }
        let path = join(&self.dir, &names::claim_file(rank));
        let claimed = self.store.create(&path).and_then(|mut file| {
            // Unique contents, to distinguish them from the contents of another call.
            file.write_all(AttemptId::fresh().to_string().as_bytes())?;
            file.finish()
        });
        match claimed {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                return Err(self.written_by(rank, &path));
            }
            claimed => claimed.map_err(self.store.failed("write", &path))?,
        }
        created.lock().push(path);
        Ok(())
    }

    fn written_by(&self, rank: u32, path: &str) -> SaveError {
        let path = self.store.place(path);
        RankWritten { rank, path }
    }

    /// Writes the files of a rank, each on one thread, and the part that lists them; adds the path of each to `created`. The
    /// first error stops all threads.
    fn write(
        &self,
        rank: u32,
        tensors: &[SaveTensor],
        scalars: &BTreeMap<String, Scalar>,
        progress: &dyn Observer,
        created: &Mutex<Vec<String>>,
    ) -> Result<(), SaveError> {
        self.claim(rank, created)?;
        for name in scalars.keys() {
            check_tensor_name(name).map_err(|source| SaveError::Name {
                tensor: name.clone(),
                source,
            })?;
        }
        let shards = plan_shards(rank, tensors, self.marker.file_bytes)?;
        self.check_size(tensors, scalars)?;
        let bytes = tensors.iter().map(SaveTensor::bytes).sum();
        progress.begin(tensors.len(), bytes);
        // Existing files belong to another call; in a bucket, the claim has already excluded this.
        let names = shards.iter().map(|shard| &shard.entry.name);
        let mut paths = names.map(|name| join(&self.dir, name));
        let exists = |path: &String| self.store.renames() && self.store.look(path).is_ok();
        if let Some(path) = paths.find(exists) {
            return Err(self.written_by(rank, &path));
        }
        let mut part = Part::new(self.marker.attempt, rank);
        part.scalars.clone_from(scalars);
        let written = parallel(self.threads, &shards, |shard| {
            shard.write(&self.store, &self.dir, &self.marker, progress, created)
        });
        part.tensors = written?.into_iter().flatten().collect();
        part.files = shards.into_iter().map(|shard| shard.entry).collect();
        let path = join(&self.dir, &names::part_file(rank));
        self.store.write(&path, &encode_part(&part)?)?;
        created.lock().push(path);
        self.check_not_aborted()?;
        progress.end();
        Ok(())
    }

    /// Rejects contents that make the manifest too large, before anything is written: the coordinator may not know the size.
    fn check_size(
        &self,
        tensors: &[SaveTensor],
        scalars: &BTreeMap<String, Scalar>,
    ) -> Result<(), SaveError> {
        let mut size = SaveSize::default();
        size.add(tensors, scalars);
        let mut meta = CheckpointMeta::new(self.marker.step, 1);
        meta.block_size = Some(self.marker.block_bytes);
        meta.file_bytes = self.marker.file_bytes;
        size.block_size(&meta).map(drop)
    }

    /// Rejects an attempt whose directory was removed, in a store where the removal does not prevent writes.
    fn check_not_aborted(&self) -> Result<(), SaveError> {
        let store = &self.store;
        if store.renames() || is_marked(store, &self.dir) {
            return Ok(());
        }
        // The marker is also removed after publication.
        match published(store, &names::step_dir(self.step())) {
            Ok(attempt) if attempt != Some(self.attempt()) => Err(Aborted {
                step: self.step(),
                attempt: self.attempt(),
            }),
            _ => Ok(()),
        }
    }
}
