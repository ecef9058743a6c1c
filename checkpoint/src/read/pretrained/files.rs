//! The files of a model: one file, the files of an index, or the shards of a directory.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;
use std::sync::LazyLock;

use regex::Regex;
use serde::Deserialize;

use crate::format::{
    INDEX_FILE, MAX_MANIFEST_BYTES, Texts, burnpack_len, decode_burnpack, header_len, is_burnpack,
};
use crate::read::files::most_open;
use crate::read::shard::ShardFile;
use crate::store::{FileVersion, LocalStore, Store, StoreExt, existing, parent_of};
use crate::{Header, HeaderError, LoadError, StoreError, decode_header};

/// File name of a model with a single file.
const MODEL_FILE: &str = "model.safetensors";
/// Suffix of an index file name.
const INDEX_END: &str = ".index.json";
/// The bytes that some editors write before a text in UTF-8.
const BYTE_ORDER_MARK: &[u8] = "\u{feff}".as_bytes();

/// Returns the files of a model, sorted by name, and their directory.
pub(super) fn files_of(from: &Path) -> Result<(LocalStore, Vec<OpenedFile>), LoadError> {
    let path = || from.to_owned();
    if !from.is_dir() {
        let no_name = "the path does not end in a file name in UTF-8";
        let (parent, name) = parent_of(from).ok_or_else(|| StoreError {
            action: "open",
            path: path(),
            source: io::Error::new(io::ErrorKind::InvalidFilename, no_name),
        })?;
        let dir = LocalStore::following_links(parent);
        if ShardName::of(name).is_some() {
            return Err(LoadError::OneShard { path: path() });
        }
        let files = match name.ends_with(INDEX_END) {
            true => indexed(&dir, name, &read_index(&dir, name)?)?,
            false => vec![OpenedFile::open(&dir, name)?],
        };
        return Ok((dir, files));
    }
    let dir = LocalStore::following_links(from);
    let (index, model) = (is_named(&dir, INDEX_FILE)?, is_named(&dir, MODEL_FILE)?);
    let files = match (index, model) {
        (false, false) => shards(&dir, from),
        (false, true) => Ok(vec![OpenedFile::open(&dir, MODEL_FILE)?]),
        (true, model) => {
            let named = read_index(&dir, INDEX_FILE)?;
            match model && !named.contains_key(MODEL_FILE) {
                true => Err(LoadError::TwoModels { path: path() }),
                false => indexed(&dir, INDEX_FILE, &named),
            }
        }
    }?;
    Ok((dir, files))
}

/// Returns whether an entry of this name exists; a dangling link counts.
fn is_named(dir: &LocalStore, name: &str) -> Result<bool, LoadError> {
    let found = existing(std::fs::symlink_metadata(dir.place(name)));
    Ok(found.map_err(dir.failed("look at", name))?.is_some())
}

/// Opens files; closes the files that exceed the number of open files.
fn open_all<'a>(
    dir: &LocalStore,
    names: impl Iterator<Item = &'a String>,
) -> Result<Vec<OpenedFile>, LoadError> {
    let most = most_open();
    let files = names.enumerate().map(|(at, name)| {
        let mut file = OpenedFile::open(dir, name)?;
        file.shard = file.shard.filter(|_| at < most);
        Ok(file)
    });
    files.collect()
}

/// The names of tensors by file.
type Named = BTreeMap<String, BTreeSet<String>>;

