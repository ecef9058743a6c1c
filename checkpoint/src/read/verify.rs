//! Reads everything, and names all that is damaged.

use std::sync::Arc;

use super::{
    Checkpoint,
    checkpoint::{check_size, failed},
    files::Files,
    load::default_threads,
    shard::ShardFile,
};
use crate::{
    Digest, LoadError, Progress, StoredDType, TensorEntry,
    format::{Chunk, FileEntry, INDEX_FILE, IndexEntry},
    parallel::parallel,
    store::{join, read_small},
};

impl Checkpoint {
    /// Reads every byte and checks it against its digest, the Hugging Face index included.
    ///
    /// Time: one pass over all files. Memory: a header and one block per thread.
    ///
    /// # Errors
    ///
    /// The first damage that is found, in the order of the files.
    pub fn verify(&self) -> Result<(), LoadError> {
        match self.damage(&()).into_iter().next() {
            Some(damage) => Err(damage),
            None => Ok(()),
        }
    }

    /// All that is damaged, in the order of the files: every block with a wrong digest is named. Empty
    /// when the checkpoint is whole. Time and memory as [`Self::verify`].
    pub fn damage(&self, progress: &dyn Progress) -> Vec<LoadError> {
        let manifest = self.manifest();
        progress.begin(manifest.files.iter().map(|file| file.size_bytes).sum());
        let mut damage = Vec::new();
        if let Some(index) = &manifest.index {
            damage.extend(self.check_index(index).err());
        }
        let files = Files::of(self);
        let found = parallel(default_threads(), &manifest.files, |entry| {
            let damage = match files.get(&entry.name) {
                Ok(shard) => self.damage_of(entry, &shard, progress),
                Err(error) => vec![error],
            };
            progress.done(entry.header_bytes);
            damage
        });
        damage.extend(found.into_iter().flatten());
        damage
    }

    fn check_index(&self, index: &IndexEntry) -> Result<(), LoadError> {
        let (store, path) = (self.store(), join(self.files_dir(), INDEX_FILE));
        check_size(store, &path, index.size_bytes)?;
        let bytes = read_small(store, &path, index.size_bytes);
        let found = Digest::of(&bytes.map_err(failed(store, "read", &path))?);
        if found == index.digest {
            return Ok(());
        }
        Err(LoadError::DamagedFile {
            path: store.place(&path),
            what: "bytes",
            expected: index.digest,
            found,
        })
    }

    fn damage_of(
        &self,
        entry: &FileEntry,
        shard: &Arc<ShardFile>,
        progress: &dyn Progress,
    ) -> Vec<LoadError> {
        let chunks = self.tensors(entry.role).flat_map(|tensor| {
            let chunks = tensor.chunks.iter().filter(|c| c.file == entry.name);
            chunks.map(move |chunk| (tensor, chunk))
        });
        let mut chunks: Vec<(&TensorEntry, &Chunk)> = chunks.collect();
        chunks.sort_by_key(|(_, chunk)| chunk.start_bytes);
        let (mut damage, mut held) = (Vec::new(), Vec::new());
        for (tensor, chunk) in chunks {
            for block in 0..chunk.digests.len() as u64 {
                let span = shard.block_span(chunk, block);
                held.resize((span.end - span.start) as usize, 0);
                let read = shard.read_block(tensor, chunk, block, &mut held);
                let truth = || tensor.dtype != StoredDType::Bool || held.iter().all(|b| *b <= 1);
                match read {
                    Err(error) => damage.push(error),
                    Ok(()) if truth() => {}
                    Ok(()) => damage.push(LoadError::TruthValue {
                        path: shard.path().clone(),
                        tensor: tensor.name.clone(),
                    }),
                }
                progress.done(held.len() as u64);
            }
        }
        damage
    }
}
