//! The tensors and scalars that a rank saves.

use std::{collections::BTreeMap, fmt, sync::Arc};

use burn::tensor::{DType, Device, TensorData};
use derive_more::From;
use tinderbox_deferred::{Parameter, ParameterTable, Request, Source, read_values};
use tinderbox_fake::{DynTensor, Region, is_host};

use crate::dtype::stored_bytes;
use crate::format::{check_tensor_name, stored_len};
use crate::layout::{check_chunk, pieces};
use crate::read::{PIECE_BYTES, can_cast, reversed, transposed};
use crate::{
    Chunk, FormatError, LoadError, Role, SaveError, SavedTensors, Scalar, StoredDType, TensorEntry,
};

/// A tensor, or a box of one, that a rank saves.
#[derive(Clone, Debug)]
pub struct SaveTensor {
    /// The name; for a parameter, its path. Up to 4096 bytes, not empty, not `__metadata__`.
    pub name: String,
    /// Other names of the same tensor: the other paths of a tied weight.
    pub tied: Vec<String>,
    /// The role of the tensor.
    pub role: Role,
    /// Size per dimension of the whole tensor.
    pub shape: Vec<u64>,
    /// The elements that `data` holds. The regions of all ranks must tile the tensor.
    pub region: Region,
    /// The elements, row-major, in the shape of the region.
    pub data: SaveData,
}

/// The location of a saved tensor's elements.
#[derive(Clone, From)]
pub enum SaveData {
    /// In memory.
    #[from]
    Host(TensorData),
    /// On a device: copied to memory when they are written, one tensor per writing thread. On the CPU, a tensor that is not a
    /// view is written without a copy.
    #[from]
    Device(DynTensor),
    /// In another checkpoint or pretrained weights: read in pieces of 8 MiB when they are written.
    Saved(SavedPart),
    /// In a source, such as the initializer of a model: read or computed when they are written, in pieces of 64 MiB if the
    /// source can return parts of values. The device of the request is the CPU.
    Source(Arc<dyn Source>, Box<Request>),
}

/// A part of a saved tensor, see [`SaveTensor::of_saved`].
#[derive(Clone, Debug)]
pub struct SavedPart {
    from: SavedTensors,
    tensor: Box<TensorEntry>,
    region: Region,
    /// The dtype to cast to: the dtype of the tensor, or another float of a float.
    dtype: StoredDType,
}

impl fmt::Debug for SaveData {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (shape, dtype) = (self.shape(), self.dtype().map(StoredDType::name));
        let dtype = dtype.unwrap_or_else(|found| found);
        write!(f, "SaveData({dtype} {shape:?})")
    }
}

impl SaveData {
    fn shape(&self) -> Vec<u64> {
        let of = |shape: &burn::tensor::Shape| shape.iter().map(|d| *d as u64).collect();
        match self {
            Self::Host(data) => of(data.shape()),
            Self::Device(tensor) => of(&tensor.shape()),
            Self::Saved(part) => part.region.size().to_vec(),
            Self::Source(_, request) => request.region.size().to_vec(),
        }
    }

    /// Returns the stored type, or the name of an unsupported dtype.
    fn dtype(&self) -> Result<StoredDType, &'static str> {
        let of = |dtype| StoredDType::of(dtype).ok_or_else(|| tinderbox_fake::dtype_name(dtype));
        match self {
            Self::Host(data) => of(data.dtype()),
            Self::Device(tensor) => of(tensor.dtype()),
            Self::Saved(part) => Ok(part.dtype),
            Self::Source(_, request) => of(request.dtype),
        }
    }
}

impl SaveTensor {
    /// Creates a tensor that one rank saves whole.
    pub fn whole(name: impl Into<String>, role: Role, data: impl Into<SaveData>) -> Self {
        let data = data.into();
        let shape = data.shape();
        Self {
            name: name.into(),
            tied: Vec::new(),
            role,
            // The number of elements of an existing tensor fits.
            region: Region::whole(&shape).unwrap_or_else(|_| Region::of_shape(&[])),
            shape,
            data,
        }
    }

