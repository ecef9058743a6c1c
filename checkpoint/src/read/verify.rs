//! Verification: reads all bytes and reports all damage.

use std::sync::atomic::{AtomicBool, Ordering};

use super::{Checkpoint, load::default_threads, shard::ShardFile};
use crate::{LoadError, StoredDType, format::INDEX_FILE, parallel::parallel};
use tinderbox_deferred::Observer;

/// Maximum number of damaged blocks that are reported per file.
const MAX_NAMED: u64 = 1000;

impl Checkpoint {
    /// Reads every byte and checks it against its digest, including the Hugging Face index and the plan.
    ///
    /// Time: one pass over all files. Memory: a header and one block per thread.
    ///
    /// # Errors
    ///
    /// Returns the first damage.
    pub fn verify(&self) -> Result<(), LoadError> {
        match self.look_for_damage(&(), 1).into_iter().next() {
            Some(damage) => Err(damage),
            None => Ok(()),
        }
    }

    /// Returns all damage, in the order of the files: every block with a wrong digest, up to 1000 per file.
    /// Empty if the checkpoint is intact. Time and memory as for [`Self::verify`].
    pub fn damage(&self, progress: &dyn Observer) -> Vec<LoadError> {
        self.look_for_damage(progress, MAX_NAMED)
    }

    fn look_for_damage(&self, progress: &dyn Observer, most: u64) -> Vec<LoadError> {
        let manifest = self.manifest();
        let bytes = manifest.files.iter().map(|file| file.size_bytes).sum();
        progress.begin(manifest.tensors.len(), bytes);
        let mut damage = Vec::new();
        if let Some(index) = &manifest.index {
            damage.extend(self.document(INDEX_FILE, index).err());
        }
        damage.extend(self.plan().err());
        let stop = AtomicBool::new(false);
        let found = parallel(default_threads(), 0..manifest.files.len(), |position| {
            if stop.load(Ordering::Relaxed) {
                return Vec::new();
            }
            let entry = &manifest.files[position];
            let damage = match self.file(position) {
                Ok(shard) => self.damage_of(position, &shard, progress, most),
                Err(error) => vec![error],
            };
            stop.fetch_or(most == 1 && !damage.is_empty(), Ordering::Relaxed);
            progress.advanced(entry.header_bytes);
            damage
        });
        damage.extend(found.into_iter().flatten());
        progress.end();
        damage
    }

    fn damage_of(
        &self,
        position: usize,
        shard: &ShardFile,
        progress: &dyn Observer,
        most: u64,
    ) -> Vec<LoadError> {
        let (mut damage, mut more, mut held) = (Vec::new(), 0, Vec::new());
        for (tensor, chunk) in self.contents(position) {
            for span in shard.blocks(chunk) {
                held.resize((span.end - span.start) as usize, 0);
                let read = shard.read_block(tensor, chunk, span.start, &mut held);
                let truth = || tensor.dtype != StoredDType::Bool || held.iter().all(|b| *b <= 1);
                let found = match read {
                    Err(error) => Some(error),
                    Ok(()) if truth() => None,
                    Ok(()) => Some(LoadError::InvalidBoolean {
                        path: shard.path.clone(),
                        tensor: tensor.name.clone(),
                    }),
                };
                match found {
                    Some(_) if damage.len() as u64 == most => more += 1,
                    found => damage.extend(found),
                }
                if most == 1 && !damage.is_empty() {
                    return damage;
                }
                progress.advanced(held.len() as u64);
            }
        }
        if more > 0 {
            damage.push(LoadError::MoreDamage {
                path: shard.path.clone(),
                blocks: more,
            });
        }
        damage
    }
}
