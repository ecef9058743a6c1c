//! Saves plain `safetensors` files as a checkpoint.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt, io,
    path::{Path, PathBuf},
    sync::Arc,
};

use serde::{
    Deserialize, Deserializer,
    de::{Error, MapAccess, Visitor},
};

use super::{
    ToolError,
    assign::{Group, balance},
    error::failed,
    save::save,
};
use crate::{
    CheckpointMeta, Header, PlainTensor, Progress, RankSave, Role, Run, SaveData, SaveTensor,
    decode_header,
    format::{INDEX_FILE, MAX_MANIFEST_BYTES, header_len},
    store::{LocalStore, ReadFile, Store, read_small},
};

/// The file of a model that has only one.
const MODEL_FILE: &str = "model.safetensors";
/// Bytes of the length in front of a header.
const PREFIX_BYTES: u64 = 8;

/// What an import may choose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImportOptions {
    /// The step that the checkpoint is saved as.
    pub step: u64,
    /// Number of ranks over which whole tensors are balanced by bytes.
    pub world_size: u32,
    /// Whether the step may be there already. It is replaced in one instant then.
    pub replace: bool,
}

impl Default for ImportOptions {
    /// Step 0, from one rank, replacing nothing.
    fn default() -> Self {
        Self {
            step: 0,
            world_size: 1,
            replace: false,
        }
    }
}

/// Saves the tensors of a plain `safetensors` file as the parameters of a checkpoint, or those of a
/// directory in Hugging Face's form: the files that `model.safetensors.index.json` names, or without it
/// `model.safetensors`. Gives the directory of the step.
///
/// Values are copied as they are: a PyTorch `Linear` stays `[out, in]`, where Burn has `[in, out]`. The
/// files have no digests, so damage in them is not found. Links are followed where a name is looked up,
/// since Hugging Face's cache consists of them.
///
/// Time: one pass over the files to read and one to write. Memory: the headers of all files, and a piece
/// of 8 MiB for each of up to 4 threads.
///
/// # Errors
///
/// When a header is not valid to the last byte of its file, the index names a file outside of its
/// directory, index and files hold other tensors, the step is there and is not to be replaced, or the
/// disk fails. Nothing is published then.
pub fn import(
    from: &Path,
    to: &Run,
    options: &ImportOptions,
    progress: &dyn Progress,
) -> Result<PathBuf, ToolError> {
    let files = files_of(from)?;
    let tensors = files.iter().flat_map(PlainFile::tensors);
    let tensors: Vec<(&str, u64, PlainTensor)> = tensors.collect();
    if tensors.is_empty() {
        return Err(ToolError::NoParameters {
            path: from.to_owned(),
        });
    }
    let attempt = to.begin(CheckpointMeta {
        replace: options.replace,
        ..CheckpointMeta::new(options.step, options.world_size)
    })?;
    let groups: BTreeMap<Group<'_>, u64> = tensors
        .iter()
        .map(|(name, bytes, _)| ((Role::Model, *name), *bytes))
        .collect();
    let ranks = balance(&groups, options.world_size);
    let of_rank = |rank: u32| {
        let ours = tensors
            .iter()
            .filter(|(name, ..)| ranks.get(&(Role::Model, *name)) == Some(&rank));
        let ours = ours.map(|(name, _, data)| {
            SaveTensor::whole(*name, Role::Model, SaveData::Plain(data.clone()))
        });
        Ok(RankSave {
            tensors: ours.collect(),
            ..RankSave::default()
        })
    };
    save(attempt, groups.values().sum(), of_rank, progress)
}

/// An open file with its proven header.
struct PlainFile {
    path: PathBuf,
    file: Arc<dyn ReadFile>,
    header: Header,
}

impl PlainFile {
    /// Opens a file, and proves that its tensors tile it.
    fn open(path: &Path) -> Result<Self, ToolError> {
        let (store, name) = place(path)?;
        let file = store.open(&name).map_err(failed(&store, "open", &name))?;
        let read = |len: u64| {
            // At most the format's limit of 100 MB, and no more than the file has.
            let mut bytes = vec![0; len.min(file.bytes()) as usize];
            file.read_exact_at(&mut bytes, 0)
                .map_err(failed(&store, "read", &name))?;
            Ok::<_, ToolError>(bytes)
        };
        let refused = |source| ToolError::Header {
            path: path.to_owned(),
            source,
        };
        let header_bytes = header_len(&read(PREFIX_BYTES)?, file.bytes()).map_err(refused)?;
        let header = decode_header(&read(header_bytes)?, file.bytes()).map_err(refused)?;
        Ok(Self {
            path: path.to_owned(),
            file: file.into(),
            header,
        })
    }

