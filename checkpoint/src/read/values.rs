//! Reading of the values of a checkpoint's tensors, and verification: reads all bytes and reports all damage.

use burn::tensor::TensorData;
use tinderbox_deferred::Observer;
use tinderbox_fake::Region;

use super::{
    Checkpoint,
    load::{Load, default_threads, load},
    plan::Wanted,
    shard::{Held, ShardFile},
    transfer::InvalidValue,
};
use crate::{
    LoadError, Role, StoredDType, TensorEntry, format::INDEX_FILE, layout::pieces,
    parallel::parallel,
};

/// Maximum number of damaged blocks that are reported per file.
const MAX_NAMED: u64 = 1000;

/// Maximum size of a piece in bytes: several digest blocks, because the first and the last block of a piece may be read
/// twice.
pub(crate) const PIECE_BYTES: u64 = 8 << 20;

impl Checkpoint {
    /// Reads whole tensors of the optimizer's state, in the order of `names`.
    ///
    /// # Errors
    ///
    /// Returns [`LoadError::MissingState`] with every missing name; otherwise the first damage.
    pub fn state<S: AsRef<str>>(&self, names: &[S]) -> Result<Vec<TensorData>, LoadError> {
        self.state_with(names, &())
    }

    /// As [`state`](Self::state), and reports bytes to an observer as they are read.
    ///
    /// # Errors
    ///
    /// See [`state`](Self::state).
    pub fn state_with<S: AsRef<str>>(
        &self,
        names: &[S],
        observer: &dyn Observer,
    ) -> Result<Vec<TensorData>, LoadError> {
        self.state_in(names, false, observer)
    }

    /// As [`state_with`](Self::state_with), around the cache of the system, for values that are read again and again, of which the
    /// cache can't hold all.
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
        let mut wanted = Vec::with_capacity(names.len());
        let mut missing = Vec::new();
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
        let loading = Load {
            uncached,
            progress: observer,
            ..Load::of(self)
        };
        load(loading, &wanted)
    }

    /// Reads a region of a tensor of this checkpoint, in its stored dtype.
    ///
    /// Reads only the blocks that contain elements of the region. Memory: the region and one block per
    /// thread.
    ///
    /// # Errors
    ///
    /// Returns an error if the region extends outside the tensor, a block is damaged, or the tensor belongs
    /// to another checkpoint.
    pub fn read(&self, tensor: &TensorEntry, region: &Region) -> Result<TensorData, LoadError> {
        let own = self.tensor(tensor.role, &tensor.name);
        if !own.is_some_and(|own| std::ptr::eq(own, tensor) || own == tensor) {
            return Err(LoadError::OtherCheckpoint {
                path: self.dir().to_owned(),
                tensor: tensor.name.clone(),
            });
        }
        let wanted = Wanted {
            region: region.clone(),
            ..Wanted::whole(tensor)
        };
        self.load_one(Load::of(self), wanted)
    }

    fn load_one(&self, loading: Load<'_>, wanted: Wanted<'_>) -> Result<TensorData, LoadError> {
        let mut data = load(loading, &[wanted])?;
        Ok(data.pop().expect("one region for one request"))
    }

    /// Reads all tensors of a role around the cache of the system, two at a time, and drops them.
    pub(crate) fn read_uncached(&self, role: Role) -> Result<(), LoadError> {
        let wanted: Vec<Wanted<'_>> = self.tensors(role).map(Wanted::whole).collect();
        let loading = Load {
            uncached: true,
            ..Load::of(self)
        };
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
        pieces.map(move |region| {
            let wanted = Wanted {
                region,
                dtype: dtype.burn(),
                ..Wanted::whole(tensor)
            };
            self.load_one(Load::of(self), wanted)
        })
    }

    /// Reads a box of a matrix of this checkpoint, transposed and cast.
    ///
    /// Every block that contains an element of the box is read. Memory: the box and a block.
    pub(crate) fn read_transposed(
        &self,
        tensor: &TensorEntry,
        region: Region,
        dtype: StoredDType,
    ) -> Result<TensorData, LoadError> {
        let wanted = Wanted {
            region,
            dtype: dtype.burn(),
            transposed: true,
            ..Wanted::whole(tensor)
        };
        let loading = Load {
            threads: 1,
            ..Load::of(self)
        };
        self.load_one(loading, wanted)
    }

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
        let found = parallel(default_threads(), 0..manifest.files.len(), |position| {
            let damage = match self.file(position) {
                Ok(shard) => self.damage_of(position, &shard, progress, most),
                Err(error) => vec![error],
            };
            progress.advanced(manifest.files[position].header_bytes);
            match most == 1 && !damage.is_empty() {
                true => Err(damage),
                false => Ok(damage),
            }
        });
        let found = found.into_iter();
        damage.extend(found.flat_map(|found| found.unwrap_or_else(|found| found)));
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
        let (mut damage, mut more, mut held) = (Vec::new(), 0, Held::default());
        for (tensor, chunk) in self.contents(position) {
            let chunk = shard.chunk(tensor, chunk);
            for span in chunk.blocks() {
                let bytes = span.end - span.start;
                let is_invalid = |block: &[u8]| {
                    tensor.dtype == StoredDType::Bool && block.iter().any(|byte| *byte > 1)
                };
                let found = match chunk.hold(span, &mut held) {
                    Err(error) => Some(error),
                    Ok(()) if is_invalid(held.block()) => {
                        Some(chunk.invalid(InvalidValue::Boolean))
                    }
                    Ok(()) => None,
                };
                match found {
                    Some(_) if damage.len() as u64 == most => more += 1,
                    found => damage.extend(found),
                }
                if most == 1 && !damage.is_empty() {
                    return damage;
                }
                progress.advanced(bytes);
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
