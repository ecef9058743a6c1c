//! Reading of the values of a checkpoint's tensors.

use burn::tensor::TensorData;
use tinderbox_deferred::Observer;
use tinderbox_fake::Region;

use super::{
    Checkpoint,
    load::{Reading, load},
    plan::Wanted,
};
use crate::{LoadError, Role, StoredDType, TensorEntry, layout::pieces};

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
        self.state_in(names, Reading::default(), observer)
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
        self.state_in(names, Reading::uncached(), observer)
    }

    fn state_in<S: AsRef<str>>(
        &self,
        names: &[S],
        reading: Reading,
        observer: &dyn Observer,
    ) -> Result<Vec<TensorData>, LoadError> {
        let mut wanted = Vec::with_capacity(names.len());
        let mut missing = Vec::new();
        for name in names {
            match self.tensor(Role::State, name.as_ref()) {
                Some(tensor) => wanted.push(Wanted {
                    tensor,
                    region: tensor.region(),
                    dtype: tensor.dtype.burn(),
                    transposed: false,
                }),
                None => missing.push(name.as_ref().to_owned()),
            }
        }
        if !missing.is_empty() {
            return Err(LoadError::MissingState {
                path: self.dir().to_owned(),
                names: missing,
            });
        }
        load(self, &wanted, reading, observer)
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
        self.read_as(tensor, region, tensor.dtype)
    }

    /// Reads a region of a tensor of this checkpoint, cast.
    fn read_as(
        &self,
        tensor: &TensorEntry,
        region: &Region,
        dtype: StoredDType,
    ) -> Result<TensorData, LoadError> {
        let wanted = Wanted {
            tensor,
            region: region.clone(),
            dtype: dtype.burn(),
            transposed: false,
        };
        let mut data = load(self, &[wanted], Reading::default(), &())?;
        Ok(data.pop().expect("one region for one request"))
    }

    /// Reads all tensors of a role around the cache of the system, two at a time, and drops them.
    pub(crate) fn read_uncached(&self, role: Role) -> Result<(), LoadError> {
        let wanted = self.tensors(role).map(|tensor| Wanted {
            tensor,
            region: tensor.region(),
            dtype: tensor.dtype.burn(),
            transposed: false,
        });
        let reading = Reading::uncached();
        let wanted: Vec<Wanted<'_>> = wanted.collect();
        wanted
            .chunks(2)
            .try_for_each(|some| load(self, some, reading, &()).map(drop))
    }

    /// Reads a region of a tensor in boxes of at most 8 MiB, cast, whose concatenated elements are the elements of the region
    /// in row-major order; none for an empty region.
    pub(crate) fn read_in_pieces(
        &self,
        tensor: &TensorEntry,
        region: &Region,
        dtype: StoredDType,
    ) -> impl Iterator<Item = Result<TensorData, LoadError>> {
        let pieces = pieces(region, PIECE_BYTES / tensor.dtype.size_bytes());
        let pieces = pieces.into_iter();
        pieces.map(move |piece| self.read_as(tensor, &piece, dtype))
    }

    /// Reads boxes of a matrix of this checkpoint, each transposed and cast.
    ///
    /// Every block that contains an element of a box is read. Memory: a box and a block.
    pub(crate) fn read_transposed(
        &self,
        tensor: &TensorEntry,
        boxes: impl IntoIterator<Item = Region>,
        dtype: StoredDType,
    ) -> impl Iterator<Item = Result<TensorData, LoadError>> {
        boxes.into_iter().map(move |region| {
            let wanted = Wanted {
                tensor,
                region,
                dtype: dtype.burn(),
                transposed: true,
            };
            let reading = Reading {
                threads: 1,
                uncached: false,
            };
            let mut data = load(self, &[wanted], reading, &())?;
            Ok(data.pop().expect("one region for one request"))
        })
    }
}
