//! Weights saved by other programs, in plain `safetensors` files.

use std::{collections::BTreeMap, path::Path, sync::Arc};

use burn::tensor::TensorData;
use tinderbox_fake::Region;

use super::files::files_of;
use super::parts::tensors_of;
use crate::read::saved::{SavedTensors, TensorFiles};
use crate::read::shard::ShardFile;
use crate::read::{CheckpointSource, LoadOptions};
use crate::store::{FileVersion, LocalStore, Store, StoreExt};
use crate::{LoadError, Role, Scalar, TensorEntry};

/// Weights saved by other programs: a `safetensors` file, a directory in Hugging Face's form, the shards of PyTorch's
/// `HuggingFaceStorageWriter`, or a burnpack file (`.bpk`), in which Burn saves modules. A [source](Self::source) of a
/// model's parameters.
///
/// # What is checked
///
/// Every byte of a [`Checkpoint`](crate::Checkpoint) is checked. These files have no digests:
///
/// - Checked when they are opened: every header to its last byte, that the tensors of a file are as long as the file, that the
///   files have the tensors that their index lists, and that the parts of a tensor form it.
/// - Checked when they are read: that a region is inside its tensor, that a boolean is 0 or 1, and that a file that is opened
///   again is the same one, by its device, number, size and time of the last write.
/// - Not checked: the values. Damage in them is not detected, nor is a write to a file that is open.
///
/// Links are followed, because Hugging Face's cache consists of them. Up to 64 files stay open, or a sixteenth of the files
/// that the process may have open if that is less.
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
#[derive(Clone, Debug, derive_more::AsRef)]
pub struct Pretrained {
    #[as_ref]
    saved: SavedTensors,
    /// Whether the weights are a record of Burn.
    is_record: bool,
}

/// Files without digests, by name.
#[derive(Debug)]
struct PlainFiles {
    dir: LocalStore,
    files: BTreeMap<String, FileVersion>,
    tensors: Vec<TensorEntry>,
}

impl Pretrained {
    /// Opens a file, the files of an index, or the files of a directory. Reads and validates their headers, and reads no
    /// tensor.
    ///
    /// The path of an index ends in `.index.json`. In a directory, the files are those that `model.safetensors.index.json`
    /// lists; without this index `model.safetensors`; without both all `shard-<rank>-model-<i>-of-<n>.safetensors`, which
    /// PyTorch's `HuggingFaceStorageWriter` writes if it does not consolidate. A file that begins like a burnpack file is read
    /// as a burnpack file, whatever its name.
    ///
    /// Shards have parts of tensors, and the shape of a tensor is the smallest that contains its parts. A missing shard is
    /// therefore an error here only if it is between others.
    ///
    /// Memory: a small multiple of the size of all headers.
    ///
    /// # Errors
    ///
    /// Returns an error if a header is not valid to the last byte of its file, the index lists a file outside
    /// its directory or a tensor that its file lacks, or the parts of a tensor leave gaps, overlap or have different dtypes.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, LoadError> {
        let path = path.as_ref();
        let (dir, opened) = files_of(path)?;
        let is_record = opened.iter().any(|file| file.is_burnpack);
        let tensors = tensors_of(&opened, path)?;
        let (mut files, mut open) = (BTreeMap::new(), Vec::new());
        for file in opened {
            let name = file.name;
            open.extend(file.shard.map(|shard| (name.clone(), shard)));
            files.insert(name, file.version);
        }
        let files = Arc::new(PlainFiles {
            dir,
            files,
            tensors,
        });
        let open = open.into_iter().collect();
        Ok(Self {
            saved: SavedTensors::of(files, None, open, path.to_owned()),
            is_record,
        })
    }

    /// Returns the file or directory.
    pub fn path(&self) -> &Path {
        self.saved.place()
    }

    /// Returns the tensors, sorted by name.
    pub fn tensors(&self) -> impl Iterator<Item = &TensorEntry> {
        self.saved.tensors(Role::Model)
    }

    /// Returns the tensor of this name. Cost: a binary search.
    pub fn tensor(&self, name: &str) -> Option<&TensorEntry> {
        self.saved.tensor(Role::Model, name)
    }

    /// Reads a region of one of these tensors, in its stored dtype. Reads the blocks of 1 MiB that contain elements of the
    /// region, and does not check their values.
    ///
    /// # Errors
    ///
    /// Returns an error if the region extends outside the tensor, a file can't be read or is another than the one that was
    /// opened, or the tensor belongs to other weights.
    pub fn read(&self, tensor: &TensorEntry, region: &Region) -> Result<TensorData, LoadError> {
        self.saved.read(tensor, region)
    }

    /// Creates a source of a model's parameters with these options. Reads nothing.
    ///
    /// # Errors
    ///
    /// Returns [`LoadError::Renamed`] if two tensors are renamed to the same name.
    pub fn source(&self, mut options: LoadOptions) -> Result<CheckpointSource, LoadError> {
        options.is_record = self.is_record;
        self.saved.source(options)
    }
}

impl TensorFiles for PlainFiles {
    fn tensors(&self) -> &[TensorEntry] {
        &self.tensors
    }

    fn scalars(&self) -> Option<&BTreeMap<String, Scalar>> {
        None
    }

    fn open(&self, name: &str) -> Result<ShardFile, LoadError> {
        let opened = self.dir.open_version(name);
        let (file, version) = opened.map_err(self.dir.failed("open", name))?;
        let path = self.dir.place(name);
        // Another file of the same name could not be detected later.
        match self.files.get(name) == Some(&version) {
            true => Ok(ShardFile::new(path, file, None)),
            false => Err(LoadError::Replaced { path }),
        }
    }
}
