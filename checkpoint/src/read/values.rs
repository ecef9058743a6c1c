//! Reading of the values of a checkpoint's tensors, and verification: reads all bytes and reports all damage.

use std::time::Instant;

use burn::tensor::TensorData;
use tinderbox_deferred::{Observer, human_bytes};
use tinderbox_fake::Region;

use super::load::{Load, default_threads, load};
use super::plan::Wanted;
use super::shard::Held;
use super::transfer::InvalidValue;
use super::{Checkpoint, SavedTensors};
use crate::format::INDEX_FILE;
use crate::layout::pieces;
use crate::parallel::parallel;
use crate::{LoadError, Role, StoredDType, TensorEntry};

/// Maximum number of damaged blocks that are reported per file.
const MAX_NAMED: usize = 1000;

/// Maximum size of a piece in bytes: several digest blocks, because the first and the last block of a piece may be read twice.
pub(crate) const PIECE_BYTES: u64 = 8 << 20;

impl Checkpoint {
    /// Reads whole tensors of the optimizer's state, in the order of `names`, and reports bytes to the observer as they are
    /// read.
    ///
    /// # Errors
    ///
    /// Returns [`LoadError::MissingState`] with every missing name; otherwise the first damage.
    pub fn state<S: AsRef<str>>(
        &self,
        names: &[S],
        observer: &dyn Observer,
    ) -> Result<Vec<TensorData>, LoadError> {
        self.state_in(names, false, observer)
    }

    /// Reads like [`state`](Self::state), around the cache of the system: for values that are read repeatedly and do not all
    /// fit in the cache.
    ///
    /// # Errors
    ///
    /// See [`state`](Self::state).
    pub fn state_uncached<S: AsRef<str>>(
        &self,
        names: &[S],
        observer: &dyn Observer,
    ) -> Result<Vec<TensorData>, LoadError> {
        self.state_in(names, true, observer)
    }

    fn state_in<S: AsRef<str>>(
        &self,
        names: &[S],
        uncached: bool,
        observer: &dyn Observer,
    ) -> Result<Vec<TensorData>, LoadError> {
        let (mut wanted, mut missing) = (Vec::with_capacity(names.len()), Vec::new());
        for name in names {
            match self.tensor(Role::State, name.as_ref()) {
                Some(tensor) => wanted.push(Wanted::whole(tensor)),
                None => missing.push(name.as_ref().to_owned()),
            }
        }
        if !missing.is_empty() {
            return Err(LoadError::MissingState {
                path: self.dir().to_owned(),
                names: missing,
            });
        }
        let mut loading = Load::of(&self.saved);
        (loading.uncached, loading.progress) = (uncached, observer);
        load(loading, &wanted)
    }

    /// Reads a region of a tensor of this checkpoint, see [`SavedTensors::read`]; every block is checked.
    ///
    /// # Errors
    ///
    /// See [`SavedTensors::read`].
    pub fn read(&self, tensor: &TensorEntry, region: &Region) -> Result<TensorData, LoadError> {
        self.saved.read(tensor, region)
    }

    /// Reads every byte of the tensors, of the Hugging Face index and of the plan, and checks it against its digest. The manifest
    /// was checked by [`open`](Self::open), and is not read again.
    ///
    /// Time: one pass over all files, which ends at the first damage. Memory: a header and one block per thread.
    ///
    /// # Errors
    ///
    /// Returns the first damage.
    pub fn verify(&self) -> Result<(), LoadError> {
        let damage = self.look_for_damage(&(), 1);
        damage.into_iter().next().map_or(Ok(()), Err)
    }

    /// Returns all damage, in the order of the files: every block with a wrong digest, up to 1000 per file.
    /// Empty if the checkpoint is intact. Time: one pass over all files. Memory: a header and one block per thread.
    pub fn damage(&self, progress: &dyn Observer) -> Vec<LoadError> {
        self.look_for_damage(progress, MAX_NAMED)
    }

    /// Returns up to `most` damaged blocks of each file. With 1, reads no further after a damaged block.
    fn look_for_damage(&self, progress: &dyn Observer, most: usize) -> Vec<LoadError> {
        let (manifest, published) = (self.manifest(), &self.published);
        let bytes = manifest.files.iter().map(|file| file.size_bytes).sum();
        progress.begin(manifest.tensors.len(), bytes);
        let mut damage = Vec::new();
        if let Some(index) = &manifest.index {
            damage.extend(published.document(INDEX_FILE, index).err());
        }
        damage.extend(self.plan().err());
        let found = parallel(default_threads(), 0..manifest.files.len(), |position| {
            let damage = self.damage_of(position, progress, most);
            progress.advanced(manifest.files[position].header_bytes);
            // An error stops the other threads.
            match most == 1 && !damage.is_empty() {
                true => Err(damage),
                false => Ok(damage),
            }
        });
        let found = found.unwrap_or_else(|first| vec![first]);
        damage.extend(found.into_iter().flatten());
        progress.end();
        damage
    }

