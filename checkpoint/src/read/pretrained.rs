//! Weights saved by other programs, in plain `safetensors` files.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    path::Path,
    sync::Arc,
};

use burn::tensor::TensorData;
use serde::Deserialize;
use tinderbox_fake::Region;

use super::{Checkpoint, CheckpointSource, LoadOptions, failed, files::Files, shard::ShardFile};
use crate::{
    AttemptId, BlockSize, Chunk, Digest, FileEntry, Header, HeaderTensor, LoadError, Manifest,
    Role, TensorEntry, decode_header,
    format::{
        INDEX_FILE, MAX_MANIFEST_BYTES, Texts, burnpack_len, decode_burnpack, header_len,
        is_burnpack,
    },
    store::{LocalStore, ReadFile, Store, existing},
};

/// File name of a model with a single file.
const MODEL_FILE: &str = "model.safetensors";
/// Suffix of an index file name.
const INDEX_END: &str = ".index.json";
/// The bytes of a file that contain the size of its header, of either format.
const PREFIX_BYTES: u64 = 10;

/// Weights saved by other programs: a `safetensors` file, a directory in Hugging Face's form, or a burnpack file
/// (`.bpk`), in which Burn saves modules. A [source](Self::source) of a model's parameters, like a [`Checkpoint`].
///
/// Such files have no digests: their headers are validated, but damage in their values is not detected. Links
/// are followed, because Hugging Face's cache consists of them. All files stay open: replacing a file by
/// another of its name has no effect, writing to the same file does.
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
    /// Opens a file, or the files of a directory: those listed in `model.safetensors.index.json`, or without
    /// it `model.safetensors`; or those listed in another index, whose path ends in `.index.json`. A file that
    /// begins as a burnpack file is read as one, whatever its name. Reads and validates their headers, and reads no
    /// tensor.
    ///
    /// Memory: a small multiple of the size of all headers.
    ///
    /// # Errors
    ///
    /// Returns an error if a header is not valid to the last byte of its file, the index lists a file outside
    /// its directory, or the tensors in index and files differ.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, LoadError> {
        let path = path.as_ref();
        let (dir, files) = files_of(path)?;
        let is_record = files.iter().any(|file| file.is_burnpack);
        let (mut entries, mut open) = (Vec::new(), Vec::new());
        let mut tensors = Vec::new();
        for file in files {
            for tensor in file.header.tensors {
                tensors.push(entry_of(tensor, file.header.data_start_bytes, &file.entry));
            }
            open.push(ShardFile::plain(dir.place(&file.entry.name), file.file));
            entries.push(file.entry);
        }
        // The same order in which a checkpoint looks for them.
        tensors.sort_by(|a, b| a.name.cmp(&b.name));
        let mut manifest = Manifest::empty(AttemptId::fresh(), 0, 1, BlockSize::default());
        manifest.files = entries;
        manifest.tensors = tensors;
        let (place, files) = (path.to_owned(), Files::plain(open));
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
    pub fn source(&self, options: LoadOptions) -> Result<CheckpointSource, LoadError> {
        self.checkpoint.source(options.of_record(self.is_record))
    }

    /// Returns the files as a checkpoint: of step 0, whose blocks have no digests.
    pub fn checkpoint(&self) -> &Arc<Checkpoint> {
        &self.checkpoint
    }
}

/// A file with a validated header.
struct PlainFile {
    file: Box<dyn ReadFile>,
    entry: FileEntry,
    header: Header,
    is_burnpack: bool,
}

impl PlainFile {
    /// Opens a file of a directory, and checks that its tensors tile it.
    fn open(store: &LocalStore, name: &str) -> Result<Self, LoadError> {
        let file = store.open(name).map_err(failed(store, "open", name))?;
        let read = |len: u64| {
            // At most the format's limit of 100 MB, and at most the size of the file.
            let mut bytes = vec![0; len.min(file.bytes()) as usize];
            file.read_exact_at(&mut bytes, 0)
                .map_err(failed(store, "read", name))?;
            Ok::<_, LoadError>(bytes)
        };
        let refused = |source| LoadError::Header {
            path: store.place(name),
            source,
        };
        let first = read(PREFIX_BYTES)?;
        let is_burnpack = is_burnpack(&first);
        let header_bytes = match is_burnpack {
            true => burnpack_len(&first, file.bytes()),
            false => header_len(&first, file.bytes()),
        };
        let bytes = read(header_bytes.map_err(refused)?)?;
        let header = match is_burnpack {
            true => decode_burnpack(&bytes, file.bytes()),
            false => decode_header(&bytes, file.bytes()),
        };
        let header = header.map_err(refused)?;
        let entry = FileEntry {
            name: name.to_owned(),
            role: Role::Model,
            rank: 0,
            number: 0,
            size_bytes: file.bytes(),
            header_bytes: bytes.len() as u64,
            header_digest: Digest::of(&bytes),
        };
        Ok(Self {
            file,
            entry,
            header,
            is_burnpack,
        })
    }
}

/// Converts a tensor of a file to an entry with one chunk and no digests.
fn entry_of(tensor: HeaderTensor, data_start_bytes: u64, file: &FileEntry) -> TensorEntry {
    let region = Region::whole(&tensor.shape);
    let chunk = Chunk {
        region: region.expect("a header is checked for sizes that overflow"),
        file: file.name.clone(),
        start_bytes: data_start_bytes + tensor.start_bytes,
        len_bytes: tensor.len_bytes,
        digests: Vec::new(),
    };
    TensorEntry {
        name: tensor.name,
        tied: Vec::new(),
        role: Role::Model,
        dtype: tensor.dtype,
        shape: tensor.shape,
        chunks: vec![chunk],
    }
}