    /// Creates tensors of the parameters of a model, each whole. A source reads or computes a tensor when it is written, so a
    /// model of any size is saved or exported with the memory of one parameter for each writing thread. `dtype` casts float
    /// parameters; `None` keeps the dtype of the parameter.
    ///
    /// ```
    /// use burn::nn::{Linear, LinearConfig};
    /// use burn::tensor::{DType, Device};
    /// use tinderbox_checkpoint::{SaveTensor, tools::{ExportOptions, export_tensors}};
    /// use tinderbox_deferred::{Deferred, random::Seed};
    ///
    /// let model = Deferred::new(|device: &Device| -> Vec<Linear> {
    ///     (0..4).map(|_| LinearConfig::new(8, 8).init(device)).collect()
    /// })?;
    /// let source = std::sync::Arc::new(model.initializer(Seed::new(42)));
    /// let tensors = SaveTensor::of_source(model.parameters(), source, |_| Some(DType::BF16));
    /// let dir = tempfile::tempdir()?;
    /// let to = dir.path().join("initial");
    /// let options = ExportOptions::default().pytorch(model.parameters());
    /// let exported = export_tensors(&tensors, &to, &options, &())?;
    /// assert_eq!(exported.bytes, 4 * (64 + 8) * 2);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn of_source(
        model: &ParameterTable,
        source: Arc<dyn Source>,
        dtype: impl Fn(&Parameter) -> Option<DType>,
    ) -> Vec<Self> {
        let device = Device::flex();
        let tensors = model.distinct().map(|parameter| {
            let mut request = Request::of(model, parameter, &device);
            request.dtype = dtype(parameter).unwrap_or(parameter.dtype);
            let tied = request.clones.iter().map(ToString::to_string).collect();
            let data = SaveData::Source(source.clone(), Box::new(request));
            let mut tensor = Self::whole(parameter.path.as_str(), Role::Model, data);
            tensor.tied = tied;
            tensor
        });
        tensors.collect()
    }

    /// Creates a whole tensor of another checkpoint or of pretrained weights, which is read when it is written. `dtype` casts a
    /// float tensor to another float type.
    pub fn of_saved(
        from: &impl AsRef<SavedTensors>,
        tensor: &TensorEntry,
        dtype: Option<DType>,
    ) -> Self {
        let dtype = dtype.filter(|dtype| can_cast(tensor.dtype, *dtype));
        let data = SaveData::Saved(SavedPart {
            from: from.as_ref().clone(),
            tensor: Box::new(tensor.clone()),
            region: tensor.region(),
            dtype: dtype.and_then(StoredDType::of).unwrap_or(tensor.dtype),
        });
        let mut saved = Self::whole(&tensor.name, tensor.role, data);
        saved.tied.clone_from(&tensor.tied);
        saved
    }

    /// Returns its entry in a manifest, as one chunk.
    pub(super) fn entry(&self, dtype: StoredDType, chunk: Chunk) -> TensorEntry {
        let mut tied = self.tied.clone();
        tied.sort();
        TensorEntry {
            name: self.name.clone(),
            tied,
            role: self.role,
            dtype,
            shape: self.shape.clone(),
            chunks: vec![chunk],
        }
    }

    /// Returns the size of the stored elements in bytes.
    pub fn bytes(&self) -> u64 {
        let size = self.data.dtype().map_or(0, StoredDType::size_bytes);
        self.region.num_elements().saturating_mul(size)
    }

    /// Returns the bytes of memory that a write of the tensor needs, as far as known: pieces of a value that is read or
    /// computed, and the memory of the read or computation. 0 for a tensor in memory.
    pub fn working_bytes(&self) -> u64 {
        match &self.data {
            SaveData::Host(_) | SaveData::Device(_) => 0,
            SaveData::Saved(part) => {
                let (tensor, block_bytes) = (&part.tensor, part.from.block_bytes());
                let piece = PIECE_BYTES / tensor.dtype.size_bytes() * part.dtype.size_bytes();
                piece.min(self.bytes()) + block_bytes.min(tensor.bytes())
            }
            SaveData::Source(source, request) => {
                let pieces = pieces_of(&**source, request);
                let of_piece = |piece: Request| {
                    let bytes = piece.bytes();
                    source.working_bytes(&[piece]).saturating_add(bytes)
                };
                pieces.into_iter().map(of_piece).max().unwrap_or(0)
            }
        }
    }

    /// Returns whether it is a whole saved tensor, or a whole tensor of a source, so that any part of it can be read or
    /// computed instead.
    pub(crate) fn is_read(&self) -> bool {
        let is_whole = match &self.data {
            SaveData::Host(_) | SaveData::Device(_) => false,
            SaveData::Saved(part) => part.region.is_whole(&part.tensor.shape),
            SaveData::Source(_, request) => request.region.is_whole(&request.shape),
        };
        is_whole && self.region.is_whole(&self.shape)
    }

    /// Returns a part of a tensor for which [`is_read`](Self::is_read) is true.
    pub(crate) fn in_region(mut self, part: Region) -> Self {
        match &mut self.data {
            SaveData::Saved(saved) => saved.region.clone_from(&part),
            SaveData::Source(_, request) => request.region.clone_from(&part),
            SaveData::Host(_) | SaveData::Device(_) => return self,
        }
        self.region = part;
        self
    }

    /// Moves the elements to the memory of this process: a tensor on a GPU is copied, and its device memory is released when no
    /// other clone uses it.
    ///
    /// # Errors
    ///
    /// Returns an error if the device fails.
    pub fn on_host(mut self) -> Result<Self, SaveError> {
        if let SaveData::Device(tensor) = &self.data
            && !is_host(&tensor.device())
        {
            self.data = SaveData::Host(self.read(tensor)?);
        }
        Ok(self)
    }

    fn read(&self, tensor: &DynTensor) -> Result<TensorData, SaveError> {
        tensor.to_data().map_err(|error| self.unreadable(error))
    }

    /// Rejects tensors that can't be stored, before any file is created.
    pub(crate) fn check(&self) -> Result<StoredDType, SaveError> {
        let tensor = || self.name.clone();
        let name = |source| SaveError::Name {
            tensor: tensor(),
            source,
        };
        let mut names = std::iter::once(&self.name).chain(&self.tied);
        let checked = names.try_for_each(|name| check_tensor_name(name));
        checked.map_err(name)?;
        let dtype = self.data.dtype();
        let dtype = dtype.map_err(|found| SaveError::UnsupportedDType {
            tensor: tensor(),
            found: found.to_owned(),
        })?;
        if stored_len(&self.shape, dtype).is_none() {
            return Err(name(FormatError::Shape {
                tensor: tensor(),
                shape: self.shape.clone(),
            }));
        }
        check_chunk(&self.shape, &self.region).map_err(|source| SaveError::Layout {
            tensor: tensor(),
            source,
        })?;
        let found = self.data.shape();
        if found != self.region.size() {
            return Err(SaveError::DataShape {
                tensor: tensor(),
                expected: self.region.clone(),
                found,
            });
        }
        Ok(dtype)
    }

    /// Passes the stored bytes to a function, in order and in pieces of any length.
    pub(crate) fn for_each_piece(
        &self,
        mut take: impl FnMut(&[u8]) -> Result<(), SaveError>,
    ) -> Result<(), SaveError> {
        match &self.data {
            SaveData::Host(data) => take(&stored_bytes(data.as_bytes(), data.dtype())),
            SaveData::Device(tensor) => self.with_bytes(tensor, take),
            SaveData::Saved(part) => {
                let (tensor, region) = (&part.tensor, &part.region);
                let mut pieces = part.from.read_in_pieces(tensor, region, part.dtype);
                pieces.try_for_each(|piece| take(self.read_piece(piece)?.as_bytes()))
            }
            SaveData::Source(source, request) => {
                let pieces = pieces_of(&**source, request);
                pieces.into_iter().try_for_each(|piece| {
                    self.with_bytes(&self.value_of(&**source, &piece)?, &mut take)
                })
            }
        }
    }

    /// Passes the stored bytes of the transposed matrix to a function, in order and in pieces of up to `limit_bytes`.
    ///
    /// Reads a saved matrix once for every piece, because the rows of the transposed matrix are the columns of the saved
    /// matrix.
    pub(crate) fn for_each_transposed_piece(
        &self,
        limit_bytes: u64,
        mut take: impl FnMut(&[u8]) -> Result<(), SaveError>,
    ) -> Result<(), SaveError> {
        let dtype = self.check()?;
        let own = Region::whole(self.region.size()).expect("the region has as many elements");
        let pieces = pieces(&reversed(&own), limit_bytes / dtype.size_bytes());
        let mut boxes = pieces.iter().map(reversed);
        let element = dtype.size_bytes() as usize;
        let mut in_memory = |bytes: &[u8]| {
            boxes.try_for_each(|piece| take(&transposed(&own, &piece, element, bytes)))
        };
        match &self.data {
            SaveData::Host(data) => in_memory(&stored_bytes(data.as_bytes(), data.dtype())),
            SaveData::Device(tensor) => self.with_bytes(tensor, in_memory),
            SaveData::Saved(part) => boxes.try_for_each(|piece| {
                let region = piece.absolute_in(&part.region);
                let read = part.from.read_cast(&part.tensor, region, part.dtype, true);
                take(self.read_piece(read)?.as_bytes())
            }),
            SaveData::Source(source, request) => {
                self.with_bytes(&self.value_of(&**source, request)?, in_memory)
            }
        }
    }

    /// Reads or computes the value of a source.
    fn value_of(&self, source: &dyn Source, request: &Request) -> Result<DynTensor, SaveError> {
        let values = read_values(std::slice::from_ref(request), source, &());
        let mut values = values.map_err(|error| self.unreadable(error))?;
        Ok(values.remove(0))
    }

    /// Passes the stored bytes of a tensor on a device to a function.
    fn with_bytes(
        &self,
        tensor: &DynTensor,
        take: impl FnOnce(&[u8]) -> Result<(), SaveError>,
    ) -> Result<(), SaveError> {
        if let Some(bytes) = tensor.host_bytes() {
            return take(&stored_bytes(bytes, tensor.dtype()));
        }
        let data = self.read(tensor)?;
        take(&stored_bytes(data.as_bytes(), data.dtype()))
    }

    fn read_piece(&self, piece: Result<TensorData, LoadError>) -> Result<TensorData, SaveError> {
        piece.map_err(|error| self.unreadable(error))
    }

    fn unreadable(&self, error: impl std::error::Error + Send + Sync + 'static) -> SaveError {
        SaveError::Value {
            tensor: self.name.clone(),
            source: Box::new(error),
        }
    }
}