    /// Returns the damage of a file, see [`look_for_damage`](Self::look_for_damage).
    fn damage_of(&self, position: usize, progress: &dyn Observer, most: usize) -> Vec<LoadError> {
        let (file, started) = (&self.manifest().files[position], Instant::now());
        let shard = match self.saved.file(&file.name) {
            Ok(shard) => shard,
            Err(error) => return vec![error],
        };
        let (mut damage, mut blocks, mut held) = (Vec::new(), 0, Held::default());
        for (tensor, chunk) in self.published.contents(position) {
            tracing::debug!(
                tensor = %tensor.name, chunk = %chunk.region, blocks = chunk.digests.len(),
                size = %human_bytes(chunk.len_bytes), "checks a chunk"
            );
            let chunk = shard.chunk(tensor, chunk);
            let is_boolean = tensor.dtype == StoredDType::Bool;
            for span in chunk.blocks() {
                let bytes = span.end - span.start;
                let found = match chunk.hold(span, &mut held) {
                    Ok(()) if is_boolean && held.block().iter().any(|byte| *byte > 1) => {
                        Some(chunk.invalid(InvalidValue::Boolean))
                    }
                    read => read.err(),
                };
                match found {
                    Some(_) if damage.len() == most => blocks += 1,
                    found => damage.extend(found),
                }
                if most == 1 && !damage.is_empty() {
                    return damage;
                }
                progress.advanced(bytes);
            }
        }
        if blocks > 0 {
            let path = shard.path.clone();
            damage.push(LoadError::MoreDamage { path, blocks });
        }
        let rate = file.size_bytes as f64 / started.elapsed().as_secs_f64();
        tracing::info!(
            path = %shard.path.display(), size = %human_bytes(file.size_bytes),
            rate = %format_args!("{}/s", human_bytes(rate as u64)), errors = damage.len(),
            "checked a file"
        );
        damage
    }
}

impl SavedTensors {
    /// Reads a region of one of these tensors, in its stored dtype.
    ///
    /// Reads only the blocks that contain elements of the region. Memory: the region and one block per
    /// thread.
    ///
    /// # Errors
    ///
    /// Returns an error if the region extends outside the tensor, a block with a digest is damaged, a file can't be read, or
    /// the tensor belongs to another checkpoint or other weights.
    pub fn read(&self, tensor: &TensorEntry, region: &Region) -> Result<TensorData, LoadError> {
        let own = self.tensor(tensor.role, &tensor.name);
        if !own.is_some_and(|own| std::ptr::eq(own, tensor) || own == tensor) {
            return Err(LoadError::OtherCheckpoint {
                path: self.place().to_owned(),
                tensor: tensor.name.clone(),
            });
        }
        self.read_cast(tensor, region.clone(), tensor.dtype, false)
    }

    /// Reads all tensors of a role around the cache of the system, two at a time, and drops them.
    pub(crate) fn read_uncached(&self, role: Role) -> Result<(), LoadError> {
        let wanted: Vec<Wanted<'_>> = self.tensors(role).map(Wanted::whole).collect();
        let mut loading = Load::of(self);
        loading.uncached = true;
        let mut pairs = wanted.chunks(2);
        pairs.try_for_each(|some| load(loading, some).map(drop))
    }

    /// Reads a region of a tensor in boxes of at most 8 MiB, cast, whose concatenated elements are the elements of the region
    /// in row-major order; none for an empty region.
    pub(crate) fn read_in_pieces(
        &self,
        tensor: &TensorEntry,
        region: &Region,
        dtype: StoredDType,
    ) -> impl Iterator<Item = Result<TensorData, LoadError>> {
        let pieces = pieces(region, PIECE_BYTES / tensor.dtype.size_bytes()).into_iter();
        pieces.map(move |piece| self.read_cast(tensor, piece, dtype, false))
    }

    /// Reads a box of a tensor, cast; a box of a matrix can be transposed, which uses one thread.
    ///
    /// Every block that contains an element of the box is read. Memory: the box and a block per thread.
    pub(crate) fn read_cast(
        &self,
        tensor: &TensorEntry,
        region: Region,
        dtype: StoredDType,
        transposed: bool,
    ) -> Result<TensorData, LoadError> {
        let wanted = Wanted {
            tensor,
            region,
            dtype: dtype.burn(),
            transposed,
        };
        let mut loading = Load::of(self);
        if transposed {
            loading.threads = 1;
        }
        let mut data = load(loading, &[wanted])?;
        Ok(data.pop().expect("one region for one request"))
    }
}
