//! A published checkpoint.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use burn::tensor::{DType, TensorData};
use tinderbox_deferred::{Mismatch, Mismatches, ParameterPath};
use tinderbox_fake::Region;

use super::{
    plain_file::{check_size, look_at, read_small},
    shard::ShardFile,
};
use crate::{
    Digest, LoadError, Manifest, Role, Scalar, StoredDType, TensorEntry,
    dtype::burn_bytes,
    format::{INDEX_FILE, MANIFEST_FILE, MAX_MANIFEST_BYTES, decode_manifest, stored_len},
};

/// A published checkpoint: a directory whose manifest was proven. A source of a model's parameters
/// ([`tinderbox_deferred::Source`]) and of an optimizer's state.
///
/// Every byte is checked against its digest when it is read, not before; [`Self::verify`] reads all.
#[derive(Clone, Debug)]
pub struct Checkpoint {
    dir: PathBuf,
    manifest: Manifest,
    scalars: BTreeMap<String, Scalar>,
}

impl Checkpoint {
    /// Opens the directory of one step: proves the manifest, and that every file is there with its
    /// size. Reads no tensor.
    ///
    /// Memory: a few times the manifest's size, which is at most 256 MiB.
    ///
    /// # Errors
    ///
    /// When it was not published, the manifest is damaged, or a file is missing, cut or a link.
    pub fn open(step_dir: impl Into<PathBuf>) -> Result<Self, LoadError> {
        let dir = step_dir.into();
        let path = dir.join(MANIFEST_FILE);
        let bytes = match look_at(&path) {
            Err(LoadError::Io { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => {
                return Err(LoadError::NotPublished { path: dir });
            }
            Err(error) => return Err(error),
            Ok(_) => read_small(&path, MAX_MANIFEST_BYTES)?,
        };
        let manifest =
            decode_manifest(&bytes).map_err(|source| LoadError::Manifest { path, source })?;
        for file in &manifest.files {
            check_size(&dir.join(&file.name), file.size_bytes)?;
        }
        let scalars = manifest
            .scalars
            .iter()
            .map(|s| (s.name.clone(), s.value))
            .collect();
        Ok(Self {
            dir,
            manifest,
            scalars,
        })
    }

    /// The directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The proven manifest: step, seed, data position, world size, metadata, files, tensors.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// Optimizer steps that were done.
    pub fn step(&self) -> u64 {
        self.manifest.step
    }

    /// The tensors of a role, by name.
    pub fn tensors(&self, role: Role) -> impl Iterator<Item = &TensorEntry> {
        self.manifest.tensors.iter().filter(move |t| t.role == role)
    }

    /// A tensor by role and name. Cost: a binary search.
    pub fn tensor(&self, role: Role, name: &str) -> Option<&TensorEntry> {
        // The proof of the manifest has shown that it is in this order.
        self.manifest
            .tensors
            .binary_search_by(|t| (t.role, &*t.name).cmp(&(role, name)))
            .ok()
            .map(|i| &self.manifest.tensors[i])
    }

    /// The single values of the optimizer's state, by name.
    pub fn scalars(&self) -> &BTreeMap<String, Scalar> {
        &self.scalars
    }

    /// Refuses a model whose parameters are not exactly the saved ones. Reads nothing.
    ///
    /// # Errors
    ///
    /// [`LoadError::Mismatch`] with every missing and extra parameter, shape and dtype.
    pub fn check_model(
        &self,
        parameters: &[(ParameterPath, Vec<u64>, DType)],
    ) -> Result<(), LoadError> {
        let mut wrong = Vec::new();
        for (path, shape, dtype) in parameters {
            self.compare(path, shape, *dtype, &mut wrong);
        }
        let wanted: std::collections::BTreeSet<&str> =
            parameters.iter().map(|(path, ..)| path.as_str()).collect();
        let extra = self.tensors(Role::Model).map(|t| t.name.as_str());
        wrong.extend(
            extra
                .filter(|name| !wanted.contains(name))
                .map(|name| Mismatch::Extra {
                    path: ParameterPath::new(name),
                }),
        );
        if wrong.is_empty() {
            Ok(())
        } else {
            Err(LoadError::Mismatch {
                path: self.dir.clone(),
                mismatches: Mismatches(wrong),
            })
        }
    }

    /// Adds what is wrong with one wanted parameter; gives the saved one when nothing is.
    pub(super) fn compare(
        &self,
        path: &ParameterPath,
        shape: &[u64],
        dtype: DType,
        wrong: &mut Vec<Mismatch>,
    ) -> Option<&TensorEntry> {
        let before = wrong.len();
        let Some(tensor) = self.tensor(Role::Model, path.as_str()) else {
            wrong.push(Mismatch::Missing { path: path.clone() });
            return None;
        };
        if tensor.shape != shape {
            wrong.push(Mismatch::Shape {
                path: path.clone(),
                expected: shape.to_vec(),
                found: tensor.shape.clone(),
            });
        }
        if StoredDType::of(dtype) != Some(tensor.dtype) {
            wrong.push(Mismatch::DType {
                path: path.clone(),
                expected: dtype.name().to_owned(),
                found: tensor.dtype.burn().name().to_owned(),
            });
        }
        (wrong.len() == before).then_some(tensor)
    }

    /// Whole tensors of the optimizer's state, in the order of the names.
    ///
    /// # Errors
    ///
    /// [`LoadError::MissingState`] with every name that is not there; then what is damaged.
    pub fn state<S: AsRef<str>>(&self, names: &[S]) -> Result<Vec<TensorData>, LoadError> {
        let mut wanted = Vec::with_capacity(names.len());
        let mut missing = Vec::new();
        for name in names {
            match self.tensor(Role::State, name.as_ref()) {
                Some(tensor) => wanted.push(tensor),
                None => missing.push(name.as_ref().to_owned()),
            }
        }
        if !missing.is_empty() {
            return Err(LoadError::MissingState {
                path: self.dir.clone(),
                names: missing,
            });
        }
        let mut reader = Reader::new(self);
        wanted
            .into_iter()
            .map(|tensor| {
                let whole = Region::whole(&tensor.shape).map_err(|source| LoadError::Region {
                    tensor: tensor.name.clone(),
                    source,
                })?;
                reader.read(tensor, &whole, tensor.dtype.burn())
            })
            .collect()
    }

    /// A region of a tensor of this checkpoint, in the dtype that it was saved in.
    ///
    /// Reads only the blocks that hold elements of the region. Memory: the region and one block.
    ///
    /// # Errors
    ///
    /// When the region reaches outside, or a block is damaged.
    pub fn read(&self, tensor: &TensorEntry, region: &Region) -> Result<TensorData, LoadError> {
        Reader::new(self).read(tensor, region, tensor.dtype.burn())
    }

    /// Reads every byte and checks it against its digest, the Hugging Face index included.
    ///
    /// Time: one pass over all files. Memory: a header and one block.
    ///
    /// # Errors
    ///
    /// The first damage that is found.
    pub fn verify(&self) -> Result<(), LoadError> {
        if let Some(index) = &self.manifest.index {
            let path = self.dir.join(INDEX_FILE);
            check_size(&path, index.size_bytes)?;
            let found = Digest::of(&read_small(&path, index.size_bytes)?);
            if found != index.digest {
                return Err(LoadError::DamagedFile {
                    path,
                    what: "bytes",
                    expected: index.digest,
                    found,
                });
            }
        }
        for entry in &self.manifest.files {
            let mut shard = ShardFile::open(&self.dir, &self.manifest, entry)?;
            for tensor in self.tensors(entry.role) {
                for chunk in tensor.chunks.iter().filter(|c| c.file == entry.name) {
                    shard.verify(tensor, chunk)?;
                }
            }
        }
        Ok(())
    }
}

/// Reads from a checkpoint, and keeps its files open meanwhile.
pub(super) struct Reader<'a> {
    checkpoint: &'a Checkpoint,
    open: BTreeMap<&'a str, ShardFile>,
}

impl<'a> Reader<'a> {
    pub(super) fn new(checkpoint: &'a Checkpoint) -> Self {
        Self {
            checkpoint,
            open: BTreeMap::new(),
        }
    }