/// The contents that one rank saves.
#[derive(Clone, Debug, Default)]
pub struct RankSave {
    /// The tensors. Clones of tensors share their data, so this description does not copy it: Burn never modifies shared data.
    pub tensors: Vec<SaveTensor>,
    /// The scalars of the optimizer.
    pub scalars: BTreeMap<String, Scalar>,
}

impl RankSave {
    /// Copies every tensor to the memory of this process; see [`SaveTensor::on_host`].
    ///
    /// # Errors
    ///
    /// Returns an error if a device fails.
    pub fn on_host(self) -> Result<Self, SaveError> {
        let tensors = self.tensors.into_iter().map(SaveTensor::on_host);
        Ok(Self {
            tensors: tensors.collect::<Result<_, _>>()?,
            scalars: self.scalars,
        })
    }
}

/// Divides a large request into pieces, if the source can return a piece without the whole value.
fn pieces_of(source: &dyn Source, request: &Request) -> Vec<Request> {
    /// Large enough that computing a piece costs little more than its values.
    const MOST: u64 = 64 << 20;
    let pieces = pieces(&request.region, MOST / request.dtype.size() as u64);
    let pieces = pieces.into_iter().map(|region| Request {
        region,
        ..request.clone()
    });
    let pieces: Vec<Request> = pieces.collect();
    // A source that can't compute parts would compute the whole value for each piece.
    let is_divided = request.bytes() > MOST;
    match is_divided && source.working_bytes(&pieces[..1]) < request.bytes() {
        true => pieces,
        false => vec![request.clone()],
    }
}
