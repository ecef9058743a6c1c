//! A rank's side of an attempt.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::Read,
    path::PathBuf,
    time::{Duration, Instant},
};

use serde::{Deserialize, Serialize};

use super::{
    SaveTensor,
    durable::{failed, write_durable},
    shard::write_shard,
};
use crate::{
    AttemptId, BlockSize, FileEntry, SaveError, Scalar, StoredDType,
    format::{
        MAX_MANIFEST_BYTES, NamedScalar, Part, Role, check_tensor_name, decode_part, encode_part,
        part_file_name, shard_file_name,
    },
};

/// How long the coordinator sleeps between two looks for parts: short against an fsync at first, and
/// then no load on a network file system.
const POLL: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(50));

/// What a rank needs to take part in an attempt. It goes to threads by cloning, and to processes that
/// see the same directory by serializing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AttemptHandle {
    pub(super) dir: PathBuf,
    pub(super) attempt: AttemptId,
    pub(super) world_size: u32,
    pub(super) block_size: BlockSize,
}

impl AttemptHandle {
    /// The id of the attempt.
    pub fn attempt(&self) -> AttemptId {
        self.attempt
    }

    /// Writes what a rank saves, makes it durable, and then says so to the coordinator. Every rank of
    /// the world calls it once, with nothing when it has nothing; after an error it may call again.
    ///
    /// Memory: 1 MiB and the headers; the data is written from where it is.
    ///
    /// # Errors
    ///
    /// When a tensor has no form in a file, or the disk fails. The rank's files are removed then.
    pub fn write_rank(
        &self,
        rank: u32,
        tensors: &[SaveTensor],
        scalars: &BTreeMap<String, Scalar>,
    ) -> Result<(), SaveError> {
        if rank >= self.world_size {
            return Err(SaveError::RankOutOfRange {
                rank,
                world_size: self.world_size,
            });
        }
        let part_path = self.dir.join(part_file_name(rank));
        if part_path.exists() {
            return Err(SaveError::RankWritten {
                rank,
                path: part_path,
            });
        }
        let mut checked = Vec::with_capacity(tensors.len());
        for tensor in tensors {
            checked.push((tensor, tensor.check()?));
        }
        for name in scalars.keys() {
            check_tensor_name(name).map_err(|source| SaveError::Name {
                tensor: name.clone(),
                source,
            })?;
        }
        let mut part = Part::new(self.attempt, rank);
        part.scalars = scalars
            .iter()
            .map(|(name, value)| NamedScalar {
                name: name.clone(),
                value: *value,
            })
            .collect();
        let written = self.write_files(&mut part, &checked);
        if written.is_err() {
            for file in &part.files {
                // The first error is the one to report.
                let _ = fs::remove_file(self.dir.join(&file.name));
            }
        }
        written
    }

    fn write_files(
        &self,
        part: &mut Part,
        tensors: &[(&SaveTensor, StoredDType)],
    ) -> Result<(), SaveError> {
        for role in [Role::Model, Role::State] {
            let of_role: Vec<_> = tensors
                .iter()
                .filter(|(t, _)| t.role == role)
                .copied()
                .collect();
            if !of_role.is_empty() {
                let (file, entries) =
                    write_shard(&self.dir, role, part.rank, self.block_size, &of_role)?;
                part.files.push(file);
                part.tensors.extend(entries);
            }
        }
        let bytes = encode_part(part).map_err(|source| SaveError::Meta { source })?;
        write_durable(&self.dir, &part_file_name(part.rank), &bytes)
    }

    pub(super) fn wait_for_parts(&self, timeout: Duration) -> Result<Vec<Part>, SaveError> {
        let started = Instant::now();
        let mut pause = POLL.0;
        let mut parts: BTreeMap<u32, Part> = BTreeMap::new();
        loop {
            for rank in 0..self.world_size {
                if !parts.contains_key(&rank)
                    && let Some(part) = self.read_part(rank)?
                {
                    parts.insert(rank, part);
                }
            }
            if parts.len() == self.world_size as usize {
                return Ok(parts.into_values().collect());
            }
            let waited = started.elapsed();
            if waited >= timeout {
                let missing = (0..self.world_size).filter(|r| !parts.contains_key(r));
                return Err(SaveError::MissingRanks {
                    ranks: missing.collect(),
                    waited_ms: waited.as_millis(),
                });
            }
            std::thread::sleep(pause.min(timeout - waited));
            pause = (pause * 2).min(POLL.1);
        }
    }

    /// A rank's part, once it is there; proven to be of this attempt and of this rank.
    fn read_part(&self, rank: u32) -> Result<Option<Part>, SaveError> {
        let path = self.dir.join(part_file_name(rank));
        let file = match File::open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                // The directory itself is gone when somebody removed the attempt.
                return match fs::metadata(&self.dir) {
                    Ok(_) => Ok(None),
                    Err(source) => Err(failed("find the attempt's directory", &self.dir)(source)),
                };
            }
            Err(error) => return Err(failed("open", &path)(error)),
        };
        let mut bytes = Vec::new();
        file.take(MAX_MANIFEST_BYTES + 1)
            .read_to_end(&mut bytes)
            .map_err(failed("read", &path))?;
        let part = decode_part(&bytes).map_err(|source| SaveError::Part {
            path: path.clone(),
            source,
        })?;
        if part.attempt != self.attempt {
            return Err(SaveError::WrongAttempt {
                path,
                expected: self.attempt,
                found: part.attempt,
            });
        }
        let own_files = part
            .files
            .iter()
            .all(|f| f.rank == rank && f.name == shard_file_name(f.role, rank));
        if part.rank != rank || !own_files {
            return Err(SaveError::WrongRank {
                path,
                expected: rank,
                found: part.rank,
            });
        }
        Ok(Some(part))
    }

    /// Refuses a file that is not there as its rank said.
    pub(super) fn check_written(&self, file: &FileEntry) -> Result<(), SaveError> {
        let path = self.dir.join(&file.name);
        let found = fs::symlink_metadata(&path).map_err(failed("look at", &path))?;
        if found.is_file() && found.len() == file.size_bytes {
            Ok(())
        } else {
            Err(SaveError::FileSize {
                path,
                rank: file.rank,
                expected_bytes: file.size_bytes,
                found_bytes: found.len(),
            })
        }
    }
}