    /// A region of a tensor in Burn's form of its dtype.
    pub(super) fn read(
        &mut self,
        tensor: &TensorEntry,
        region: &Region,
        dtype: DType,
    ) -> Result<TensorData, LoadError> {
        let name = || tensor.name.clone();
        region
            .check_inside(&tensor.shape)
            .map_err(|source| LoadError::Region {
                tensor: name(),
                source,
            })?;
        // Inside the tensor, so not larger than it; the tensor is as large as its bytes in the files.
        let bytes = stored_len(region.size(), tensor.dtype).unwrap_or(u64::MAX);
        let mut out = zeros(bytes).ok_or_else(|| LoadError::OutOfMemory {
            tensor: name(),
            bytes,
        })?;
        let mut last_path = None;
        for chunk in &tensor.chunks {
            if chunk.region.intersection(region).is_none() {
                continue;
            }
            let shard = self.shard(&chunk.file)?;
            shard.read_into(tensor, chunk, region, &mut out)?;
            last_path = Some(shard.path().to_owned());
        }
        let out = burn_bytes(out, dtype).ok_or_else(|| LoadError::TruthValue {
            path: last_path.unwrap_or_else(|| self.checkpoint.dir.clone()),
            tensor: name(),
        })?;
        // The sizes fit `usize`, because the bytes were allocated or there are none.
        let shape: Vec<usize> = region.size().iter().map(|d| *d as usize).collect();
        Ok(TensorData::from_bytes_vec(out, shape, dtype))
    }

    fn shard(&mut self, name: &str) -> Result<&mut ShardFile, LoadError> {
        let Checkpoint { dir, manifest, .. } = self.checkpoint;
        // The proof of the manifest has shown that every chunk's file is listed, in order of names.
        let listed = manifest
            .files
            .binary_search_by(|f| (*f.name).cmp(name))
            .map(|i| &manifest.files[i])
            .map_err(|_| LoadError::NotAFile {
                path: dir.join(name),
            })?;
        match self.open.entry(&listed.name) {
            std::collections::btree_map::Entry::Occupied(open) => Ok(open.into_mut()),
            std::collections::btree_map::Entry::Vacant(place) => {
                Ok(place.insert(ShardFile::open(dir, manifest, listed)?))
            }
        }
    }
}

/// Zeros, or nothing where an ordinary allocation would end the process. The trial allocation is
/// given back untouched, and the second one comes zeroed from the system, without a pass over it.
fn zeros(bytes: u64) -> Option<Vec<u8>> {
    let bytes = usize::try_from(bytes).ok()?;
    Vec::<u8>::new().try_reserve_exact(bytes).ok()?;
    Some(vec![0; bytes])
}
