//! Weights saved by other programs, in plain `safetensors` files.

use std::{path::Path, sync::Arc};

use burn::tensor::TensorData;
use tinderbox_fake::Region;

use super::{files::files_of, parts::tensors_of};
use crate::{
    AttemptId, BlockSize, LoadError, Manifest, Role, TensorEntry,
    read::{Checkpoint, CheckpointSource, LoadOptions, files::Files},
};

/// Weights saved by other programs: a `safetensors` file, a directory in Hugging Face's form, the shards of PyTorch's
/// `HuggingFaceStorageWriter`, or a burnpack file (`.bpk`), in which Burn saves modules. A [source](Self::source) of a
/// model's parameters, like a [`Checkpoint`].
///
/// Such files have no digests: their headers are validated, but damage in their values is not detected. Links
/// are followed, because Hugging Face's cache consists of them. Up to 64 files stay open, or a sixteenth of the files that
/// the process may have open if that is less. A file that is opened again must be the same one, by its device, number, size
/// and time of the last write; otherwise the read fails.
///
/// Names that the metadata of a `safetensors` file maps to a tensor of the same file, as `save_model` of the package
/// `safetensors` writes them for tensors that share memory, are [tied names](TensorEntry::tied) of that tensor.
///
/// ```no_run
/// use tinderbox_checkpoint::{LoadOptions, Pretrained, Regex};
/// # fn example(model: &tinderbox_deferred::ParameterTable) -> Result<(), Box<dyn std::error::Error>> {
/// let weights = Pretrained::open("bert-base-uncased")?;
/// let options = LoadOptions::default()
///     .rename(Regex::new(r"^bert\.")?, "")
///     .pytorch(model)
///     .allow_extra();
/// let source = weights.source(options)?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Pretrained {
    /// A checkpoint whose chunks have no digests.
    checkpoint: Arc<Checkpoint>,
    /// Whether it is a record of Burn.
    is_record: bool,
}

impl Pretrained {
    /// Opens a file, or the files of a directory: those listed in `model.safetensors.index.json`; or without
    /// it `model.safetensors`; or without both, all `shard-<rank>-model-<i>-of-<n>.safetensors`, as PyTorch's
    /// `HuggingFaceStorageWriter` writes them if it does not consolidate them; or those listed in another index, whose path
    /// ends in `.index.json`. A file that begins as a burnpack file is read as one, whatever its name. Reads and validates
    /// their headers, and reads no tensor.
    ///
    /// Shards have parts of tensors, and the shape of a tensor is the smallest that contains its parts: of files that are
    /// missing, only those between others are noticed here.
    ///
    /// Memory: a small multiple of the size of all headers.
    ///
    /// # Errors
    ///
    /// Returns an error if a header is not valid to the last byte of its file, the index lists a file outside
    /// its directory or a tensor that its file lacks, or the parts of a tensor leave gaps, overlap or have different dtypes.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, LoadError> {
        let path = path.as_ref();
        let (dir, files) = files_of(path)?;
        let is_record = files.iter().any(|file| file.is_burnpack);
        let mut manifest = Manifest::empty(AttemptId::fresh(), 0, 1, BlockSize::default());
        manifest.tensors = tensors_of(&files, path)?;
        let (mut versions, mut open) = (Vec::new(), Vec::new());
        for file in files {
            versions.push(file.version);
            open.extend(file.shard);
            manifest.files.push(file.entry);
        }
        let (place, files) = (path.to_owned(), Files::plain(&dir, versions, open));
        let checkpoint =
            Checkpoint::of_manifest(manifest, Arc::new(dir), String::new(), place, files);
        Ok(Self {
            checkpoint: Arc::new(checkpoint),
            is_record,
        })
    }

    /// Returns the file or directory.
    pub fn path(&self) -> &Path {
        self.checkpoint.dir()
    }

    /// Returns the tensors, sorted by name.
    pub fn tensors(&self) -> impl Iterator<Item = &TensorEntry> {
        self.checkpoint.tensors(Role::Model)
    }

    /// Returns the tensor of this name. Cost: a binary search.
    pub fn tensor(&self, name: &str) -> Option<&TensorEntry> {
        self.checkpoint.tensor(Role::Model, name)
    }

    /// Reads a region of one of these tensors, in its stored dtype. Reads the blocks of 1 MiB that contain
    /// elements of the region.
    ///
    /// # Errors
    ///
    /// Returns an error if the region extends outside the tensor, the file can't be read, or the tensor
    /// belongs to other weights.
    pub fn read(&self, tensor: &TensorEntry, region: &Region) -> Result<TensorData, LoadError> {
        self.checkpoint.read(tensor, region)
    }

    /// Creates a source of a model's parameters with these options. Reads nothing.
    ///
    /// # Errors
    ///
    /// Returns [`LoadError::Renamed`] if two tensors are renamed to the same name.
    pub fn source(&self, mut options: LoadOptions) -> Result<CheckpointSource, LoadError> {
        options.is_record = self.is_record;
        self.checkpoint.source(options)
    }

    /// Returns the files as a checkpoint: of step 0, whose blocks have no digests.
    pub fn checkpoint(&self) -> &Arc<Checkpoint> {
        &self.checkpoint
    }
}