/// Reads an index.
fn read_index(dir: &LocalStore, name: &str) -> Result<Named, LoadError> {
    let bytes = dir.read_small(name, MAX_MANIFEST_BYTES);
    let bytes = bytes.map_err(dir.failed("read", name))?;
    let path = dir.place(name);
    if bytes.starts_with(LFS_POINTER) {
        return Err(LoadError::LfsPointer { path });
    }
    let json = bytes.strip_prefix(BYTE_ORDER_MARK).unwrap_or(&bytes);
    let index: Index = serde_json::from_slice(json).map_err(|source| LoadError::Index {
        path: path.clone(),
        source,
    })?;
    let mut files = Named::new();
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

/// Opens the files listed in an index and checks that they have the tensors that the index assigns to them. Other tensors in
/// the files are accepted, unless another file has a tensor of the same name.
fn indexed(dir: &LocalStore, index: &str, named: &Named) -> Result<Vec<OpenedFile>, LoadError> {
    let files = open_all(dir, named.keys())?;
    let (mut missing, mut unlisted) = (Vec::new(), Vec::new());
    let mut known: BTreeSet<&String> = named.values().flatten().collect();
    for (file, expected) in files.iter().zip(named.values()) {
        let found = file.header.tensors.iter().map(|tensor| &tensor.name);
        let found: BTreeSet<&String> = found.collect();
        let absent = expected.iter().filter(|name| !found.contains(name));
        missing.extend(absent.cloned());
        let more = found.into_iter().filter(|name| !expected.contains(*name));
        unlisted.extend(more.filter(|name| !known.insert(name)).cloned());
    }
    missing.sort();
    unlisted.sort();
    match missing.is_empty() && unlisted.is_empty() {
        true => Ok(files),
        false => Err(LoadError::IndexMismatch {
            path: dir.place(index),
            missing,
            unlisted,
        }),
    }
}

/// An index file. Other fields are ignored.
#[derive(Deserialize)]
struct Index {
    /// The file of every tensor.
    weight_map: Texts,
}

/// Opens the shards of a directory that several ranks have written.
fn shards(dir: &LocalStore, from: &Path) -> Result<Vec<OpenedFile>, LoadError> {
    let path = from.to_owned();
    let listing = dir.list("").map_err(dir.failed("list", ""))?;
    let mut found: BTreeMap<String, ShardName> = BTreeMap::new();
    for entry in listing {
        found.extend(ShardName::of(&entry.name).map(|shard| (entry.name, shard)));
    }
    if found.is_empty() {
        return Err(LoadError::NoModel { path });
    }
    // A rank that has no tensors for an index writes no file with this index.
    let mut indices: BTreeMap<u32, BTreeSet<u32>> = BTreeMap::new();
    for shard in found.values() {
        indices.entry(shard.count).or_default().insert(shard.index);
    }
    let missing = indices.iter().flat_map(|(count, found)| {
        let all = 1..=*count;
        let missing = all.filter(|index| !found.contains(index));
        missing.map(move |index| format!("shard-*-model-{index:05}-of-{count:05}.safetensors"))
    });
    let names: Vec<String> = missing.take(MAX_NAMED).collect();
    match names.is_empty() {
        true => open_all(dir, found.keys()),
        false => Err(LoadError::MissingShards { path, names }),
    }
}

/// Maximum number of files that an error names.
pub(super) const MAX_NAMED: usize = 20;

/// The numbers in the name of a shard, `shard-<rank>-model-<index>-of-<count>.safetensors`, except the rank.
struct ShardName {
    index: u32,
    count: u32,
}

impl ShardName {
    fn of(name: &str) -> Option<Self> {
        static FORM: LazyLock<Regex> = LazyLock::new(|| {
            let number = "([0-9]{5,})";
            let form = format!("^shard-{number}-model-{number}-of-{number}[.]safetensors$");
            Regex::new(&form).expect("the pattern is valid")
        });
        let (_, numbers) = FORM.captures(name)?.extract::<3>();
        let [Ok(_), Ok(index), Ok(count)] = numbers.map(str::parse::<u32>) else {
            return None;
        };
        Some(Self { index, count })
    }
}

/// Number of bytes at the start of a file that contain the size of its header, in either format, or identify a pointer.
const PREFIX_BYTES: u64 = 64;
/// The first bytes of a pointer to a file in Git LFS: <https://github.com/git-lfs/git-lfs/blob/main/docs/spec.md>.
const LFS_POINTER: &[u8] = b"version https://git-lfs.github.com/spec/";

/// A file with a validated header.
pub(super) struct OpenedFile {
    pub(super) name: String,
    pub(super) version: FileVersion,
    /// The open file; `None` if the file is opened again when it is read.
    pub(super) shard: Option<ShardFile>,
    pub(super) header: Header,
    pub(super) is_burnpack: bool,
}

impl OpenedFile {
    /// Opens a file of a directory, and checks that its tensors tile it.
    fn open(store: &LocalStore, name: &str) -> Result<Self, LoadError> {
        let opened = store.open_version(name);
        let (file, version) = opened.map_err(store.failed("open", name))?;
        let read = |len: u64| {
            // At most the format's limit of 100 MB, and at most the size of the file.
            let mut bytes = vec![0; len.min(file.bytes()) as usize];
            let read = file.read_exact_at(&mut bytes, 0);
            read.map(|()| bytes).map_err(store.failed("read", name))
        };
        let path = || store.place(name);
        let refused = |source| LoadError::Header {
            path: path(),
            source,
        };
        let first = read(PREFIX_BYTES)?;
        if first.starts_with(LFS_POINTER) {
            return Err(LoadError::LfsPointer { path: path() });
        }
        let is_burnpack = is_burnpack(&first);
        type Decode<T> = fn(&[u8], u64) -> Result<T, HeaderError>;
        let (len, decode): (Decode<u64>, Decode<Header>) = match is_burnpack {
            true => (burnpack_len, decode_burnpack),
            false => (header_len, decode_header),
        };
        let bytes = read(len(&first, file.bytes()).map_err(refused)?)?;
        let header = decode(&bytes, file.bytes()).map_err(refused)?;
        Ok(Self {
            name: name.to_owned(),
            version,
            shard: Some(ShardFile::new(path(), file, None)),
            header,
            is_burnpack,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_outside_the_directory_are_rejected() {
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
        check(r#"{"weight_map":[]}"#, "expected an object");
        check(r#"{"weight_map":{},"weight_map":{}}"#, "duplicate field");
        check("{}", "missing field");
    }
}