    /// Name, bytes and place of every tensor.
    fn tensors(&self) -> impl Iterator<Item = (&str, u64, PlainTensor)> {
        let tensors = self.header.tensors.iter();
        tensors.map(|tensor| {
            let data = PlainTensor {
                file: self.file.clone(),
                path: self.path.clone(),
                dtype: tensor.dtype,
                shape: tensor.shape.clone(),
                start_bytes: self.header.data_start_bytes + tensor.start_bytes,
            };
            (&*tensor.name, tensor.len_bytes, data)
        })
    }
}

/// The directory and the name of what a path leads to, links followed.
fn place(path: &Path) -> Result<(LocalStore, String), ToolError> {
    let io_error = |source| ToolError::Io {
        action: "open",
        path: path.to_owned(),
        source,
    };
    let real = path.canonicalize().map_err(io_error)?;
    let name = real.file_name().and_then(|name| name.to_str());
    match (real.parent(), name) {
        (Some(parent), Some(name)) => Ok((LocalStore::new(parent), name.to_owned())),
        _ => Err(io_error(io::Error::from(io::ErrorKind::InvalidInput))),
    }
}

/// The files of a model: one, or those that an index names.
fn files_of(from: &Path) -> Result<Vec<PlainFile>, ToolError> {
    if !from.is_dir() {
        return Ok(vec![PlainFile::open(from)?]);
    }
    let (index, model) = (from.join(INDEX_FILE), from.join(MODEL_FILE));
    match (index.exists(), model.exists()) {
        (false, false) => Err(ToolError::NoModel {
            path: from.to_owned(),
        }),
        (false, true) => Ok(vec![PlainFile::open(&model)?]),
        (true, model) => {
            let named = read_index(&index)?;
            if model && !named.contains_key(MODEL_FILE) {
                return Err(ToolError::TwoModels {
                    path: from.to_owned(),
                });
            }
            indexed(from, &index, &named)
        }
    }
}

/// The names of tensors by file, as an index gives them.
fn read_index(path: &Path) -> Result<BTreeMap<String, BTreeSet<String>>, ToolError> {
    let (store, name) = place(path)?;
    let bytes = read_small(&store, &name, MAX_MANIFEST_BYTES);
    let bytes = bytes.map_err(failed(&store, "read", &name))?;
    let index: Index = serde_json::from_slice(&bytes).map_err(|source| ToolError::Index {
        path: path.to_owned(),
        source,
    })?;
    let mut files: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (tensor, file) in index.weight_map.0 {
        if !is_plain_name(&file) {
            return Err(ToolError::IndexFile {
                path: path.to_owned(),
                name: file,
            });
        }
        files.entry(file).or_default().insert(tensor);
    }
    Ok(files)
}

/// Whether a name can only be that of a file in the directory itself, on every system.
fn is_plain_name(name: &str) -> bool {
    !matches!(name, "" | "." | "..") && !name.contains(['/', '\\', ':', '\0'])
}

/// The files that an index names, when they hold exactly the tensors that it puts there.
fn indexed(
    dir: &Path,
    index: &Path,
    named: &BTreeMap<String, BTreeSet<String>>,
) -> Result<Vec<PlainFile>, ToolError> {
    let mut files = Vec::with_capacity(named.len());
    let (mut missing, mut unlisted) = (Vec::new(), Vec::new());
    for (name, expected) in named {
        let file = PlainFile::open(&dir.join(name))?;
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
    Err(ToolError::IndexMismatch {
        path: index.to_owned(),
        missing,
        unlisted,
    })
}

/// An index file. Fields beside the one that is needed are the business of others.
#[derive(Deserialize)]
struct Index {
    weight_map: WeightMap,
}

/// The file of every tensor; a repeated tensor is refused, of which serde's maps would keep the last.
struct WeightMap(BTreeMap<String, String>);

impl<'de> Deserialize<'de> for WeightMap {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Pairs;
        impl<'de> Visitor<'de> for Pairs {
            type Value = WeightMap;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of file names")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<WeightMap, A::Error> {
                let mut files = BTreeMap::new();
                while let Some((tensor, file)) = map.next_entry::<String, String>()? {
                    if files.contains_key(&tensor) {
                        return Err(Error::custom(format!("tensor `{tensor}` is there twice")));
                    }
                    files.insert(tensor, file);
                }
                Ok(WeightMap(files))
            }
        }
        deserializer.deserialize_map(Pairs)
    }
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
            let map = found.map(|index| index.weight_map.0);
            let found = map.map_or_else(|error| error.to_string(), |map| format!("{map:?}"));
            assert!(found.contains(expected), "{text}: {found}");
        };
        check(
            r#"{"metadata":{"total_size":4},"weight_map":{"a":"f"},"more":[]}"#,
            r#"{"a": "f"}"#,
        );
        check(r#"{"weight_map":{"a":"f","a":"g"}}"#, "there twice");
        check(r#"{"weight_map":{"a":1}}"#, "expected a string");
        check(r#"{"weight_map":[]}"#, "an object of file names");
        check(r#"{"weight_map":{},"weight_map":{}}"#, "duplicate field");
        check("{}", "missing field");
    }
}