/// Returns the directory and the name of a file.
fn place(path: &Path) -> Result<(LocalStore, String), LoadError> {
    let name = path.file_name().and_then(|name| name.to_str());
    let name = name.ok_or_else(|| LoadError::Io {
        action: "open",
        path: path.to_owned(),
        source: io::Error::new(
            io::ErrorKind::InvalidFilename,
            "the path does not end in a file name in UTF-8",
        ),
    })?;
    let parent = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    Ok((LocalStore::following_links(parent), name.to_owned()))
}

/// Returns whether an entry of this name exists; a dangling link counts.
fn is_named(dir: &LocalStore, name: &str) -> Result<bool, LoadError> {
    let found = existing(std::fs::symlink_metadata(dir.place(name)));
    Ok(found.map_err(failed(dir, "look at", name))?.is_some())
}

/// Returns the files of a model, sorted by name, and their directory.
fn files_of(from: &Path) -> Result<(LocalStore, Vec<PlainFile>), LoadError> {
    if !from.is_dir() {
        let (dir, name) = place(from)?;
        let files = match name.ends_with(INDEX_END) {
            true => indexed(&dir, &name, &read_index(&dir, &name)?)?,
            false => vec![PlainFile::open(&dir, &name)?],
        };
        return Ok((dir, files));
    }
    let dir = LocalStore::following_links(from);
    let (index, model) = (is_named(&dir, INDEX_FILE)?, is_named(&dir, MODEL_FILE)?);
    let files = match (index, model) {
        (false, false) => Err(LoadError::NoModel {
            path: from.to_owned(),
        }),
        (false, true) => Ok(vec![PlainFile::open(&dir, MODEL_FILE)?]),
        (true, model) => {
            let named = read_index(&dir, INDEX_FILE)?;
            match model && !named.contains_key(MODEL_FILE) {
                true => Err(LoadError::TwoModels {
                    path: from.to_owned(),
                }),
                false => indexed(&dir, INDEX_FILE, &named),
            }
        }
    }?;
    Ok((dir, files))
}

/// Reads an index and returns the names of tensors by file.
fn read_index(
    dir: &LocalStore,
    name: &str,
) -> Result<BTreeMap<String, BTreeSet<String>>, LoadError> {
    let bytes = dir.read_small(name, MAX_MANIFEST_BYTES);
    let bytes = bytes.map_err(failed(dir, "read", name))?;
    let path = dir.place(name);
    let index: Index = serde_json::from_slice(&bytes).map_err(|source| LoadError::Index {
        path: path.clone(),
        source,
    })?;
    let mut files: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (tensor, file) in index.weight_map.0 {
        if !is_plain_name(&file) {
            return Err(LoadError::IndexFile { path, name: file });
        }
        files.entry(file).or_default().insert(tensor);
    }
    Ok(files)
}

/// Returns whether a name can only refer to a file in the directory itself, on every platform.
fn is_plain_name(name: &str) -> bool {
    !matches!(name, "" | "." | "..") && !name.contains(['/', '\\', ':', '\0'])
}

/// Opens the files listed in an index and checks that they hold exactly the tensors assigned to them.
fn indexed(
    dir: &LocalStore,
    index: &str,
    named: &BTreeMap<String, BTreeSet<String>>,
) -> Result<Vec<PlainFile>, LoadError> {
    let mut files = Vec::with_capacity(named.len());
    let (mut missing, mut unlisted) = (Vec::new(), Vec::new());
    for (name, expected) in named {
        let file = PlainFile::open(dir, name)?;
        let found = file.header.tensors.iter().map(|tensor| tensor.name.clone());
        let found: BTreeSet<String> = found.collect();
        missing.extend(expected.difference(&found).cloned());
        unlisted.extend(found.difference(expected).cloned());
        files.push(file);
    }
    if missing.is_empty() && unlisted.is_empty() {
        return Ok(files);
    }
    missing.sort();
    unlisted.sort();
    Err(LoadError::IndexMismatch {
        path: dir.place(index),
        missing,
        unlisted,
    })
}

/// An index file. Other fields are ignored.
#[derive(Deserialize)]
struct Index {
    /// The file of every tensor.
    weight_map: Texts,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_name_leads_out_of_the_directory() {
        for (name, plain) in [
            ("model.safetensors", true),
            ("..a", true),
            ("", false),
            (".", false),
            ("..", false),
            ("../model.safetensors", false),
            ("/etc/passwd", false),
            ("a/b", false),
            ("a/", false),
            ("a\\b", false),
            ("c:a", false),
            ("a\0", false),
        ] {
            assert_eq!(is_plain_name(name), plain, "{name:?}");
        }
    }

    #[test]
    fn an_index_names_a_tensor_once() {
        let check = |text: &str, expected: &str| {
            let found = serde_json::from_str::<Index>(text);
            let map = found.map(|index| BTreeMap::from_iter(index.weight_map.0));
            let found = map.map_or_else(|error| error.to_string(), |map| format!("{map:?}"));
            assert!(found.contains(expected), "{text}: {found}");
        };
        check(
            r#"{"metadata":{"total_size":4},"weight_map":{"a":"f"},"more":[]}"#,
            r#"{"a": "f"}"#,
        );
        check(r#"{"weight_map":{"a":"f","a":"g"}}"#, "duplicate key `a`");
        check(r#"{"weight_map":{"a":1}}"#, "expected a string");
        check(r#"{"weight_map":[]}"#, "an object with string values");
        check(r#"{"weight_map":{},"weight_map":{}}"#, "duplicate field");
        check("{}", "missing field");
    }
}
